"""What must be done: orders the core hands back. A driver performs them in their order."""

from __future__ import annotations

from dataclasses import dataclass

from carpool.core.kernel.ids import DeviceId, JobId, LaneId
from carpool.core.kernel.refusals import ExplainWait as ExplainWait
from carpool.core.kernel.refusals import RefuseJob as RefuseJob
from carpool.core.kernel.refusals import RejectEvent as RejectEvent
from carpool.core.node.model import History, HogStep, JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class StartJob:
    """Start the job's process on this device."""

    job: JobId
    device: DeviceId


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCap:
    """From now on all processes of the job together may hold this many bytes."""

    job: JobId
    cap_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCompute:
    """From now on the job's programs may use this part of the device's time, in thousandths; None: no limit."""

    job: JobId
    limit_milli: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantLease:
    """The job may compute; if the lane is shared it gives its scratch memory back with the turn."""

    job: JobId
    lane: LaneId
    lane_bytes: int
    is_shared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallLease:
    """Ask the job to give its turn back at its next clean boundary."""

    job: JobId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeLease:
    """Take the turn of a job that stopped computing; it must ask before it computes again."""

    job: JobId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DenyMemory:
    """Allocations of the job that wait now get no memory; its program is told why and gets its framework's error."""

    job: JobId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkJob:
    """Move the waiting job's persistent bytes to the host, at most so many; answered by JobParked or MoveFailed."""

    job: JobId
    limit_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnparkJob:
    """Bring the job's bytes back; answered by JobUnparked or MoveFailed."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveJob:
    """The job has moved from one device to another: it is counted there, also after a restart of the driver."""

    job: JobId
    source: DeviceId
    device: DeviceId


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimJob:
    """Let the waiting job give back what it can spare; answered by NeedsMeasured."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopJob:
    """End the job's processes."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseJob:
    """The job is over; free what the driver keeps for it."""

    job: JobId
    state: JobState
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NameHog:
    """A job was asked for its turn and has not reached a boundary for far longer than usual; what is done."""

    job: JobId
    step: HogStep
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeLane:
    """A lane was opened, resized, or closed (0 bytes and no jobs)."""

    device: DeviceId
    lane: LaneId
    lane_bytes: int
    jobs: tuple[JobId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberJob:
    """Keep what was learnt for the next job with this fingerprint."""

    fingerprint: str
    history: History


Effect = (
    RefuseJob
    | StartJob
    | SetCap
    | SetCompute
    | GrantLease
    | RecallLease
    | RevokeLease
    | DenyMemory
    | ParkJob
    | UnparkJob
    | MoveJob
    | TrimJob
    | StopJob
    | CloseJob
    | ExplainWait
    | NameHog
    | ResizeLane
    | RememberJob
    | RejectEvent
)
