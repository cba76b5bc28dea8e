"""What happened in the cluster: facts a driver hands to `ClusterScheduler.handle`. Past tense, frozen, ids only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carpool.core.cluster.placement.requests import NodeSpec, Place, Request
from carpool.core.kernel.ids import WEIGHT_ONE, JobId, Nanos, TenantId
from carpool.core.kernel.ids import Tick as Tick

DEFAULT_TENANT = TenantId("default")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDescribed:
    """What a job is, whether it comes or is found. All of its members run at once, or none."""

    job: JobId
    members: tuple[Request, ...]  # one for each node it wants a part of
    tenant: TenantId = DEFAULT_TENANT
    priority: int = 0
    service_ns: Nanos | None = None  # how long it runs alone, if anybody knows
    program: str = ""  # equal programs behave alike beside others
    weight_milli: int = WEIGHT_ONE  # of its part of what its tenant has, under fair
    turn_ns: Nanos = 0  # the longest it goes without a boundary at which it can be suspended


@dataclass(frozen=True, slots=True, kw_only=True)
class JobArrived(JobDescribed):
    """A job wants to run. Told in the order of arrival, also after a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFound(JobDescribed):
    """A job runs there already: the scheduler before this one placed it. A fact, also where it does not fit.

    Its node may be unknown yet: it is then expected, and gets nobody until NodeAdded comes.
    """

    places: tuple[Place, ...]  # one for each member, in their order
    attained_ns: Nanos = 0  # run time it had until now, as if alone
    is_leaving: bool = False  # it was told to leave, and JobSuspended will come
    host: JobId | None = None  # it runs beside this job, on the same cards; the host is told first


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSuspended:
    """The job came to a boundary after SuspendJob and is off its cards. Not sent where `parks_at_once` is set."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQueued:
    """The node has taken the job, and keeps it in its own queue for now: it is placed, and does not run."""

    job: JobId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted:
    """The job left the queue of its node, and runs. Not sent of a job that was not queued there."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRefused:
    """A node will never run the job: it is off all its cards, and is not placed on this node again."""

    job: JobId
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLeft:
    """The job is off its cards without having been told to: it was sent away there, or has to begin again."""

    job: JobId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """The job is over, by itself or because somebody ended it; its cards are free."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLost:
    """Running jobs were set back by so many nanoseconds of work. Only noted: the next event decides with it."""

    lost_ns: Mapping[JobId, Nanos]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesMeasured:
    """How fast each of some programs goes beside the others, in thousandths of its speed alone; in the same order."""

    size_milli: int  # of each of the jobs, in thousandths of a card
    programs: tuple[str, ...]  # sorted
    rates_milli: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGiven:
    """From now on the tenant owns this much of the cluster, in thousandths of a card."""

    tenant: TenantId
    share_milli: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGiven:
    """From now on the tenant counts for so much under fair, in thousandths; one that nobody named counts 1000."""

    tenant: TenantId
    weight_milli: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareWithdrawn:
    """The tenant owns nothing any more. Its jobs that are here go on as loans, new ones are refused."""

    tenant: TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAdded:
    """A node is there from now on; one that was there before has its old number again."""

    node: NodeSpec
    is_cordoned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRemoved:
    """The node is gone, and with it whatever ran there. What a job lost by that comes as WorkLost."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCordoned:
    """Nobody new is placed on the node, or on this card of it. Who is there stays."""

    name: str
    card: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrained:
    """The node, or this card of it, is cordoned, and its jobs leave it at their next boundary."""

    name: str
    card: str | None = None
    by_ns: Nanos | None = None  # who is there still is then taken off at once; None: never


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUncordoned:
    """The node, or this card of it, may be used again."""

    name: str
    card: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncStarted:
    """What is known may be incomplete from now on, as after a restart: facts are noted, nothing is decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncFinished:
    """All nodes, shares and jobs have been told. The decision at once moves no job that was found."""


JobEvent = JobArrived | JobFound | JobQueued | JobStarted | JobRefused | JobLeft | JobSuspended | JobEnded
NodeEvent = NodeAdded | NodeRemoved | NodeCordoned | NodeDrained | NodeUncordoned
TenantEvent = ShareGiven | ShareWithdrawn | WeightGiven
Event = JobEvent | NodeEvent | TenantEvent | WorkLost | RatesMeasured | SyncStarted | SyncFinished | Tick
