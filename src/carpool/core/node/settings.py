"""The numbers a node runs by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from carpool.core.kernel.ids import SHARE_ONE, WEIGHT_ONE, DeviceId, Nanos, TenantId
from carpool.units import MS, SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantTerms:
    """What a tenant is to have on this node and what it may have at most; the defaults promise and forbid nothing."""

    weight_milli: int = WEIGHT_ONE  # under a policy that counts tenants
    guaranteed_milli: int = 0  # of each device, in time and in memory: its part, lent to others while it is idle
    memory_bytes_max: int | None = None  # promised to all its jobs together, on all devices; None: no ceiling
    compute_milli_max: int = SHARE_ONE  # of each device's time, all its jobs together
    jobs_max: int | None = None  # so many of its jobs are started and not over; None: no ceiling
    devices: tuple[DeviceId, ...] | None = None  # where its jobs may start; None: anywhere
    priorities: tuple[int, int] | None = None  # the lowest and the highest that its jobs may have; None: any
    order: str = ""  # the policy by which its own jobs go, where the node's counts tenants first; empty: the node's


NO_TERMS = TenantTerms()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The numbers a node runs by; each is a bound or a patience, none changes what is right."""

    quantum_ns: Nanos | None = None  # None: the policy's own, or chosen (accounts.py)
    latency_ns: Nanos = 2 * SECOND  # where quanta are chosen: within this those who wait have a turn each
    lapse_ns: Nanos = 500 * MS  # a holder that neither steps nor uses its processor this long loses its turn
    watch_ns: Nanos = 250 * MS  # how often holders are looked at while somebody waits
    hog_factor: int = 10  # a recalled holder is a hog after this many usual steps …
    hog_floor_ns: Nanos = 2 * SECOND  # … but not before this
    hog_end_ns: Nanos | None = None  # it is ended when it kept another tenant waiting so long; None: it is not
    pass_over_ns: Nanos = 60 * SECOND  # a queued job that waits longer is not passed by smaller ones any more
    start_patience_ns: Nanos = 20 * SECOND  # then the open promise of a starting or idle job is cut if others need it
    starts_max: int | None = None  # so many programs are being started at once, at most; None: no limit
    starts_beside_max: int | None = None  # … and so many while a job has a turn; None: the same
    start_retry_ns: Nanos = SECOND  # a start for which the machine lacked something is tried again after this
    start_floor_divisor: int = 8  # a job of unknown size starts only with 1/8 of the device unpromised
    open_share_divisor: int = 4  # … and is promised 1/4 of it until its first turns are measured
    tenant_weights_milli: Mapping[str, int] = field(default_factory=dict)  # of those that have no terms of their own
    tenants: Mapping[TenantId, TenantTerms] = field(default_factory=dict)  # at the start; TenantSet changes them live
    tenant_default: TenantTerms = field(default_factory=TenantTerms)  # of those not named; it guarantees nothing
    return_ns: Nanos = 10 * SECOND  # who is guaranteed memory that is lent has it back within this
    margin_percent: int = 5  # added to what was measured
    share_policy: str = "fixed"  # a row of shares.SHARE_POLICIES
    share_slots: int = 0  # where parts are even: at least so many
    host_bytes_max: int | None = None  # what parked jobs may hold on the host together; None: no limit
    move_retry_ns: Nanos = 10 * SECOND  # a move that failed (a full disk, say) is tried again after this
    move_percent: int = 5  # of a device's time may go into moving jobs for each other; 0: nobody is moved for another
    quiet_ns_min: Nanos = 500 * MS  # and this long nobody is, however quick moving was

    def with_live(self, wanted: Settings) -> Settings:
        """These with what may change while jobs run as it is wanted now."""
        return replace(self, **{name: getattr(wanted, name) for name in LIVE})


LIVE = ("quantum_ns", "latency_ns", "hog_floor_ns", "hog_end_ns", "host_bytes_max", "starts_max", "starts_beside_max")
