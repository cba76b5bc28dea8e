"""How a job's bytes are measured at its boundaries, and what is learnt from them.

Three sources, one interface: the C meter's words in the shared page (CPU device), the operating system's
high-water mark where the meter could not be built, and torch's allocator statistics on a GPU (cuda.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Protocol

from carpool.agent.link import Link
from carpool.agent.parking.park import Movable
from carpool.units import format_bytes
from carpool.wire import caps, page
from carpool.wire import messages as m

CLEAN_SLACK_PERCENT = 5
CLEAN_SLACK_BYTES = 1 << 20
_is_cap_said = False  # in this process
FIRINGS_MAX = 32  # learning ends when a point fired so often, whatever became of the others


def delay_ns() -> int:
    """How long this thread wanted a processor and had none, since it began; 0 on a kernel that does not count it."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/thread-self/schedstat") as counts:
        return int(counts.read().split()[1])
    return 0


class Source(Protocol):
    """Where live and peak bytes come from."""

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
    """Add carpool's sentence to an uncaught out-of-memory error at a cap that the user drew, by now."""
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
    """Once a process, where its user drew a cap: whoever handles the error himself may meet it again and again."""
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
        """Whether a turn can go with nothing to wait for, and come with one word to set (native/points.c does it)."""
        return isinstance(self._source, MeterSource)

    def live_bytes(self) -> int:
        return self._source.live_bytes()

    def peak_bytes(self) -> int:
        return self._source.peak_bytes()

    def turn_began(self, *, is_learning: bool) -> None:
        self._source.reset_peak(is_learning=is_learning)

    def finish_device_work(self, *, give_back: bool) -> None:
        self._source.finish_device_work(give_back=give_back)


class Profile:
    """What the first iterations teach: which boundaries are clean, what stays between turns, what comes and goes.

    An iteration is the time between two firings of the clean boundary. The first one is not representative
    (optimizer state appears at its end), so learning ends when every point seen has fired twice. A point that
    shows up later (the optimizer of the next fold, a second model) starts it anew: the old points may never fire
    again. A point that fires once in a long while does not hold learning up for ever.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.is_learning = True
        self.points: dict[int, bool] = {}  # point to whether it is clean; empty while learning
        self.reported: tuple[int, int] | None = None  # persistent and ephemeral bytes the daemon knows of
        self.gradients: dict[int, int] = {}  # bytes of them at each optimizer's point
        self._live: dict[int, list[int]] = {}  # point to live bytes at each firing
        self._first_point: int | None = None
        self._counted = 0  # iterations counted since learning began
        self._peak_bytes = 0
        self._persistent_bytes = 0
        self._step_ns = 0
        self._last_ns = time.monotonic_ns()
        self._last_delay_ns = delay_ns()

    def observe(self, point: int) -> int:
        """Take in one firing of a point that is not known; returns how many iterations ended by it."""
        now = time.monotonic_ns()
        if not self.is_learning:
            self._begin_anew()
        if self._first_point is None:
            self._first_point = point
        firings = self._live.pop(point, [])
        firings.append(self._memory.live_bytes())
        self._live[point] = firings  # in the order of their newest firing
        counted = 1 if point == self._first_point else 0
        self._counted += counted
        if counted:
            self._note_step(now)
        if len(firings) > 1:
            self._peak_bytes = max(self._peak_bytes, self._memory.peak_bytes())
        if len(firings) >= FIRINGS_MAX or all(len(each) >= 2 for each in self._live.values()):
            counted += self._settle()
        return counted

    def _note_step(self, now: int) -> None:
        """How long the step took, without the time in which it wanted a processor and others had them all: a program
        that ends beside it would make it look twice as long (docs/design/0014-what-a-step-takes.md)."""
        all_delay_ns = delay_ns()
        took_ns, delayed_ns = now - self._last_ns, all_delay_ns - self._last_delay_ns
        self._step_ns = max(1, took_ns - delayed_ns)
        self._last_ns, self._last_delay_ns = now, all_delay_ns

    def note_away(self, away_ns: int) -> None:
        """The job had no turn for this long: that is no part of a step."""
        self._last_ns += away_ns
        if away_ns and self.is_learning:
            self._last_delay_ns = delay_ns()  # without what it waited in this step before: that may count as its own

    def _begin_anew(self) -> None:
        self.is_learning = True
        self.points.clear()
        self.gradients.clear()
        self._live = {}
        self._first_point = None
        self._counted = 0

    def _settle(self) -> int:
        """Choose the point that ends an iteration; returns how many of its firings were not counted yet."""
        regular = {point: each for point, each in self._live.items() if len(each) >= 2}
        lowest = min(each[-1] for each in regular.values())
        bound = lowest + lowest * CLEAN_SLACK_PERCENT // 100 + CLEAN_SLACK_BYTES
        # One count an iteration: of several clean points the last one ends it.
        chosen = [point for point, each in regular.items() if each[-1] <= bound][-1]
        self.points.update({point: point == chosen for point in self._live})
        self._persistent_bytes = max(self._persistent_bytes, lowest)
        self.is_learning = False
        self._memory.turn_began(is_learning=False)
        return max(0, len(regular[chosen]) - self._counted)

    def sample(self) -> tuple[int, int]:
        """Look again at a clean boundary: persistent and ephemeral bytes since the last look."""
        live, peak = self._memory.live_bytes(), self._memory.peak_bytes()
        self._memory.turn_began(is_learning=False)
        self._persistent_bytes = max(self._persistent_bytes, live)
        self._peak_bytes = max(self._peak_bytes, peak)
        needs = self.needs()
        return needs.persistent_bytes, needs.ephemeral_bytes

    def note_reported(self, needs: m.Measured) -> None:
        self.reported = (needs.persistent_bytes, needs.ephemeral_bytes)

    def trim(self) -> m.Measured:
        """Give back what the framework keeps for later, and look anew at what is left; at a boundary only."""
        self._memory.finish_device_work(give_back=True)
        give_back_heap()
        ephemeral = max(0, self._peak_bytes - self._persistent_bytes)
        self._persistent_bytes = self._memory.live_bytes()
        self._peak_bytes = self._persistent_bytes + ephemeral
        needs = self.needs()
        self.note_reported(needs)
        return needs

    def needs(self) -> m.Measured:
        overhead = min(self._memory.overhead_bytes, self._persistent_bytes)
        return m.Measured(
            persistent_bytes=self._persistent_bytes - overhead,
            ephemeral_bytes=max(0, self._peak_bytes - self._persistent_bytes),
            overhead_bytes=overhead,
            step_ns=self._step_ns,
        )
