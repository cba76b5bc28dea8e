"""Everything that is special to a job on an NVIDIA GPU. Thin: allocator statistics, one cap, two calls at hand-over.

Figures are kept on the host by torch's caching allocator, so reading them never waits for the device.
"""

from __future__ import annotations

import os
from typing import Any

from carpool.agent.link import Link
from carpool.agent.memory import explain_out_of_memory
from carpool.wire import page

ALLOCATED = "allocated_bytes.all.current"
PEAK = "allocated_bytes.all.peak"


class CudaSource:
    """Live and peak bytes of this process's default GPU (the daemon shows it only one)."""

    def __init__(self, torch: Any, link: Link) -> None:
        self._cuda = torch.cuda
        self._link = link
        self._is_capped = False
        explain_out_of_memory(link, self)

    def _stats(self) -> dict[str, int]:
        # Before the context exists there is nothing to count, and asking would create one.
        if not self._cuda.is_initialized():
            return {}
        self._set_cap()
        stats: dict[str, int] = self._cuda.memory_stats()
        return stats

    def _set_cap(self) -> None:
        cap = self._link.words[page.H_CAP]
        if cap and not self._is_capped and os.environ.get("CARPOOL_IS_CAPPED"):
            self._is_capped = True
            total = self._cuda.get_device_properties(self._cuda.current_device()).total_memory
            self._cuda.set_per_process_memory_fraction(min(1.0, cap / total))

    def live_bytes(self) -> int:
        live = self._stats().get(ALLOCATED, 0)
        if self._link.base and not self._link.is_metered:  # the CUDA guest counts what the driver gives out
            self._link.words[self._link.base + page.S_LIVE] = live
        return live

    def peak_bytes(self) -> int:
        return self._stats().get(PEAK, 0)

    def reset_peak(self) -> None:
        if self._cuda.is_initialized():
            self._cuda.reset_peak_memory_stats()

    def finish_device_work(self, *, give_back: bool) -> None:
        """The turn's kernels must be over before the next job starts; the cache goes back only if it is needed."""
        if self._cuda.is_initialized():
            self._cuda.synchronize()
            if give_back:
                self._cuda.empty_cache()
