"""What must be done in the cluster: orders the core hands back. A driver performs them in their order."""

from __future__ import annotations

from dataclasses import dataclass

from carpool.core.cluster.placement.requests import Place
from carpool.core.kernel.ids import JobId, Nanos
from carpool.core.kernel.refusals import ExplainWait as ExplainWait
from carpool.core.kernel.refusals import RefuseJob as RefuseJob
from carpool.core.kernel.refusals import RejectEvent as RejectEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceJob:
    """Start the job, or go on with it if it was suspended, at these places: one for each member, in their order."""

    job: JobId
    places: tuple[Place, ...]
    is_loan: bool  # on cards that others own: they may be wanted back at any time


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendJob:
    """Take the job off its cards at its next boundary; it goes on from there later, perhaps on other cards."""

    job: JobId
    wanted_by: JobId | None  # who gets the cards; None: their node is drained
    by_ns: Nanos | None  # at the latest; None: whenever it comes to a boundary
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeJob:
    """Take the job off all its cards now: it came to no boundary in time, or one of its nodes is gone."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinJob:
    """Run the job, or go on with it, on the cards of another, side by side with it and its other guests."""

    job: JobId
    host: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveJob:
    """Take a guest off the cards of its host at its next boundary; it goes on from there later."""

    job: JobId
    host: JobId
    reason: str


Effect = RefuseJob | PlaceJob | SuspendJob | RevokeJob | JoinJob | LeaveJob | ExplainWait | RejectEvent
