"""What happened in the cluster: facts a driver hands to `ClusterScheduler.handle`. Past tense, frozen, ids only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carpool.core.model import JobId, Nanos, TenantId
from carpool.core.placement.model import Request

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
    turn_ns: Nanos = 0  # the longest it goes without a boundary at which it can be parked


@dataclass(frozen=True, slots=True, kw_only=True)
class JobParked:
    """The job came to a boundary after ParkJob and is off its cards. Not sent by a driver that parks at once."""

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
class Tick:
    """Time passed; sent when `next_wakeup` says so."""


JobEvent = JobArrived | JobParked | JobEnded
Event = JobEvent | WorkLost | RatesMeasured | ShareGiven | Tick
