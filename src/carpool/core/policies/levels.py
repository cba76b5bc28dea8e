"""Levels of attained service: how a cluster counts what a job has had.

On a node a turn changes hands in microseconds, so service is counted to the nanosecond. In a cluster every change of
order parks a job. There service is run time × cards, and is counted in levels: the first ends at FIRST, each next one
is several times as long. A job that outlives its level goes behind all jobs of that level, so short jobs pass long
ones without anybody knowing which is which. Many levels need cheap parking: each job is parked about once a level
(Tiresias, NSDI 2019, has two or three).

In a level those that run go before those that wait. Long jobs of one level then end one after the other; taking
turns, they would all end late. A job from the level above counts as waiting until it has outlived one decision.

Finer levels help when lengths differ widely and hurt when many long jobs are alike: those then take turns and all end
late. docs/results.md has the figures from which 4 was chosen over 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from carpool.core.kernel.ids import Nanos
from carpool.units import SECOND

FIRST = 600 * SECOND * 1000  # nanoseconds × thousandths of a card: ten minutes of one card
NEVER = 1 << 100  # more than any job attains


class Levels:
    """Where each level ends, in nanoseconds × thousandths of a card, and how jobs stand in it."""

    __slots__ = ("begins_ns", "bounds", "by_weight", "ends", "keeps_standing", "step_ns", "waits_ns")

    def __init__(
        self, ends: Sequence[int], *, by_weight: bool = False, keeps_standing: bool = False, step_ns: Nanos = 1
    ) -> None:
        self.ends = tuple(ends)
        self.bounds = (*self.ends, NEVER)
        self.begins_ns: tuple[Nanos, ...] = (0, *(end // 1000 for end in self.ends))  # of one whole card
        self.waits_ns = tuple(begin_ns + 1 for begin_ns in self.begins_ns)  # of those of a level that wait
        self.by_weight = by_weight  # what a job has had counts by its weight
        self.keeps_standing = keeps_standing  # equals go as they began and were parked, not as they came
        self.step_ns = step_ns  # a level's end is noticed at multiples of this

    @classmethod
    def growing(cls, numerator: int, denominator: int = 1, *, count: int, by_weight: bool = False) -> Levels:
        """From FIRST on, each level so many times as long as the one before."""
        ends = [FIRST]
        while len(ends) < count:
            ends.append(ends[-1] * numerator // denominator)
        return cls(ends, by_weight=by_weight)


COARSE = Levels.growing(4, count=40)  # beyond any job
FINE = Levels.growing(5, 4, count=160, by_weight=True)  # who is served least is known to a quarter
