"""What changes of turn cost, seen in the stamps of the iterations that took turns: turns, and their first iterations.

It is the same measure that the agent keeps (agent/turns/hot_path.py), made afterwards from outside: what the first
CHANGE_STEPS iterations of a turn took beyond usual ones. A usual one is the median of all. The first turn of a job is
left out: its program warms up in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from carpool.wire.protocol import CHANGE_STEPS

Stamps = Sequence[tuple[int, int]]  # the first and the last operation of each iteration


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """The turns that some jobs took with each other."""

    count: int
    length_ns: int  # of a turn, the median
    change_ns: int  # what the first iterations of a turn took longer, the mean
    step_ns: int  # a usual iteration


def turns_of(jobs: Sequence[Stamps]) -> Turns:
    """From the iterations of all jobs that had one device together."""
    turns = _cut(jobs)
    steps = [_steps(stamps) for stamps in jobs]
    usual = [median(each) if each else 0 for each in steps]
    begun: set[int] = set()
    costs = []
    for owner, stamps in turns:
        if owner in begun:
            first = stamps[: CHANGE_STEPS + 1]
            spans = _steps(first) or [first[0][1] - first[0][0]]
            costs.append(sum(span - usual[owner] for span in spans))
        begun.add(owner)
    return Turns(
        count=len(turns),
        length_ns=round(median(stamps[-1][1] - stamps[0][0] for _, stamps in turns)),
        change_ns=round(mean(costs)) if costs else 0,
        step_ns=round(median(span for each in steps for span in each)) if any(steps) else 0,
    )


def _steps(stamps: Stamps) -> list[int]:
    """How long each iteration took, but for the last: from its first operation to that of the next."""
    return [after[0] - before[0] for before, after in zip(stamps, stamps[1:], strict=False)]


def _cut(jobs: Sequence[Stamps]) -> list[tuple[int, list[tuple[int, int]]]]:
    """Whose turn it was, and the iterations in it, one turn after another."""
    turns: list[tuple[int, list[tuple[int, int]]]] = []
    for stamp, owner in sorted((stamp, owner) for owner, stamps in enumerate(jobs) for stamp in stamps):
        if not turns or turns[-1][0] != owner:
            turns.append((owner, []))
        turns[-1][1].append(stamp)
    return turns
