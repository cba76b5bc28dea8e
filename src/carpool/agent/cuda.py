"""Everything that is special to a job on an NVIDIA GPU. Thin: allocator statistics, one cap, two calls at hand-over.

Figures are kept on the host by torch's caching allocator, so reading them never waits for the device.
"""

from __future__ import annotations

import os
from typing import Any

from carpool.agent.link import Link
from carpool.agent.memory import explain_out_of_memory
from carpool.wire import caps, page

ALLOCATED = "allocated_bytes.all.current"
PEAK = "allocated_bytes.all.peak"
STUCK = "inactive_split_bytes.all.current"  # free, but in one segment with what is not: only the program can use it


def is_counted(link: Link) -> bool:
    """Whether the CUDA guest counts this process: in a slot that may stand beside the one the daemon lent to us."""
    slot = link.page.slot_of(os.getpid())
    return slot is not None and bool(link.words[page.slot_base(slot) + page.S_FLAGS] & page.FLAG_METERED)


def cap_from_the_start(cuda: Any, link: Link) -> None:
    """Limit the allocator as soon as the program makes its context, before it allocates anything."""
    if link.words[page.H_CAP] and caps.is_own(link.words):
        cuda._lazy_call(lambda: limit_allocator(cuda, link))  # torch's own way to defer a call


def limit_allocator(cuda: Any, link: Link) -> None:
    """Let torch keep to the job's cap as it is now, where nobody else sees to that.

    The guest does, at every allocation. A limit of torch's beside it would be that of a moment: too low for a job
    that was given more since.
    """
    total = cuda.mem_get_info()[1]  # the guest, if it is here, has its slot after this
    if not is_counted(link):
        cuda.set_per_process_memory_fraction(min(1.0, link.words[page.H_CAP] / total))


def _held(stats: dict[str, int]) -> int:
    return stats.get(ALLOCATED, 0) + stats.get(STUCK, 0)


class CudaSource:
    """Live and peak bytes of this process's default GPU (the daemon shows it only one)."""

    def __init__(self, torch: Any, link: Link) -> None:
        self._cuda = torch.cuda
        self._link = link
        self._base_peak_bytes = 0  # the allocator's all-time peak when ours was last reset
        self._cap_bytes = link.words[page.H_CAP] if caps.is_own(link.words) else 0  # as the allocator knows it
        explain_out_of_memory(link, self)

    def _stats(self) -> dict[str, int]:
        # Before the context exists there is nothing to count, and asking would create one.
        if not self._cuda.is_initialized():
            return {}
        stats: dict[str, int] = self._cuda.memory_stats()
        return stats

    def live_bytes(self) -> int:
        """What would stay on the card if the allocator gave its cache back."""
        self._follow_cap()
        live = _held(self._stats())
        if self._link.base and not is_counted(self._link):
            self._link.words[self._link.base + page.S_LIVE] = live
        return live

    def _follow_cap(self) -> None:
        """`carpool resize` changes the cap in the page, or draws one where there was none."""
        cap_bytes = self._link.words[page.H_CAP]
        if cap_bytes != self._cap_bytes and caps.is_own(self._link.words) and self._cuda.is_initialized():
            self._cap_bytes = cap_bytes
            limit_allocator(self._cuda, self._link)

    def peak_bytes(self) -> int:
        """The most since the reset; once learning is over, only if it was more than ever before."""
        stats = self._stats()
        peak = stats.get(PEAK, 0)
        return peak if peak > self._base_peak_bytes else _held(stats)

    def reset_peak(self, *, is_learning: bool) -> None:
        """A turn began. The allocator's own peak is reset only while the first iterations are measured."""
        self._follow_cap()
        if is_learning and self._cuda.is_initialized():
            self._cuda.reset_peak_memory_stats()
        self._base_peak_bytes = 0 if is_learning else self._stats().get(PEAK, 0)

    def finish_device_work(self, *, give_back: bool) -> None:
        """The turn's kernels must be over before the next job starts; the cache goes back only if it is needed."""
        if self._cuda.is_initialized():
            self._cuda.synchronize()
            if give_back:
                self._cuda.empty_cache()
