"""Everything that is special to a job on an NVIDIA GPU: no other module of the agent calls torch.cuda.

It is little: the allocator's figures, one cap, two calls at a hand-over; page-locked memory for tensors that leave
the card, and what keeps them there; the card's random states. Torch's caching allocator keeps its figures on the
host, so reading them never waits for the device.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from carpool.agent.link import Link
from carpool.agent.memory import explain_out_of_memory, say_cap_reached
from carpool.agent.parking.find_and_copy import find_objects, with_subclasses
from carpool.agent.parking.host_buffers import Moved
from carpool.wire import caps, page

ALLOCATED = "allocated_bytes.all.current"
PEAK = "allocated_bytes.all.peak"
STUCK = "inactive_split_bytes.all.current"  # free, but in one segment with what is not: only the program can use it
LOCKED_BYTES = 64 << 20  # torch rounds page-locked memory up to a power of two: one piece of 5 GiB would take 8


def is_counted(link: Link) -> bool:
    """Whether the CUDA guest counts this process: in a slot that may stand beside the one the daemon lent to us."""
    slot = link.page.slot_of(os.getpid())
    return slot is not None and bool(link.words[page.slot_base(slot) + page.S_FLAGS] & page.FLAG_METERED)


def cap_from_the_start(torch: Any, link: Link) -> None:
    """Limit the allocator as soon as the program makes its context, before it allocates anything."""
    if link.words[page.H_CAP] and caps.is_own(link.words):
        torch.cuda._lazy_call(lambda: limit_allocator(torch.cuda, link))  # torch's own way to defer a call


def explain_refusals(torch: Any, link: Link) -> None:
    """Say what the cap is where it refused something, also to a program that handles the error itself."""

    def observe(_device: int, asked_bytes: int, *_: int) -> None:  # torch calls it with no lock held
        with contextlib.suppress(Exception):  # it would become the program's
            live_bytes = _held(torch.cuda.memory_stats())
            if live_bytes + asked_bytes > link.words[page.H_CAP]:  # else the card itself is full
                say_cap_reached(link, live_bytes)

    def attach() -> None:
        # A torch without this name, or the allocator cudaMallocAsync: only the error at the end is explained.
        with contextlib.suppress(AttributeError, RuntimeError):
            torch._C._cuda_attach_out_of_memory_observer(observe)

    torch.cuda._lazy_call(attach)


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

    is_synchronous = False  # kernels are in flight after their launch

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


# --- tensors that leave the card and come back (parking/storages.py) ------------------------------------------


class PinnedBuffer:
    """Page-locked host memory in pieces, for GPUs. Not kept, though locking it is slow: what the host's budget counts
    are the bytes of jobs that are away, and memory that is locked is nobody else's."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pieces: list[Any] = []  # all of LOCKED_BYTES but the last, which may be smaller

    def reserve(self, count: int) -> None:
        self.clear()
        try:
            while (left := count - len(self._pieces) * LOCKED_BYTES) > 0:
                size = min(left, LOCKED_BYTES)
                self._pieces.append(self._torch.empty(size, dtype=self._torch.uint8, pin_memory=True))
        except RuntimeError as error:
            self.clear()
            raise MemoryError(f"the host has no {count} bytes to lock: {error}") from error

    def write(self, moves: Sequence[Moved]) -> None:
        for piece, part in self._parts(moves):
            piece.copy_(part, non_blocking=True)
        self._torch.cuda.synchronize()

    def read(self, moves: Sequence[Moved]) -> None:
        for piece, part in self._parts(moves):
            part.copy_(piece, non_blocking=True)
        self._torch.cuda.synchronize()

    def _parts(self, moves: Sequence[Moved]) -> Iterator[tuple[Any, Any]]:
        """The bytes where they are locked and where they are used, as far as each piece reaches."""
        for moved in moves:
            view = self._torch.empty(0, dtype=self._torch.uint8, device=moved.storage.device).set_(moved.storage)
            done = 0
            while done < moved.count:
                index, start = divmod(moved.offset + done, LOCKED_BYTES)
                count = min(LOCKED_BYTES - start, moved.count - done)
                yield self._pieces[index][start : start + count], view[done : done + count]
                done += count

    def clear(self) -> None:
        if self._pieces:
            self._pieces = []
            self._torch._C._host_emptyCache()  # torch would keep them locked


def has_graphs(torch: Any) -> bool:
    graph_class = getattr(torch.cuda, "CUDAGraph", None)
    return graph_class is not None and bool(find_objects(with_subclasses(graph_class)))


def sent_to_others(torch: Any) -> set[int]:
    """Storages that were handed to another process: torch keeps a list of them."""
    return {reference.cdata for reference in torch.multiprocessing.reductions.shared_cache.values()}


def give_back_cache(torch: Any) -> None:
    """What torch's allocator keeps of freed blocks goes back to the card."""
    torch._C._cuda_clearCublasWorkspaces()  # scratch memory that torch makes anew when it is needed
    torch.cuda.empty_cache()


# --- random states (checkpoint/snapshot.py) ---------------------------------------------------------------------


def random_states(torch: Any) -> list[Any]:
    """One a card; none before the context exists, as asking would create one."""
    return list(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else []


def put_back_random(torch: Any, states: list[Any]) -> None:
    torch.cuda.set_rng_state_all(states)
