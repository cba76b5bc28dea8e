"""What both schedulers say of a job or an event that does not get what it wanted: refused, rejected, waiting."""

from __future__ import annotations

from dataclasses import dataclass

from carpool.core.kernel.ids import JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseJob:
    """The job will never run here; `reason` says why and what to do."""

    job: JobId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectEvent:
    """The event makes no sense as things stand: it came twice, late, or with wrong numbers. It changed nothing."""

    job: JobId | None  # None: the event is about no job
    event: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainWait:
    """A job waits for another reason than before."""

    job: JobId
    reason: str
