"""What happened in the cluster: facts a driver hands to `ClusterScheduler.handle`. Past tense, frozen, ids only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carpool.core.cluster.placement.requests import NodeSpec, Request
from carpool.core.kernel.ids import WEIGHT_ONE, JobId, Nanos, TenantId
from carpool.core.kernel.ids import Tick as Tick

DEFAULT_TENANT = TenantId("default")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobArrived:
    """A job wants to run: all of its members at once or none."""

    job: JobId
    members: tuple[Request, ...]  # one for each node it wants a part of
    tenant: TenantId = DEFAULT_TENANT
    priority: int = 0
    service_ns: Nanos | None = None  # how long it runs alone, if anybody knows
    program: str = ""  # equal programs behave alike beside others
    weight_milli: int = WEIGHT_ONE  # of its part of what its tenant has, under fair
    turn_ns: Nanos = 0  # the longest it goes without a boundary at which it can be parked


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSuspended:
    """The job came to a boundary after SuspendJob and is off its cards. Not sent by a driver that parks at once."""

    job: JobId


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
class NodeAdded:
    """A node is there from now on; one that was there before has its old number again."""

    node: NodeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRemoved:
    """The node is gone, and with it whatever ran there. What a job lost by that comes as WorkLost."""

    name: str


JobEvent = JobArrived | JobSuspended | JobEnded
NodeEvent = NodeAdded | NodeRemoved
Event = JobEvent | NodeEvent | WorkLost | RatesMeasured | ShareGiven | WeightGiven | Tick
