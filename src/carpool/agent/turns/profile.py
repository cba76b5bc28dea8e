"""What the first iterations of a program teach: its boundaries, its memory, how long a step takes, and how many
there will be."""

from __future__ import annotations

import contextlib
import time

from carpool.agent.memory import Memory, give_back_heap
from carpool.agent.turns.loops import Lengths
from carpool.wire import messages as m

CLEAN_SLACK_PERCENT = 5
CLEAN_SLACK_BYTES = 1 << 20
FIRINGS_MAX = 32  # learning ends when one point fired this often, whatever became of the others


def delay_ns() -> int:
    """How long this thread wanted a processor and had none, since it began; 0 on a kernel that does not count it."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/thread-self/schedstat") as counts:
        return int(counts.read().split()[1])
    return 0


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
        self._lengths = Lengths()
        self._steps_total = 0  # at the program's end, as its loops said when learning ended; 0 if they did not
        self._last_ns = time.monotonic_ns()
        self._last_delay_ns = delay_ns()

    def observe(self, point: int) -> int:
        """Take in one firing of a point that is not known; returns how many iterations ended by it."""
        now = time.monotonic_ns()
        if not self.is_learning:
            self.begin_anew()
        if self._first_point is None:
            self._first_point = point
        firings = self._live.pop(point, [])
        firings.append(self._memory.live_bytes())
        self._live[point] = firings  # in the order of their newest firing
        counted = 1 if point == self._first_point else 0
        self._counted += counted
        if counted:
            self._note_step(now)
            self._lengths.look()
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

    def begin_anew(self) -> None:
        """What was learnt holds no longer: other points end the iterations."""
        self.is_learning = True
        self.points.clear()
        self.gradients.clear()
        self._live = {}
        self._first_point = None
        self._counted = 0
        self._lengths = Lengths()

    def note_steps(self, steps: int) -> None:
        """Learning ended after so many steps of the program, in all."""
        left = self._lengths.steps_left()
        self._steps_total = steps + left if left is not None else 0

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
            steps_total=self._steps_total,
        )
