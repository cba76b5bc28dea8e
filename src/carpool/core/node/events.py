"""What happened: facts a driver hands to `Scheduler.handle`. Past tense, frozen, ids only."""

from __future__ import annotations

from dataclasses import dataclass

from carpool.core.kernel.ids import DeviceId, JobId, Nanos, TenantId
from carpool.core.kernel.ids import Tick as Tick
from carpool.core.node.model import Account, History, JobSpec, Needs, Why
from carpool.core.node.settings import Settings, TenantTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfigured:
    """What this node runs by: the first fact of all, so that a record of the facts is complete."""

    policy: str  # of which the scheduler was made, as its user named it
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAdded:
    device: DeviceId
    capacity_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChanged:
    """An admin wants other numbers while jobs run. Those that cannot change live (settings.LIVE) stay."""

    settings: Settings
    by: str  # the user who asked


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSet:
    """From now on this is what the tenant is to have and may have. Without a name: all that have no terms of their
    own. Without terms: it has none of its own any more."""

    tenant: TenantId
    terms: TenantTerms | None
    by: str = ""  # the user who said so


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLoaded:
    """What an earlier run of a program was measured to need."""

    fingerprint: str
    history: History


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    job: JobId
    spec: JobSpec
    account: Account | None = None  # it waited in the queue of a driver that is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAdopted:
    """A job that already runs came back after the driver was restarted; `holding` if it kept its turn, `is_waiting`
    if it waits at a boundary for one."""

    job: JobId
    spec: JobSpec
    device: DeviceId
    holding: bool
    steps: int
    live_bytes: int
    needs: Needs | None
    is_parked: bool = False
    parked_bytes: int = 0
    held_for: tuple[Why, ...] = ()  # reasons that somebody asked for and nobody took back (departures.py)
    account: Account | None = None
    is_paced: bool = False
    is_waiting: bool = False
    stall_ns: Nanos = 0  # this and the next two: as in ProgressSeen
    stall_held_ns: Nanos = 0
    pause_ns: Nanos = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStarted:
    """The job's program runs; whether it takes turns is not known yet."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPutOff:
    """The job's program was not started: the machine has no descriptor, process or memory for it now."""

    job: JobId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAsked:
    """The job wants a turn; `is_paced` if its programs keep to a compute limit themselves."""

    job: JobId
    is_paced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReturned:
    """The job finished its turn at a boundary; `wants_more` if it waits for the next one."""

    job: JobId
    wants_more: bool
    steps: int  # finished since it started, in all
    stall_held_ns: Nanos = 0  # this and the next: as in ProgressSeen
    pause_ns: Nanos = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsMeasured:
    """The first turns of a job were measured, or it outgrew what was known of it."""

    job: JobId
    needs: Needs
    step_ns: Nanos | None = None
    steps_total: int | None = None  # how many steps it will have made at its end, as its loops say


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSeen:
    """What the shared page and the operating system say of a job right now; totals, not differences."""

    job: JobId
    steps: int
    cpu_ns: Nanos
    live_bytes: int
    stall_ns: Nanos = 0  # waited for its own input
    stall_held_ns: Nanos = 0  # of that: while it had its turn
    pause_ns: Nanos = 0  # had its turn and did nothing, waits for input not counted
    pending_bytes: int = 0  # what its allocations wait for, beyond `live_bytes`
    changes: int = 0  # of turn: those whose first iterations were compared with usual ones …
    change_ns: Nanos = 0  # … and what they took longer in all
    is_recount: bool = False  # some that it counted as steps were none: `steps` may be fewer than before


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetached:
    """The job goes on without taking turns."""

    job: JobId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExited:
    job: JobId
    code: int | None  # None: ended, but nobody could read its exit code
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAsked:
    """Somebody wants the job to end; `is_told` if its program knows already (a Ctrl-C reached it)."""

    job: JobId
    is_told: bool = False
    reason: str = ""
    by: str = ""  # the user who said so; empty where only one is served


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResized:
    """Somebody gives a job more or less than before; None leaves a thing as it is."""

    job: JobId
    cap_bytes: int | None = None
    weight_milli: int | None = None
    share_milli: tuple[int, int] | None = None  # of its device: guaranteed, and at most
    may_end: bool = False  # end it if it cannot do with less
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendAsked:
    """Somebody wants the job to stop at its next boundary and its memory to leave the device."""

    job: JobId
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeAsked:
    job: JobId
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateAsked:
    """Somebody wants the job to go on on another device of this node."""

    job: JobId
    device: DeviceId
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAsked:
    """Somebody has the job written to a file; its program was told."""

    job: JobId
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobParked:
    """The job's persistent bytes are on the host; `resident_bytes` is what stayed on the device."""

    job: JobId
    parked_bytes: int
    resident_bytes: int
    move_ns: Nanos
    kept: str = ""  # tensors that stayed and why, in words; empty if there are none


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUnparked:
    """Everything is where it was; the job waits for its turn."""

    job: JobId
    move_ns: Nanos


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFailed:
    """The job could not be parked, or not be brought back; it is where it was before and has lost nothing."""

    job: JobId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobForgotten:
    """Nobody asks for this ended job any more; what was learnt of its program stays."""

    job: JobId


# What people ask for that holds a job back or lets it go on. Each may come to any job that takes turns
# (lifecycle.py), and is taken in by moves/departures.py.
HoldOrder = SuspendAsked | ResumeAsked
PersonsOrder = CancelAsked | JobResized | HoldOrder | MigrateAsked | CheckpointAsked
JobEvent = (
    JobSubmitted
    | JobAdopted
    | ProgramStarted
    | StartPutOff
    | LeaseAsked
    | LeaseReturned
    | NeedsMeasured
    | ProgressSeen
    | JobDetached
    | JobExited
    | CancelAsked
    | JobResized
    | HoldOrder
    | MigrateAsked
    | CheckpointAsked
    | JobParked
    | JobUnparked
    | MoveFailed
    | JobForgotten
)
Event = NodeConfigured | DeviceAdded | SettingsChanged | TenantSet | HistoryLoaded | JobEvent | Tick
