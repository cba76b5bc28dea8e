"""Frozen pictures of the state: what ps, top and explain show."""

from __future__ import annotations

from dataclasses import dataclass

from carpool.core.kernel.ids import DeviceId, JobId, LaneId, Nanos, TenantId
from carpool.core.node.model import JobState, Needs, Order, Why
from carpool.core.node.settings import TenantTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPicture:
    """One job as people see it."""

    id: JobId
    name: str
    tenant: TenantId
    state: JobState
    device: DeviceId | None
    lane: LaneId | None
    priority: int
    weight_milli: int
    steps: int
    steps_declared: int | None
    step_ns: Nanos | None
    remaining_ns: Nanos | None
    arrived_ns: Nanos
    state_ns: Nanos  # time in the present state
    served_ns: Nanos
    waited_ns: Nanos  # for memory, also in the queue and parked, for turns, and until its limit lets it have one
    spent_ns: dict[str, Nanos]  # wall time since it arrived, by row (lifecycle.py)
    waited_for_ns: dict[JobId, Nanos]  # of the row `turn`: who had it
    silent_ns: Nanos | None  # how long a holder has made no step; None if it holds no turn
    is_hog: bool
    needs: Needs | None
    promised_bytes: int
    live_bytes: int
    pending_bytes: int  # what its allocations wait for
    cap_bytes: int | None
    guaranteed_milli: int  # of its device, as the share policy made it
    limit_milli: int
    is_suspended: bool
    leaving_for: JobId | None  # it is to be parked, or is being parked, so that this job gets memory
    is_shrinking: bool  # its cap was made smaller than what it needs
    parked_bytes: int
    move_ns: Nanos
    move_trouble: str
    reason: str
    moving_to: DeviceId | None = None  # asked to go there, or counted there and not arrived
    departures: tuple[Why, ...] = ()  # why it leaves or gets no turn, in the order in which they are told
    kept_on: DeviceId | None = None  # where its room is kept until it has arrived
    kept_bytes: int = 0
    move_refused: str = ""  # why its last move to another device came to nothing
    change_ns: Nanos | None = None  # what a change of turn costs it; None while nobody knows
    quantum_ns: Nanos | None = None  # what a turn of it lasts at least while others wait; None: it takes no turns now
    quantum_why: str = ""  # why so long, where that was chosen
    borrowed_ns: Nanos = 0  # of its device time: as much of whole devices as was lent by other tenants
    user: str = ""  # whose it is; empty where only one account is served
    orders: tuple[Order, ...] = ()  # what people ordered about it, the newest last


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePicture:
    id: LaneId
    bytes: int
    jobs: tuple[JobId, ...]
    holder: JobId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePicture:
    id: DeviceId
    capacity_bytes: int
    promised_bytes: int
    lanes_bytes: int
    free_bytes: int
    live_bytes: int
    claimant: JobId | None  # for whom others are being parked
    lanes: tuple[LanePicture, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPicture:
    """One tenant as people see it: what is said of it, and what it has, lends and borrows on all devices."""

    id: TenantId
    terms: TenantTerms
    jobs: int  # started and not over
    promised_bytes: int
    lent_ns: Nanos  # of whole devices, since the scheduler began
    borrowed_ns: Nanos
    lent_bytes: int = 0  # of memory, at this moment
    borrowed_bytes: int = 0
    lent_byte_ns: int = 0  # bytes × nanoseconds, since the scheduler began
    borrowed_byte_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePicture:
    policy: str
    host_bytes: int  # parked, or reserved for it
    host_bytes_max: int | None
    devices: tuple[DevicePicture, ...]
    jobs: tuple[JobPicture, ...]
