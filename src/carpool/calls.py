"""What is asked of the daemon and what it answers, as typed values; `--json` and the tables are made from these.

They travel as JSON inside `Call` and `Reply` (docs/protocol.md). The daemon fills them in (daemon/queries.py,
daemon/orders.py), `carpool.Client` hands them out, the command line shows them. Bytes and nanoseconds are integers,
times are those of the machine's monotonic clock, a share or weight of 1000 is a whole one, and None is not known.

Nearly every field has a default: the journal keeps answers about jobs that are over, also those of an older carpool.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from carpool.units import format_bytes

ENDED = frozenset({"finished", "failed", "cancelled"})  # the states of a job that is over
ARGUMENTS_MAX = 4096  # characters of a job's arguments in a list of jobs, and of one that is over
Count = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]  # fits a word of the page and of the journal
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
Share = Annotated[int, msgspec.Meta(ge=0, le=1000)]
Word = Annotated[str, msgspec.Meta(max_length=256)]  # others see it in every list, and the daemon keeps it


# --- what is asked ----------------------------------------------------------------------------------------------


class Spec(msgspec.Struct, kw_only=True, frozen=True):
    """What a user says about a job."""

    name: Word
    tenant: Word = "default"
    weight_milli: Count = 1000
    priority: Count = 0
    cap_bytes: Count | None = None
    wait_memory_ns: Count | None = None
    on_hog: Literal["warn", "suspend", "kill"] = "suspend"
    may_park: bool = True
    may_oversubscribe: bool = False
    guaranteed_milli: Share = 0
    limit_milli: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1000
    on_orphans: Literal["keep", "end"] = "keep"
    warm: bool | None = None  # whether it may start warm; None: as the daemon was told
    steps: Count | None = None
    device: Word | None = None
    fingerprint: Word = ""  # names the program: the same again will need the same memory and time


class Inherited(msgspec.Struct, kw_only=True, frozen=True):
    """What a program has from whoever starts it, beside its directory and environment: for a job in the background,
    which is started by somebody else."""

    umask: int
    nice: int
    scheduler: int  # how the kernel treats it: SCHED_OTHER, SCHED_BATCH …
    cpus: list[int]  # the processors it may use
    limits: dict[str, tuple[int, int]]  # soft and hard, by their names in setrlimit(2); -1 is no limit
    ignored_signals: list[int]
    blocked_signals: list[int]


class Submission(msgspec.Struct, kw_only=True, frozen=True):
    """A program that becomes a job in the background."""

    spec: dict[str, object]  # a Spec; read by itself, so that what is wrong with it is said in its own words
    argv: list[str]
    cwd: str
    environment: dict[str, str]
    inherited: Inherited | None = None  # None: what the daemon has


class Join(msgspec.Struct, kw_only=True, frozen=True):
    """A process that runs already becomes a job, or one that somebody else will start. The spec is a Spec."""

    spec: dict[str, object]
    argv: list[str]
    cwd: str
    pid: Annotated[int, msgspec.Meta(ge=0, le=2**22)] = 0  # as the caller numbers it; 0: nobody yet
    patience_ns: Positive = 60 * 10**9  # how long a job that nobody is in yet waits for its first process


class Resize(msgspec.Struct, kw_only=True, frozen=True):
    """What a job may have from now on; a thing that is not said stays as it is."""

    job: str
    cap_bytes: Positive | None = None
    weight_milli: Positive | None = None
    share_milli: tuple[Share, Share] | None = None  # at least, at most
    may_end: bool = False


# --- what is answered -------------------------------------------------------------------------------------------


class Needs(msgspec.Struct, kw_only=True, frozen=True):
    """What a job was measured to need on its device."""

    persistent_bytes: int
    ephemeral_bytes: int
    overhead_bytes: int = 0


class Process(msgspec.Struct, kw_only=True, frozen=True):
    """A process of a job, by its page."""

    pid: int
    live_bytes: int = 0
    spilled_bytes: int = 0
    device_ns: int = 0


class Order(msgspec.Struct, kw_only=True, frozen=True):
    """What a person ordered about a job."""

    verb: str
    by: str
    after_ns: int  # how long the job had been here


class Job(msgspec.Struct, kw_only=True, frozen=True):
    """One job, live or over. The fields up to `orders` are the scheduler's; docs/operations.md has them."""

    id: str
    name: str = ""
    tenant: str = "default"
    state: str = ""
    device: str | None = None
    lane: str | None = None
    priority: int = 0
    weight_milli: int = 1000
    steps: int = 0
    steps_declared: int | None = None
    step_ns: int | None = None
    remaining_ns: int | None = None
    arrived_ns: int = 0
    state_ns: int = 0  # time in the present state
    served_ns: int = 0
    waited_ns: int = 0
    spent_ns: dict[str, int] = {}  # wall time since it arrived, by row
    waited_for_ns: dict[str, int] = {}  # of the row `turn`: who had it
    silent_ns: int | None = None  # how long a holder has reached no boundary; None if it holds no turn
    is_hog: bool = False
    needs: Needs | None = None
    promised_bytes: int = 0
    live_bytes: int = 0
    pending_bytes: int = 0  # what its allocations wait for
    cap_bytes: int | None = None
    guaranteed_milli: int = 0
    limit_milli: int = 1000
    is_suspended: bool = False
    leaving_for: str | None = None  # it is to be parked so that this job gets memory
    is_shrinking: bool = False  # its cap was made smaller than what it needs
    parked_bytes: int = 0
    move_ns: int = 0
    move_trouble: str = ""
    reason: str = ""  # one sentence: what it does or waits for
    moving_to: str | None = None
    departures: list[str] = []  # why it leaves or gets no turn, in the order in which they are told
    kept_on: str | None = None
    kept_bytes: int = 0
    move_refused: str = ""
    change_ns: int | None = None  # what a change of turn costs it; None while nobody knows
    quantum_ns: int | None = None  # what a turn of it lasts at least while others wait; None: it takes no turns now
    quantum_why: str = ""  # why so long, where that was chosen
    borrowed_ns: int = 0  # of its device time: as much of whole devices as was lent by other tenants
    user: str = ""  # the account that it is of; empty in answers of an older carpool
    orders: list[Order] = []  # what people ordered about it, the newest last; of a daemon that serves several
    uid: int | None = None  # the number of that account
    pids: list[int] = []
    argv: list[str] = []  # cut in a list of jobs, and once it is over
    gradient_bytes: int | None = None
    device_ns: int = 0
    processes: list[Process] = []
    orphans: list[int] = []  # pids of those that go on after its first process has ended
    unwritable: str = ""  # why it cannot be written to a file, of a job that was started with --checkpointable
    limit_loss: str = ""  # in which processes a limit of it is not kept, and why; empty while it is kept in all
    container: str = ""  # the container of its first process, as the kernel names it; empty outside of one
    start: str = ""  # how it started: "warm", or "cold: " and why; empty where nobody wanted it warm
    refusals: str | None = None  # allocations it was refused, in words, once it is over; None while it lives

    @property
    def is_over(self) -> bool:
        return self.state in ENDED


_LIVE_ONLY = ("pids", "gradient_bytes", "device_ns", "processes", "orphans", "unwritable", "limit_loss")


class Lane(msgspec.Struct, kw_only=True, frozen=True):
    """A slice of a device's bytes for ephemeral memory, and who computes on it."""

    id: str
    bytes: int = 0
    jobs: list[str] = []
    holder: str | None = None


class Device(msgspec.Struct, kw_only=True, frozen=True):
    """The bytes of one device and who runs there."""

    id: str
    capacity_bytes: int = 0
    promised_bytes: int = 0
    lanes_bytes: int = 0
    free_bytes: int = 0
    live_bytes: int = 0
    claimant: str | None = None  # for whom others are being parked
    lanes: list[Lane] = []


class DeviceStatus(Device, kw_only=True, frozen=True):
    """The same with what the machine says of it."""

    kind: str = ""
    title: str = ""


class Node(msgspec.Struct, kw_only=True, frozen=True):
    """Every job and device at one moment: `carpool ps`."""

    policy: str = ""
    host_bytes: int = 0  # parked, or reserved for it
    host_bytes_max: int | None = None
    devices: list[Device] = []
    jobs: list[Job] = []
    now_ns: int = 0


class Turn(msgspec.Struct, kw_only=True, frozen=True):
    """Whose turn it is, and how long such a turn lasts at least while others wait."""

    job: str
    device: str = ""
    quantum_ns: int = 0
    change_ns: int | None = None  # what a change of turn costs the job
    why: str = ""  # why so long, where that was chosen


class WarmParent(msgspec.Struct, kw_only=True, frozen=True):
    """A process that has imported torch and forks for programs that start warm. It is no job."""

    pid: int
    python: str = ""
    programs: int = 0  # that it has started
    memory_bytes: int = 0  # what it holds; its programs share most of that
    idle_ns: int = 0  # since it started the last one
    is_ready: bool = True  # whether it has imported torch


class Status(msgspec.Struct, kw_only=True, frozen=True):
    """The daemon, its settings and its devices: `carpool daemon status`."""

    version: str = ""
    pid: int
    run: str = ""  # the directory of its socket
    state: str = ""  # that of its journal
    policy: str = ""
    device: str = ""
    quantum_ns: int | None = 0  # None: chosen for each turn, by what a change of turn costs
    latency_ns: int = 0
    share_policy: str = ""
    hog_after_ns: int = 0
    host_bytes_max: int | None = None
    tenant_weights_milli: dict[str, int] = {}
    host_bytes: int = 0
    kept_bytes: int = 0
    uptime_ns: int = 0
    cpu_s: float = 0.0
    jobs: int = 0
    journal_bytes_max: int = 0
    journal_bytes: int = 0  # what the journal's file has now
    journal_waiting_rows: int = 0  # collected, and not in the file yet
    journal_dropped_rows: int = 0  # since the daemon's start; the disk did not take them in time
    log_dropped_lines: int = 0  # of daemon.log
    journal_trouble: str = ""
    descriptor_trouble: str = ""  # nearly all descriptors of the daemon are in use
    observers_dropped: dict[str, str] = {}  # by name: what each raised
    policy_trouble: str = ""  # that the policy failed, or is slow
    warm: bool = False  # whether its jobs may start warm unless they say otherwise
    warm_parents: list[WarmParent] = []
    devices: list[DeviceStatus] = []
    turns: list[Turn] = []  # those that are held now


class JobAnswer(msgspec.Struct, kw_only=True, frozen=True):
    """One job, where its log is, and the policy that explains its waits."""

    job: Job
    log: str = ""
    policy: str = ""


class Submitted(msgspec.Struct, kw_only=True, frozen=True):
    """The new job, and where its output goes."""

    job: Job
    log: str = ""


class Joined(msgspec.Struct, kw_only=True, frozen=True):
    """The job that somebody joins; the last answer has a page."""

    job: str
    reason: str = ""  # why it waits
    page: str = ""
    environment: dict[str, object] = {}  # as in Start
    keeps: bool = False  # the connection stays open as long as the job lives: the daemon does not see who joined


class Cancelled(msgspec.Struct, kw_only=True, frozen=True):
    """The id of the job that is being ended."""

    job: str


class CheckpointOrder(msgspec.Struct, kw_only=True, frozen=True):
    """An order to write a job to a file; its answer appears in `directory` under this number."""

    job: str
    number: int
    directory: str
    argv: list[str]


class Stopped(msgspec.Struct, kw_only=True, frozen=True):
    """The process that ends now."""

    pid: int


class Tenants(msgspec.Struct, kw_only=True, frozen=True):
    """Tenants: their keys in carpool.toml, and what each has, lends and borrows now (daemon/tenancy.py)."""

    tenants: list[dict[str, object]] = []


class Reloaded(msgspec.Struct, kw_only=True, frozen=True):
    """What the machine's daemon does otherwise since it read its settings again."""

    changed: dict[str, str] = {}  # by setting: what it was and what it is
    waits: list[str] = []  # those of them that count from the next start on


class Nothing(msgspec.Struct, kw_only=True, frozen=True):
    """It was done; there is nothing to say."""


class Change(msgspec.Struct, kw_only=True, frozen=True):
    """A job came into another state. The first changes of a stream are the states in which it found the jobs."""

    at_ns: int
    job: str
    state: str
    before: str | None = None  # None for a job that is new, or was there when the stream began
    event: str = ""  # the fact that brought it about; empty for a job that was there
    reason: str = ""  # why, in one sentence; not for turns that come and go

    @property
    def is_over(self) -> bool:
        return self.state in ENDED


class Changes(msgspec.Struct, kw_only=True, frozen=True):
    """One piece of a stream; with `end` the last one, and why."""

    changes: list[Change] = []
    end: str = ""


class UsageRow(msgspec.Struct, kw_only=True, frozen=True):
    """What a user, a tenant or a job had in some time, or what all had on one day."""

    name: str  # the user, tenant, job or day
    user: str = ""  # of a job
    tenant: str = ""  # of a job
    jobs: int = 0  # that ended in this time
    had_ns: int = 0  # device time
    waited_ns: int = 0  # for turns and memory, in the queue and parked, all its jobs together
    memory_mib_s: int = 0  # MiB that were held, times the seconds
    lent_ns: int = 0  # device time of its guaranteed part that others had
    borrowed_ns: int = 0  # device time beyond its own part


class Usage(msgspec.Struct, kw_only=True, frozen=True):
    """Who had which device for how long: `carpool usage`. The rows, idle and unknown time add up to `device_ns`."""

    by: str = "user"
    since_ns: int = 0  # since 1970; what is kept by the hour or day begins there
    until_ns: int = 0  # up to here everything is booked
    devices: list[str] = []
    device_ns: int = 0  # the time times the devices
    idle_ns: int = 0
    unknown_ns: int = 0  # no daemon ran, or it was killed before it had written what happened
    rows: list[UsageRow] = []
    trouble: str = ""  # what is wrong with the journal


class PastJob(msgspec.Struct, kw_only=True, frozen=True):
    """A job that is over, in short: a line of `carpool history`."""

    number: int
    job: str
    ended_s: float  # since 1970
    user: str = ""
    tenant: str = ""
    name: str = ""
    state: str = ""
    device: str = ""  # empty: it never got one
    wall_ns: int = 0
    had_ns: int = 0
    waited_ns: int = 0
    needs_bytes: int | None = None  # what it was measured to need
    steps: int = 0
    reason: str = ""


class History(msgspec.Struct, kw_only=True, frozen=True):
    """Jobs that are over, newest first: `carpool history`."""

    jobs: list[PastJob] = []
    has_more: bool = False  # older ones that fit the filters were left out
    trouble: str = ""  # what is wrong with the journal


class UsageAsked(msgspec.Struct, kw_only=True, frozen=True):
    """What of the usage somebody wants to know. Times are seconds since 1970."""

    by: Literal["user", "tenant", "job", "day"] = "user"
    since_s: Count = 0
    until_s: Count | None = None


class HistoryAsked(msgspec.Struct, kw_only=True, frozen=True):
    """Which ended jobs somebody wants to see; what is not said matches all."""

    user: str | None = None
    tenant: str | None = None
    name: str | None = None  # with * for any letters
    state: Literal["finished", "failed", "cancelled"] | None = None
    since_s: Count = 0
    until_s: Count | None = None
    before: Count | None = None  # a number: only older ones
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50


Answer = (
    Node
    | Status
    | JobAnswer
    | Submitted
    | Joined
    | Cancelled
    | CheckpointOrder
    | Stopped
    | Reloaded
    | Tenants
    | Nothing
    | Changes
    | Job
    | Device
    | Change
    | Usage
    | History
)


def as_dict(answer: Answer) -> dict[str, object]:
    """An answer as it travels and as `--json` shows it. What only a live job has is left out for one that is over."""
    shown: dict[str, object] = msgspec.to_builtins(answer)
    match answer:
        case Job():
            _tidy(shown)
        case JobAnswer() | Submitted():
            _tidy(shown["job"])
        case Node():
            jobs = shown["jobs"]
            assert isinstance(jobs, list)
            for job in jobs:
                _tidy(job)
    return shown


def _tidy(job: object) -> None:
    assert isinstance(job, dict)
    for name in ("refusals",) if job["refusals"] is None else _LIVE_ONLY:
        del job[name]


def cut_arguments(argv: list[str]) -> list[str]:
    """The first of them, ARGUMENTS_MAX characters together, and in place of the others how many those are."""
    if sum(map(len, argv)) + len(argv) <= ARGUMENTS_MAX:  # nearly all: the rest is for thousands of file names
        return argv
    left = ARGUMENTS_MAX
    for index, word in enumerate(argv):
        left -= len(word) + 1
        if left < 0:
            size = sum(len(each.encode(errors="surrogateescape")) for each in argv[index:])
            return [*argv[:index], f"… {len(argv) - index} more, {format_bytes(size)}"]
    return argv
