"""What the scheduler knows: jobs, devices, lanes and leases. Plain data; the rules live in the other modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from carpool.core.kernel.ids import SHARE_ONE, WEIGHT_ONE, DeviceId, JobId, LaneId, Nanos, TenantId


class JobState(StrEnum):
    QUEUED = "queued"  # accepted; its process is not started because there is no room yet
    STARTING = "starting"  # its process runs but has not asked for a turn
    WAITING = "waiting"  # resident and wants a turn
    PROFILING = "profiling"  # holds one of its first turns, alone on the device, while its needs are measured
    RUNNING = "running"  # holds a turn
    BLOCKED = "blocked"  # inside a turn that was taken from it: an allocation of it waits for memory
    IDLE = "idle"  # resident and wants no turn now: loads data, saves, or stopped computing
    PARKING = "parking"  # blocked at a boundary while its persistent bytes are copied to the host
    PARKED = "parked"  # blocked at a boundary; its persistent bytes are on the host
    UNPARKING = "unparking"  # its bytes are promised again and are being copied back
    UNMANAGED = "unmanaged"  # runs outside carpool's turns; its bytes still count
    FINISHED = "finished"  # ended by itself with exit code 0
    FAILED = "failed"  # ended by itself otherwise, or was refused
    CANCELLED = "cancelled"  # ended because somebody asked for it

    __hash__ = str.__hash__  # the one of Enum is Python, and every decision looks up states many times


# What every decision asks of every job: a member looked up in its class costs 0.1 µs, ten times a name of a module.
WAITING: Final = JobState.WAITING
BLOCKED: Final = JobState.BLOCKED
STARTING: Final = JobState.STARTING
IDLE: Final = JobState.IDLE
PARKED: Final = JobState.PARKED
UNMANAGED: Final = JobState.UNMANAGED

ENDED = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED})
RESIDENT = frozenset(JobState) - ENDED - {JobState.QUEUED}
AWAY = frozenset({JobState.PARKING, JobState.PARKED, JobState.UNPARKING})
# Where a job's wall time goes, by its state; every state but the ends has a row, so the rows add up (A4).
# lifecycle.py tells apart further: a waiting job that lacks memory, or has had what its limit lets it
# have, what its own input took, and what it had a turn for and did not use ("unused").
ROWS = {
    JobState.QUEUED: "memory",
    JobState.STARTING: "start",
    JobState.WAITING: "turn",
    JobState.PROFILING: "run",
    JobState.RUNNING: "run",
    JobState.BLOCKED: "memory",
    JobState.IDLE: "idle",
    JobState.PARKING: "move",
    JobState.PARKED: "parked",
    JobState.UNPARKING: "move",
    JobState.UNMANAGED: "unmanaged",
}
BEFORE_TURNS = frozenset({"memory", "start"})  # the rows of a job that has not asked for a turn yet
HOLDING = frozenset({JobState.PROFILING, JobState.RUNNING})
WANTING = HOLDING | {JobState.WAITING, JobState.BLOCKED}


class HogStep(StrEnum):
    """What was done about a job that does not reach a boundary (hogs.py)."""

    WARNED = "warned"  # it is named
    LAST = "put last"  # others go first for a while, once it gives its turn back
    SENT_AWAY = "sent away"  # it leaves the device at its next boundary
    ENDED = "ended"


class Why(StrEnum):
    """Why a job leaves its device or is held back there; moves/departures.py has a row for each, in this order."""

    SUSPENDED = "suspended"  # somebody asked that it stops until it is resumed
    SENT_AWAY = "sent away"  # it kept others waiting too long
    MIGRATES = "migrates"  # it goes on on another device
    LENT = "lent"  # what it has is on loan, and a job of the tenant that lent it wants it
    ABOVE = "above"  # its tenant may have less memory than its jobs hold
    MAKES_ROOM = "makes room"  # a job that the policy puts before it gets its memory
    GIVES_WAY = "gives way"  # an allocation that waits gets its memory
    TOO_LARGE = "too large"  # it needs more than its new cap
    SHRINKS = "shrinks"  # it gives back what it can spare, to keep its new cap

    __hash__ = str.__hash__


# In its own code, without a turn: such a job rests, unless it is held back or an allocation of it waits.
OUTSIDE = frozenset({STARTING, IDLE, UNMANAGED})
FOR_CLAIMANT = frozenset({Why.MAKES_ROOM, Why.LENT})  # reasons for which one job leaves for another
HELD_ONLY = frozenset({Why.SHRINKS})  # reasons that hold a job back and do not make it leave
ASKED_FOR = frozenset({Why.SUSPENDED})  # somebody asked and waits for it; a queued job does not start meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """One reason of one job, and what belongs to it."""

    since_ns: Nanos = 0
    whom: JobId | None = None  # MAKES_ROOM, LENT: for whom
    lender: TenantId | None = None  # LENT: whose part it is
    to: DeviceId | None = None  # MIGRATES: where it goes on
    is_told: bool = False  # SHRINKS: its program was told to
    may_end: bool = False  # SHRINKS: it is ended if it cannot do with less


class LeaseState(StrEnum):
    HELD = "held"  # granted; the job may compute
    RECALLED = "recalled"  # the job was told to give it back at its next boundary

    __hash__ = str.__hash__


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a job was measured to need on a device."""

    persistent_bytes: int
    ephemeral_bytes: int
    overhead_bytes: int = 0  # the framework's own share (a context, a loaded library's heap)

    @property
    def resident_bytes(self) -> int:
        """What stays on the device between turns: the job's term in L1."""
        return self.persistent_bytes + self.overhead_bytes

    @property
    def total_bytes(self) -> int:
        """The most it holds at once."""
        return self.resident_bytes + self.ephemeral_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is remembered of a finished job, for the next one with the same fingerprint."""

    needs: Needs | None
    steps: int
    step_ns: Nanos | None
    served_ns: Nanos


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a person ordered about a job."""

    verb: str
    by: str  # the user who did
    after_ns: Nanos  # how long the job had been here


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where a job's time went until `at_ns`, and what it did then: outlives the driver that kept it."""

    arrived_ns: Nanos
    at_ns: Nanos
    row: str | None
    row_since_ns: Nanos
    spent_ns: dict[str, Nanos]
    waited_for_ns: dict[JobId, Nanos]
    served_ns: Nanos
    steps: int = 0
    orders: tuple[Order, ...] = ()
    borrowed_ns: Nanos = 0  # of `served_ns`: as much of whole devices as other tenants had lent


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What the user said about a job."""

    name: str
    tenant: TenantId = TenantId("default")
    weight_milli: int = WEIGHT_ONE
    priority: int = 0
    cap_bytes: int | None = None
    wait_memory_ns: Nanos | None = None  # how long an allocation may wait for room under the cap, inside the program
    on_hog: str = "suspend"  # how far to go if it stops reaching boundaries: warn, suspend or kill
    may_park: bool = True  # its memory may leave the device and come back
    may_oversubscribe: bool = False  # what has no room is managed memory, inside the program
    guaranteed_milli: int = 0  # the part of its device it is to have when it wants it …
    limit_milli: int = SHARE_ONE  # … and the part it may have at most
    steps: int | None = None
    device: DeviceId | None = None
    fingerprint: str = ""
    user: str = ""  # whose it is, by the name of the account; empty where only one account is served


@dataclass(slots=True, kw_only=True)
class Lease:
    """A turn that was granted and not yet returned."""

    state: LeaseState
    lane: LaneId
    granted_ns: Nanos
    recalled_ns: Nanos | None = None
    hog_steps: int = 0  # how many of the steps against a hog were taken, or need not be considered any more
    hog_step: HogStep | None = None  # the last one taken


class Waits(NamedTuple):
    """How long a job waited though nobody else kept it."""

    stall_ns: Nanos = 0  # for its own input, in all
    stall_held_ns: Nanos = 0  # of that: while it had its turn
    pause_ns: Nanos = 0  # it had its turn and did nothing, waits for input not counted


class Changes(NamedTuple):
    """Changes of turn whose cost a job's program measured: its first iterations after them took so much longer."""

    number: int = 0
    all_ns: Nanos = 0  # what they cost in all
    each_ns: Nanos | None = None  # what one costs of late; None while nobody knows


class Mark(NamedTuple):
    """A job's progress at a moment since which the same jobs have been running; one is made at every grant."""

    steps: int
    served_ns: Nanos
    mates: tuple[JobId, ...]  # the other holders of its device


@dataclass(slots=True, kw_only=True)
class Memory:
    """A job's bytes; memory/ledger.py alone changes them."""

    needs: Needs | None = None  # learnt; None until the first turns were measured
    measured_bytes: int | None = None  # both kinds together, as last measured; `needs` has a margin beyond it
    is_measured: bool = False  # in this run: until then `needs` is what an earlier one needed
    promised_bytes: int = 0  # this job's term in the ledger
    cap_sent_bytes: int | None = None
    live_bytes: int = 0
    pending_bytes: int = 0  # what its allocations wait for
    is_given: bool = False  # in this turn it has what they waited for, promised to it until the turn ends (W2)
    asked_ns: Nanos = 0  # since when they do
    denied_ns: Nanos | None = None  # when they were told that there is no memory
    denial: str = ""  # what they were told last
    parked_bytes: int = 0  # its term in the host budget: reserved when it is told to park, then what it moved
    stayed_bytes: int = 0  # of a parked job: what did not leave the device


@dataclass(slots=True, kw_only=True)
class Service:
    """The device time a job has had, and what it did with it; accounts.py alone changes it."""

    steps: int = 0
    steps_total: int | None = None  # at its end, as its loops say
    step_ns: Nanos | None = None
    last_step_ns: Nanos | None = None  # when `steps` last grew
    last_active_ns: Nanos = 0  # when it last made a step or used its processor
    looked_ns: Nanos = 0  # when a holder was last looked at
    silent_ns: Nanos = 0  # how long it was silent until then, as far as it was looked at
    cpu_ns: Nanos = 0
    served_ns: Nanos = 0  # device time it held
    charged_ns: Nanos = 0  # up to when its held time is already charged
    waited_for_ns: dict[JobId, Nanos] = field(default_factory=dict)  # of its row `turn`: who had it meanwhile
    waits: Waits = Waits()  # for itself: when nobody else kept it
    idle_ns: Nanos = 0  # both kinds of idle turns, as far as they are not charged (A6)
    is_early: bool = False  # it wanted no more when its last turn ended
    changes: Changes = Changes()  # of turn, and what they cost it
    level: int = 0  # weighted device time, for fair sharing within its tenant
    mark: Mark | None = None  # where the present measurement of its step time began
    solo_step_ns: Nanos | None = None  # step time while no other job ran on its device
    packed_step_ns: dict[JobId, Nanos] = field(default_factory=dict)  # step time beside one other job


@dataclass(slots=True, kw_only=True)
class WallTime:
    """Where a job's wall time goes; lifecycle.py alone changes it."""

    row: str | None = ROWS[JobState.QUEUED]  # where it goes now; None when the job is over
    row_since_ns: Nanos = 0
    spent_ns: dict[str, Nanos] = field(default_factory=dict)  # until `row_since_ns`, by row
    orders: tuple[Order, ...] = ()  # the newest that people gave, the latest last


@dataclass(slots=True, kw_only=True)
class Part:
    """A tenant's part of one device's time; turns/parts.py alone changes it."""

    tenant: TenantId
    guaranteed_milli: int = 0
    limit_milli: int = SHARE_ONE
    owed_from_ns: Nanos = 0  # when the guarantee next owes the tenant a turn
    free_from_ns: Nanos = 0  # when the ceiling next lets it have one
    borrowed: int = 0  # of others' parts, in nanoseconds × thousandths
    lent_before: int = 0  # the same, of its own, until …
    held_from_ns: Nanos = 0  # … the device had been held for so long
    wanted_ns: Nanos = 0  # time held since then while the tenant wanted turns


@dataclass(slots=True, kw_only=True)
class Loan:
    """What a tenant lends and borrows of one device's memory; moves/lending.py alone changes it."""

    lent_bytes: int = 0  # of its part, since bytes were last settled …
    borrowed_bytes: int = 0  # … and beyond it
    lent_byte_ns: int = 0  # until then
    borrowed_byte_ns: int = 0


@dataclass(slots=True, kw_only=True)
class Share:
    """A job's part of its device, as the share policy made it; turns/shares.py alone changes it."""

    guaranteed_milli: int = 0
    limit_milli: int = SHARE_ONE
    told_milli: int | None = None  # what its programs know of the limit
    owed_from_ns: Nanos = 0  # when the guarantee next owes it a turn
    free_from_ns: Nanos = 0  # when the limit next lets it have one
    is_paced: bool = False  # its programs keep to the limit themselves
    part: Part | None = (
        None  # its tenant's, where tenants have parts of the device; turns/parts.py alone changes this …
    )
    borrowed: int = 0  # … and this: time of other tenants' parts that it had, in nanoseconds × thousandths


@dataclass(slots=True, kw_only=True)
class Move:
    """How a job's memory comes and goes; moves/departures.py alone changes it."""

    came_ns: Nanos = 0  # when its memory was last complete on the device: its first wish for a turn, or its return
    took_ns: Nanos = 0  # how long its last copy took, out or in
    retry_ns: Nanos = 0  # a move that failed is not tried again before this
    trouble: str = ""  # why the last move failed; empty after one that went well
    kept: str = ""  # tensors that stayed on the device at the last one, and why
    fails: int = 0  # how often in a row it could not be parked for another
    source: DeviceId | None = None  # counted on another device but not arrived: where its room is kept (V2)
    refused: str = ""  # why the last move to another device came to nothing


@dataclass(slots=True, kw_only=True)
class Ending:
    """Who wants the job to end; lifecycle.py alone changes it."""

    is_asked: bool = False  # somebody asked for its end
    reason: str = ""  # why the core ended it


@dataclass(slots=True, kw_only=True)
class Job:
    """One job. Every field is stored to in one module, its owner; the records name theirs."""

    id: JobId
    spec: JobSpec
    arrived_ns: Nanos
    state: JobState = JobState.QUEUED
    state_since_ns: Nanos = 0
    wanting_since_ns: Nanos = 0  # since when it has wanted a turn, parked or not
    device: DeviceId | None = None
    lane: LaneId | None = None
    lease: Lease | None = None
    history: History | None = None
    memory: Memory = field(default_factory=Memory)
    service: Service = field(default_factory=Service)
    wall: WallTime = field(default_factory=WallTime)
    share: Share = field(default_factory=Share)
    move: Move = field(default_factory=Move)
    ending: Ending = field(default_factory=Ending)
    departures: dict[Why, Departure] = field(default_factory=dict)  # why it is held back; empty: it is not
    rests_until_ns: Nanos = 0  # it was a hog: until then others go first
    is_outlook_told: bool = False  # its user heard that others are to be parked for it
    reason: str = ""  # why it waits in the queue, runs unmanaged, or ended


@dataclass(slots=True, kw_only=True)
class Lane:
    """A slice of a device's bytes for ephemeral memory; one of its jobs runs at a time."""

    id: LaneId
    bytes: int = 0
    jobs: list[JobId] = field(default_factory=list)
    lively: dict[JobId, None] = field(default_factory=dict)  # of its jobs all but those that rest (L7)
    holder: JobId | None = None
    successor: JobId | None = None  # who gets the lane when its recalled turn comes back (D5)


@dataclass(slots=True, kw_only=True)
class Device:
    id: DeviceId
    capacity_bytes: int
    lanes: dict[LaneId, Lane] = field(default_factory=dict)
    promised: dict[JobId, int] = field(default_factory=dict)  # the persistent side of L1
    kept: dict[JobId, int] = field(default_factory=dict)  # room of jobs that left for another device (V2)
    lively: dict[JobId, None] = field(default_factory=dict)  # all jobs of the device but those that rest (L7)
    owed: tuple[JobId, ...] = ()  # who wanted room of its tenant's part when bytes were last settled (N20)
    tenants: dict[TenantId, Tenant] = field(default_factory=dict)
    tenants_floor: int = 0  # no tenant begins to want turns below this level; never falls
    lanes_made: int = 0
    claimant: JobId | None = None  # the job for which others are being parked (R3)
    moved_ns: Nanos = 0  # what moving has cost since the last quiet span began
    quiet_ns: Nanos = 0  # how long that span is
    quiet_until_ns: Nanos = 0  # and its end (R4)
    moves_bytes: int = 0  # of all moves so far, there and back …
    moves_ns: Nanos = 0  # … and what they took: how fast moving is here
    has_shares: bool = False  # some job on it, or some tenant, has a guarantee or a limit
    parts: dict[TenantId, Part] = field(default_factory=dict)  # of the tenants; empty where none has one
    loans: dict[TenantId, Loan] = field(default_factory=dict)  # of memory; empty where nobody is guaranteed any
    loans_ns: Nanos = 0  # until when they are counted
    held_ns: Nanos = 0  # how long jobs have held it while tenants had parts
    is_touched: bool = True  # who holds which bytes, or who wants them, changed since that was last settled
    is_lent: bool = False  # an allocation was given what it waited for since then (W2)


@dataclass(slots=True, kw_only=True)
class Tenant:
    """One tenant's account on one device."""

    id: TenantId
    weight_milli: int = WEIGHT_ONE
    level: int = 0  # device time of all its jobs, by its weight
    jobs_floor: int = 0  # no job of it begins to want turns below this level; never falls


def took_no_turns(steps: int, spent_ns: Mapping[str, Nanos]) -> bool:
    """Whether a job that is over, with such an account, ran and never asked for a turn."""
    return not steps and "start" in spent_ns and spent_ns.keys() <= BEFORE_TURNS
