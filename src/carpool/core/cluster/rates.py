"""What was measured of programs side by side."""

from __future__ import annotations

from carpool.core.cluster.events import RatesMeasured
from carpool.core.cluster.model import Job

Mixture = tuple[int, tuple[str, ...]]  # the size of each job in thousandths of a card, and the sorted programs


class Rates:
    """What was measured: the speeds of programs side by side, in thousandths of their speed alone."""

    def __init__(self) -> None:
        self._known: dict[Mixture, dict[str, int]] = {}
        self._tried: set[Mixture] = set()  # including those that are being measured now

    def learn(self, event: RatesMeasured) -> None:
        self._known[event.size_milli, event.programs] = dict(zip(event.programs, event.rates_milli, strict=True))

    def find(self, group: list[Job]) -> dict[str, int] | None:
        """The speed of each program of the group; None if nobody has measured it."""
        if len(group) == 1:
            return {group[0].program: 1000}
        return self._known.get(_mixture(group))

    def total(self, group: list[Job]) -> int | None:
        speeds = self.find(group)
        return None if speeds is None else sum(speeds[job.program] for job in group)

    def note_trial(self, group: list[Job]) -> None:
        self._tried.add(_mixture(group))

    def was_tried(self, group: list[Job]) -> bool:
        return _mixture(group) in self._tried

    def gain(self, group: list[Job], guest: Job) -> int | None:
        """By how much the guest would raise the group's summed speed; None if that was never measured."""
        before, after = self.total(group), self.total([*group, guest])
        return None if before is None or after is None else after - before


def _mixture(group: list[Job]) -> Mixture:
    return group[0].size_milli, tuple(sorted(job.program for job in group))
