"""What was measured of programs side by side."""

from __future__ import annotations

from carpool.core.cluster.events import RatesMeasured
from carpool.core.cluster.model import ClusterJob

Mixture = tuple[int, tuple[str, ...]]  # the size of each job in thousandths of a card, and the sorted programs


class Rates:
    """What was measured: the speeds of programs side by side, in thousandths of their speed alone."""

    def __init__(self) -> None:
        self._known: dict[Mixture, dict[str, int]] = {}
        self._totals: dict[Mixture, int] = {}  # summed over the members
        self._tried: set[Mixture] = set()  # including those that are being measured now

    def learn(self, event: RatesMeasured) -> None:
        mixture = (event.size_milli, event.programs)
        speeds = self._known[mixture] = dict(zip(event.programs, event.rates_milli, strict=True))
        self._totals[mixture] = sum(speeds[program] for program in event.programs)

    def find(self, group: list[ClusterJob]) -> dict[str, int] | None:
        """The speed of each program of the group; None if nobody has measured it."""
        if len(group) == 1:
            return {group[0].program: 1000}
        return self._known.get(mixture_of(group))

    def total(self, group: list[ClusterJob]) -> int | None:
        return self.total_of(mixture_of(group))

    def total_of(self, mixture: Mixture) -> int | None:
        """The summed speed of such a group; None if nobody has measured it."""
        return 1000 if len(mixture[1]) == 1 else self._totals.get(mixture)

    def note_trial(self, group: list[ClusterJob]) -> None:
        self._tried.add(mixture_of(group))

    def was_tried(self, group: list[ClusterJob]) -> bool:
        return mixture_of(group) in self._tried

    def gain(self, group: list[ClusterJob], guest: ClusterJob) -> int | None:
        """By how much the guest would raise the group's summed speed; None if that was never measured."""
        before, after = self.total(group), self.total([*group, guest])
        return None if before is None or after is None else after - before


def fault_of_rates(event: RatesMeasured) -> str:
    """What is wrong with a measurement; empty if nothing is."""
    programs, rates_milli = event.programs, event.rates_milli
    if not programs or len(programs) != len(rates_milli):
        return f"{len(programs)} programs and {len(rates_milli)} rates: one rate for each of at least one program"
    if list(programs) != sorted(programs):
        return f"the programs {', '.join(programs)} are not sorted"
    if min(rates_milli) <= 0:
        return f"a rate of {min(rates_milli)} thousandths: each is above 0"
    return ""


def mixture_of(group: list[ClusterJob]) -> Mixture:
    return group[0].size_milli, tuple(sorted([job.program for job in group]))


def join(group: Mixture, party: Mixture) -> Mixture:
    """Two groups of one size as one."""
    return group[0], tuple(sorted(group[1] + party[1]))
