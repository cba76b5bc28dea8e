"""The whole state of one node, and the small questions everybody asks of it. Nothing here changes anything,
but for the index of the jobs about which anything is to be decided (L7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from carpool.core.kernel.ids import SHARE_ONE, WEIGHT_ONE, DeviceId, JobId, LaneId, Nanos, TenantId
from carpool.core.node.model import (
    ASKED_FOR,
    AWAY,
    BLOCKED,
    ENDED,
    HELD_ONLY,
    HOLDING,
    OUTSIDE,
    PARKED,
    STARTING,
    WAITING,
    Device,
    History,
    Job,
    JobSpec,
    JobState,
    Lane,
    Why,
)
from carpool.core.node.settings import NO_TERMS, Settings, TenantTerms
from carpool.core.policies.view import JobView
from carpool.errors import InternalError
from carpool.units import MS

RESUME_NS = 20 * MS  # who used up its limit starts again with this much to spend, so that turns are not single steps
ASKED_SHARES = "fixed"  # the one share policy that gives what is asked; the others divide the device


class TurnPolicy(Protocol):
    """What a node asks of its policy (core/policies/base.py)."""

    name: str
    quantum_ns: Nanos | None
    lanes_max: int
    by_tenant: bool
    by_length: bool
    by_turns: bool

    def rank(self, view: JobView, *, now: Nanos) -> tuple[int, ...]: ...

    def why(self, chosen: JobView, over: JobView) -> str: ...


@dataclass(slots=True, kw_only=True)
class Node:
    policy: TurnPolicy
    settings: Settings
    jobs: dict[JobId, Job] = field(default_factory=dict)
    devices: dict[DeviceId, Device] = field(default_factory=dict)
    histories: dict[str, History] = field(default_factory=dict)
    queue: list[JobId] = field(default_factory=list)  # in order of arrival
    starts: dict[JobId, Nanos] = field(default_factory=dict)  # programs that are being started, since when (M6)
    starts_from_ns: Nanos = 0  # nobody is started before this (M7); 0: now
    start_trouble: str = ""  # why not
    apart: set[frozenset[JobId]] = field(default_factory=set)  # pairs that were slower together
    step_ns_least: Nanos = 0  # the shortest step time of any job so far; 0: none is known
    terms: dict[TenantId, TenantTerms] = field(default_factory=dict)  # of the tenants of whom something is said
    default_terms: TenantTerms = field(default_factory=TenantTerms)  # of all others
    orders: dict[TenantId, TurnPolicy] = field(default_factory=dict)  # of those that have their own
    default_order: TurnPolicy | None = None  # of all of whom nothing is said
    has_guarantees: bool = False  # some tenant is guaranteed a part of every device
    has_parts: bool = False  # some tenant is guaranteed a part of the time, or may have only a part
    barred: dict[JobId, str] = field(default_factory=dict)  # of the queue, by its tenants' ceilings; why

    @property
    def quantum_ns(self) -> Nanos | None:
        """What the user or the policy named; None: it is chosen for each turn (accounts.py)."""
        return self.policy.quantum_ns if self.settings.quantum_ns is None else self.settings.quantum_ns

    # --- what tenants may have -----------------------------------------------------------------------------

    @property
    def has_terms(self) -> bool:
        """Whether anything is said of any tenant."""
        return bool(self.terms) or self.default_terms != NO_TERMS

    def terms_of(self, tenant: TenantId) -> TenantTerms:
        return self.terms.get(tenant, self.default_terms)

    def weight_of(self, tenant: TenantId) -> int:
        if tenant in self.terms:
            return self.terms[tenant].weight_milli
        weight = self.settings.tenant_weights_milli.get(tenant, WEIGHT_ONE)
        return weight if weight != WEIGHT_ONE else self.default_terms.weight_milli

    def order_of(self, tenant: TenantId) -> TurnPolicy:
        """The policy by which the jobs of one tenant go among each other (N13)."""
        own = self.orders.get(tenant) if tenant in self.terms else self.default_order
        return own if own is not None and self.policy.by_tenant else self.policy

    def priority_of(self, spec: JobSpec) -> int:
        """The priority a job has by its tenant's terms (N11)."""
        allowed = self.terms_of(spec.tenant).priorities
        return spec.priority if allowed is None else min(max(spec.priority, allowed[0]), allowed[1])

    def may_use(self, spec: JobSpec, device: DeviceId) -> bool:
        """Whether a job of such a spec may start on this device: it asks for no other, and its tenant may."""
        if spec.device is not None and spec.device != device:
            return False
        devices = self.terms_of(spec.tenant).devices
        return devices is None or device in devices

    def tenant_bytes(self, tenant: TenantId, *, but: Job | None = None, beside: LaneId | None = None) -> int:
        """What a tenant's jobs are promised, and what the widest of them needs of each lane (N15), that one apart."""
        total, widest = 0, dict[LaneId, int]()
        for device in self.devices.values():
            for job_id, promised_bytes in device.promised.items():
                job = self.jobs[job_id]
                if job.spec.tenant != tenant or job is but:
                    continue
                total += promised_bytes
                if job.lane is not None and job.lane != beside and job.memory.needs is not None:
                    widest[job.lane] = max(widest.get(job.lane, 0), job.memory.needs.ephemeral_bytes)
        return total + sum(widest.values())

    def tenant_room(self, job: Job, lane: LaneId | None = None) -> int | None:
        """The most that a job may hold in its turn beside the others of its tenant; None without a ceiling (N15)."""
        most = self.terms_of(job.spec.tenant).memory_bytes_max
        if most is None:
            return None
        return max(0, most - self.tenant_bytes(job.spec.tenant, but=job, beside=lane or job.lane))

    def tenant_lets(self, job: Job, device: Device, resident_bytes: int, ephemeral_bytes: int) -> bool:
        """Whether the ceiling of a job's tenant leaves it so much on this device (N15)."""
        if not self.has_terms or self.terms_of(job.spec.tenant).memory_bytes_max is None:
            return True
        lane_id = job.lane or (next(iter(device.lanes), None) if self.policy.lanes_max == 1 else None)
        mates = [self.jobs[each] for each in device.lanes[lane_id].jobs] if lane_id in device.lanes else []
        shared = [each.memory.needs for each in mates if each is not job and each.spec.tenant == job.spec.tenant]
        widest = max((needs.ephemeral_bytes for needs in shared if needs is not None), default=0)
        return resident_bytes + max(ephemeral_bytes, widest) <= (self.tenant_room(job, lane_id) or 0)

    # --- who is where ---------------------------------------------------------------------------------------

    def device_of(self, job: Job) -> Device:
        if job.device is None:
            raise InternalError(f"job {job.id} in state {job.state} has no device")
        return self.devices[job.device]

    def lane_of(self, job: Job) -> Lane | None:
        return self.devices[job.device].lanes.get(job.lane) if job.device and job.lane else None

    def jobs_on(self, device: Device) -> list[Job]:
        return [self.jobs[job_id] for job_id in device.promised]

    def lively_on(self, device: Device) -> list[Job]:
        """Those of its jobs about which anything is to be decided; idle ones cost a decision nothing (L7)."""
        return [self.jobs[job_id] for job_id in device.lively]

    def holders_on(self, device: Device) -> list[Job]:
        return [self.jobs[lane.holder] for lane in device.lanes.values() if lane.holder is not None]

    def queued_for(self, device: Device) -> list[Job]:
        """The jobs in the queue that may use this device and their tenants' ceilings let start, as they arrived."""
        queued = [self.jobs[job_id] for job_id in self.queue if job_id not in self.barred]
        return [job for job in queued if self.may_use(job.spec, device.id)]

    @property
    def may_start(self) -> bool:
        """Whether a program may be started now, whatever it needs (M6, M7)."""
        most = self.starts_most
        return not self.starts_from_ns and (most is None or len(self.starts) < most)

    @property
    def starts_most(self) -> int | None:
        """How many programs may be being started now; None: no limit (M6)."""
        beside = self.settings.starts_beside_max
        if beside is None or len(self.starts) < beside:
            return self.settings.starts_max
        has_holder = any(self.holders_on(device) for device in self.devices.values())
        return beside if has_holder else self.settings.starts_max

    def waits_for_starts(self, job: Job) -> bool:
        """Whether a queued job waits because nobody is started now."""
        return not self.may_start and job.state is JobState.QUEUED and not is_asked_away(job)

    def next_start_look(self) -> Nanos | None:
        """When a queue that may start nobody is looked at again; None if nothing but an event changes that."""
        if not self.queue or self.may_start:
            return None
        return self.starts_from_ns or min(self.starts.values()) + self.settings.start_patience_ns

    def tenant_level(self, job: Job, on: Device | None = None) -> int:
        """What the job's tenant has had: of the job's device or of that one, or of all while it has none."""
        if on is None and job.device is not None:
            on = self.devices[job.device]
        if on is not None:
            account = on.tenants.get(job.spec.tenant)
            return account.level if account is not None else 0
        accounts = (device.tenants.get(job.spec.tenant) for device in self.devices.values())
        return sum(account.level for account in accounts if account is not None)

    def has_departure(self, device: Device, why: Why | None = None) -> bool:
        """Whether a job of the device is held back, for this reason or for any."""
        for job_id in device.lively:
            held_back = self.jobs[job_id].departures
            if held_back and (why is None or why in held_back):
                return True
        return False

    # --- who lacks memory -----------------------------------------------------------------------------------

    def outgrown_on(self, device: Device) -> list[Job]:
        """The jobs that take turns and need more than they are promised."""
        managed = [job for job in self.jobs_on(device) if job.lane is not None and job.state is not BLOCKED]
        return [job for job in managed if not covers(device, job)]

    def is_short(self, device: Device) -> bool:
        """Whether an allocation waits on this device: then nobody is started into the same trouble (W5)."""
        return any(self.jobs[job_id].state is BLOCKED for job_id in device.lively)

    def is_concerned(self, device: Device) -> bool:
        """Whether an allocation waits there, or somebody is away or is to leave for one (W5)."""
        for job_id in device.lively:
            job = self.jobs[job_id]
            if is_asking(job) or Why.GIVES_WAY in job.departures:
                return True
        return False

    def is_pressed(self, device: Device) -> bool:
        """Whether bytes are settled at any boundary: an allocation waits, or was just given what it waited for."""
        if device.is_lent:
            return True
        for job_id in device.lively:
            job = self.jobs[job_id]
            if job.state is BLOCKED or (job.memory.pending_bytes and is_asking(job)):
                return True
            if job.departures and Why.GIVES_WAY in job.departures and job.state is not PARKED:
                return True
        return False

    def wants_memory(self, job: Job, *, now: Nanos) -> bool:
        """Whether the job is a claimant: it would run if there were room."""
        if job.state is WAITING and job.device is not None:  # most are, and this is asked of all at every event
            return not covers(self.devices[job.device], job) and not is_leaving(job)
        if job.state is JobState.QUEUED:
            return not is_asked_away(job) and self.may_start and job.id not in self.barred
        return may_return(job, now=now)

    def has_claimants(self, *, now: Nanos) -> bool:
        """Whether any job would run if there were room."""
        barred = self.barred
        if self.may_start and any(not is_asked_away(self.jobs[each]) for each in self.queue if each not in barred):
            return True  # where nobody may start, a long queue is not even looked at
        here = (self.jobs[job_id] for device in self.devices.values() for job_id in device.lively)
        return any(self.wants_memory(job, now=now) for job in here)

    def awaits_return(self, device: Device, *, now: Nanos) -> bool:
        """Whether a parked job of this device would come back if there were room."""
        return any(may_return(self.jobs[job_id], now=now) for job_id in device.lively)

    def is_moving(self, device: Device) -> bool:
        """Whether memory of a job is on its way to the host or back."""
        states = [self.jobs[job_id].state for job_id in device.lively]
        return JobState.PARKING in states or JobState.UNPARKING in states

    def host_bytes(self) -> int:
        """What parked jobs hold on the host, or have reserved there."""
        return sum(job.memory.parked_bytes for job in self.jobs.values())

    def has_host_room(self, count: int) -> bool:
        """Whether the host takes so many more bytes of parked jobs (L5)."""
        limit = self.settings.host_bytes_max
        return limit is None or self.host_bytes() + count <= limit

    def has_shares(self, device: Device) -> bool:
        """Whether any job of the device has a share of it, had one, or asks for one (shares.py)."""
        if device.has_shares or self.has_parts or self.settings.share_policy != ASKED_SHARES:
            return True
        for job_id in device.promised:
            job = self.jobs[job_id]
            spec, share = job.spec, job.share
            if spec.guaranteed_milli or spec.limit_milli < SHARE_ONE or share.told_milli is not None:
                return True
            if share.guaranteed_milli or share.limit_milli < SHARE_ONE:
                return True
        return False

    def unpromised_milli(self, device: Device) -> int:
        """What no job of the device is guaranteed; one that left for another device may have to come back (V2)."""
        here = [*device.promised, *device.kept]
        return SHARE_ONE - sum(self.jobs[job_id].spec.guaranteed_milli for job_id in here)

    def has_compute_room(self, device: Device, spec: JobSpec) -> bool:
        """Whether the job's guarantee fits beside those already given (S3), or guarantees are made to fit."""
        return self.settings.share_policy != ASKED_SHARES or spec.guaranteed_milli <= self.unpromised_milli(device)

    # --- who may have a turn --------------------------------------------------------------------------------

    def waiting_in(self, lane: Lane) -> list[Job]:
        return [job for job_id in lane.lively if self.wants_turn(job := self.jobs[job_id])]

    def wants_turn(self, job: Job) -> bool:
        """Whether a turn would help it: it waits for one, or has the memory it stopped for in the middle of one."""
        if job.state is BLOCKED:
            return covers(self.device_of(job), job)
        return job.state is WAITING and not job.departures

    def ready_in(self, device: Device, lane: Lane) -> list[Job]:
        """Who waits for the lane and may have it: `wants_turn` and `may_run` of all its jobs in one go."""
        ready = []
        for job_id in lane.lively:
            job = self.jobs[job_id]
            if job.state is WAITING:
                if job.departures or job_id == device.claimant:
                    continue
            elif job.state is not BLOCKED:
                continue
            if covers(device, job) or self._may_try(device, job):
                ready.append(job)
        return ready

    def is_oldest(self, job: Job) -> bool:
        """Whether no other job of its device came earlier; that one may always run, so somebody always can."""
        key = (job.arrived_ns, job.id)
        others = self.jobs_on(self.device_of(job))
        rivals = [
            other
            for other in others
            if other.lane is not None and not other.departures and other.state is not BLOCKED
        ]
        return all(key <= (other.arrived_ns, other.id) for other in rivals)

    def may_run(self, job: Job) -> bool:
        """Whether the job may have a turn if the policy gives it one."""
        device = self.device_of(job)
        if job.state is not BLOCKED and (job.departures or device.claimant == job.id):
            return False  # one whose allocation waits may come to the boundary where it is held back
        return covers(device, job) or self._may_try(device, job)

    def _may_try(self, device: Device, job: Job) -> bool:
        """Whether it may run though its needs are not covered (D2)."""
        return job.state is not BLOCKED and self.is_oldest(job) and not self.is_short(device)

    def check_jobs(self) -> None:
        """Assert what must be true of every job by itself; a failure is a bug."""
        for device in self.devices.values():
            self._check_lively(device)
        for job in self.jobs.values():
            if is_holding(job) != (job.lease is not None):
                raise InternalError(f"job {job.id} is {job.state} with lease {job.lease}")
            if (job.state is JobState.QUEUED) != (job.id in self.queue):
                raise InternalError(f"job {job.id} is {job.state} but the queue says otherwise")
            if job.id in self.starts and job.state is not STARTING:
                raise InternalError(f"M6 broken: {job.state} job {job.id} counts as being started")
            parked_bytes = job.memory.parked_bytes
            if parked_bytes > 0 and job.state not in AWAY:
                raise InternalError(f"L6 broken: {job.state} job {job.id} has {parked_bytes} bytes on the host")
            if job.state in ENDED and (job.memory.promised_bytes or job.lane is not None or job.departures):
                raise InternalError(f"ended job {job.id} still holds bytes or a lane, or is to leave")

    def _check_lively(self, device: Device) -> None:
        """Assert L7."""
        lively = {job_id for job_id in device.promised if not is_resting(self.jobs[job_id])}
        if lively != device.lively.keys():
            raise InternalError(f"L7 broken on {device.id}: {sorted(lively)} are lively, noted {[*device.lively]}")
        for lane in device.lanes.values():
            if lively & set(lane.jobs) != lane.lively.keys():
                raise InternalError(f"L7 broken in lane {lane.id}: noted are {[*lane.lively]}")


def is_resting(job: Job) -> bool:
    """Whether nothing is to be decided about it: it wants nothing and nothing is wanted of it (L7)."""
    return job.state in OUTSIDE and not job.departures and not job.memory.pending_bytes


def note_wish(device: Device, job: Job) -> None:
    """Note whether anything is to be decided about the job: its state, its departures or its wishes changed (L7)."""
    lane = device.lanes.get(job.lane) if job.lane is not None else None
    if is_resting(job) or job.id not in device.promised:
        device.lively.pop(job.id, None)
        if lane is not None:
            lane.lively.pop(job.id, None)
        return
    device.lively[job.id] = None
    if lane is not None:
        lane.lively[job.id] = None


def note_left(lane: Lane, job: JobId) -> None:
    """The job is not in that lane any more."""
    lane.lively.pop(job, None)


def covers(device: Device, job: Job) -> bool:
    """Whether the promises made to the job and its lane hold what it was measured to need, or waits for (W1)."""
    memory = job.memory
    if job.state is BLOCKED:
        return memory.promised_bytes >= memory.live_bytes + memory.pending_bytes
    needs = memory.needs
    if needs is None:
        return True
    beyond = memory.promised_bytes - needs.persistent_bytes - needs.overhead_bytes
    if beyond < 0:
        return False
    lane = device.lanes.get(job.lane) if job.lane is not None else None
    scratch = needs.ephemeral_bytes
    return beyond >= scratch or (lane is not None and lane.bytes >= scratch)


def was_given(job: Job) -> bool:
    """Whether it is promised more than it keeps between its turns: what it waited for in this one (W2)."""
    needs = job.memory.needs
    return needs is not None and job.memory.promised_bytes > needs.persistent_bytes + needs.overhead_bytes


def is_holding(job: Job) -> bool:
    return job.state in HOLDING


def is_unknown(job: Job) -> bool:
    """Whether nobody knows what it needs: it was not measured, and its user drew no cap."""
    return job.memory.needs is None and job.spec.cap_bytes is None


def is_asking(job: Job) -> bool:
    """Whether an allocation of the job waits and it is not in its turn any more, or was in none."""
    return job.state is BLOCKED or (job.memory.pending_bytes > 0 and job.state in OUTSIDE)


def is_leaving(job: Job) -> bool:
    """Whether it is to leave the device; a job that is held back only to become smaller is not."""
    return bool(job.departures) and not job.departures.keys() <= HELD_ONLY


def leaves_for(job: Job) -> JobId | None:
    """The job that gets its memory."""
    found = job.departures.get(Why.MAKES_ROOM) or job.departures.get(Why.LENT)
    return found.whom if found is not None else None


def is_asked_away(job: Job) -> bool:
    """Whether somebody asked that it leaves, or does not start, until somebody lets it."""
    return bool(job.departures) and not job.departures.keys().isdisjoint(ASKED_FOR)


def may_return(job: Job, *, now: Nanos) -> bool:
    """Whether a parked job would come back if there were room."""
    return job.state is PARKED and not is_leaving(job) and now >= job.move.retry_ns


def next_try(job: Job, *, now: Nanos) -> Nanos | None:
    """When a move that failed is due again; None if none did."""
    is_stuck = job.state is WAITING and is_leaving(job)
    is_kept_out = job.state is PARKED and not is_leaving(job)
    return job.move.retry_ns if (is_stuck or is_kept_out) and job.move.retry_ns > now else None


def is_over_limit(job: Job, *, now: Nanos) -> bool:
    """Whether a holder has used up its limit (S1), or that of its tenant (N17)."""
    share, part = job.share, job.share.part
    if part is not None and part.limit_milli < SHARE_ONE and part.free_from_ns > now:
        return True
    return share.limit_milli < SHARE_ONE and not share.is_paced and share.free_from_ns > now


def start_ns(job: Job) -> Nanos:
    """When its limit (S1) and that of its tenant (N17) let it begin a turn; a time that has passed if they do."""
    share, part, due = job.share, job.share.part, 0
    if share.limit_milli < SHARE_ONE and not share.is_paced and share.free_from_ns:
        due = share.free_from_ns + RESUME_NS
    if part is not None and part.limit_milli < SHARE_ONE and part.free_from_ns:
        due = max(due, part.free_from_ns + RESUME_NS)
    return due
