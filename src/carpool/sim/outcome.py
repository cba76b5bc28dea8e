"""What a simulated run was: one record a job, and the totals of the devices. Both engines hand back the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """A job had a place (a lane, a card) from one moment to another; for the timeline."""

    place: str
    job: str
    from_ns: int
    to_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """How one job fared."""

    id: str
    tenant: str
    submit_ns: int
    start_ns: int  # when it first computed
    end_ns: int
    service_ns: int  # its run time alone
    cards_milli: int = 1000  # thousandths of a card it takes while it runs
    preemptions: int = 0

    @property
    def completion_ns(self) -> int:
        return self.end_ns - self.submit_ns

    @property
    def queued_ns(self) -> int:
        """All the time it did not run: completion less run time alone."""
        return max(0, self.completion_ns - self.service_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One policy's run over one workload."""

    policy: str
    jobs: tuple[JobOutcome, ...]  # in order of arrival; those that never ran are in `refused`
    cards: int
    busy_milli_ns: int  # thousandths of cards × nanoseconds in which they computed
    capacity_bytes: int = 0  # of all cards; 0: not known
    held_byte_ns: int = 0  # bytes × nanoseconds held
    refused: tuple[tuple[str, str], ...] = ()  # job and reason
    spans: tuple[Span, ...] = ()
    busy_cards: tuple[tuple[int, int], ...] = ()  # (time, thousandths of cards in use from then on)
    events: int = 0

    @property
    def begin_ns(self) -> int:
        return min((job.submit_ns for job in self.jobs), default=0)

    @property
    def makespan_ns(self) -> int:
        return max((job.end_ns for job in self.jobs), default=0) - self.begin_ns
