"""How a job's bytes are measured at its boundaries (turns/profile.py learns from them).

There are three sources with one interface: the C meter's words in the shared page (CPU device), the kernel's
high-water mark where the meter could not be built, and the figures of torch's allocator on a GPU (cuda.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from pathlib import Path
from types import TracebackType
from typing import Protocol

from carpool.agent.link import Link
from carpool.agent.parking.park import Movable
from carpool.units import format_bytes
from carpool.wire import caps, page

_is_cap_said = False  # in this process


class Source(Protocol):
    """Where live and peak bytes come from."""

    is_synchronous: bool  # whether device work is over when the call that began it returns

    def live_bytes(self) -> int:
        """Held now."""

    def peak_bytes(self) -> int:
        """The most held since reset_peak."""

    def reset_peak(self, *, is_learning: bool) -> None:
        """Measure the peak anew; once learning is over only what is higher than ever before must be seen."""

    def finish_device_work(self, *, give_back: bool) -> None:
        """Wait for queued device work; give cached scratch memory back if the lane is shared."""


class MeterSource:
    """The C meter counts in this process's slot of the page."""

    is_synchronous = True

    def __init__(self, link: Link) -> None:
        self._link = link

    def live_bytes(self) -> int:
        return page.as_count(self._link.words[self._link.base + page.S_LIVE])

    def peak_bytes(self) -> int:
        return max(self.live_bytes(), page.as_count(self._link.words[self._link.base + page.S_PEAK]))

    def reset_peak(self, *, is_learning: bool) -> None:
        words, base = self._link.words, self._link.base
        words[base + page.S_PEAK] = words[base + page.S_LIVE]

    def finish_device_work(self, *, give_back: bool) -> None:
        return  # computation on the CPU device is over when the call returns


class ResidentSource:
    """Without the meter: the kernel's resident size and high-water mark, and a data limit as the cap.

    Over-reports (freed blocks stay in the heap), so it is the fallback only.
    """

    is_synchronous = True
    is_enforced = False  # in this process: at its first turn, or when torch was imported

    def __init__(self, link: Link) -> None:
        self._link = link

    def enforce_cap(self) -> None:
        """Limit this process's data to what it has now plus the cap; once, before the program's own allocations."""
        if ResidentSource.is_enforced:
            return
        ResidentSource.is_enforced = True
        cap = self._link.words[page.H_CAP]
        if cap and caps.is_own(self._link.words):
            data = _status_kib("VmData") * 1024
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_DATA, (data + cap, hard))
        explain_out_of_memory(self._link, self)

    def live_bytes(self) -> int:
        live = _status_kib("VmRSS") * 1024
        if self._link.base:
            self._link.words[self._link.base + page.S_LIVE] = live
        return live

    def peak_bytes(self) -> int:
        return _status_kib("VmHWM") * 1024

    def reset_peak(self, *, is_learning: bool) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def finish_device_work(self, *, give_back: bool) -> None:
        return


def _status_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    return 0


def explain_out_of_memory(link: Link, source: Source) -> None:
    """Add carpool's sentence to an uncaught out-of-memory error if the user has set a cap by now."""
    before = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        is_it = (
            isinstance(error, MemoryError) or kind.__name__ == "OutOfMemoryError" or "allocate memory" in str(error)
        )
        if is_it:
            say_cap_reached(link, source.live_bytes())

    sys.excepthook = excepthook


def say_cap_reached(link: Link, live_bytes: int) -> None:
    """Once a process, and only at a cap that the user set: a program that handles the error may meet it often."""
    global _is_cap_said
    if not caps.is_own(link.words) or _is_cap_said:
        return
    _is_cap_said = True
    sys.stderr.write(
        f"carpool: memory cap reached: job {link.job} may hold {format_bytes(link.words[page.H_CAP])} and holds"
        f" {format_bytes(live_bytes)}; raise the cap with --memory\n"
    )


def name_turn_taker() -> None:
    """Tell the meter that this thread takes the turns (M5 of native/meter.c)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).carpool_takes_turns()


def give_back_heap() -> None:
    """Freed blocks stay in the C library's hands otherwise."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


class Memory:
    """The bytes of this process, less what the framework itself took before the program began."""

    def __init__(self, source: Source, *, overhead_bytes: int, movable: Movable | None = None) -> None:
        self._source = source
        self.movable = movable
        self.overhead_bytes = overhead_bytes

    @classmethod
    def for_plain_process(cls, link: Link) -> Memory:
        if link.is_metered:
            return cls(MeterSource(link), overhead_bytes=0)
        source = ResidentSource(link)
        source.enforce_cap()
        return cls(source, overhead_bytes=0)

    @property
    def is_instant(self) -> bool:
        """Whether a turn can go with nothing to wait for, and come with one word to set (native/hot_path.c)."""
        return isinstance(self._source, MeterSource)

    @property
    def is_synchronous(self) -> bool:
        """Whether nothing of the program is on the device once its calls have returned."""
        return self._source.is_synchronous

    def live_bytes(self) -> int:
        return self._source.live_bytes()

    def peak_bytes(self) -> int:
        return self._source.peak_bytes()

    def turn_began(self, *, is_learning: bool) -> None:
        self._source.reset_peak(is_learning=is_learning)

    def finish_device_work(self, *, give_back: bool) -> None:
        self._source.finish_device_work(give_back=give_back)
