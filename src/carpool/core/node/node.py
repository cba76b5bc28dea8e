"""The whole state of one node, and the small questions everybody asks of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from carpool.core.kernel.ids import WEIGHT_ONE, DeviceId, JobId, Nanos
from carpool.core.node.lifecycle import JOB_MOVES, LEASE_MOVES
from carpool.core.node.memory import ledger
from carpool.core.node.model import (
    AWAY,
    BLOCKED,
    ENDED,
    HOLDING,
    ROWS,
    WAITING,
    Device,
    History,
    Job,
    JobState,
    Lane,
    Lease,
    LeaseState,
    Tenant,
)
from carpool.core.node.settings import Settings
from carpool.core.policies.base import Policy
from carpool.errors import InternalError


@dataclass(slots=True, kw_only=True)
class Node:
    policy: Policy
    settings: Settings
    jobs: dict[JobId, Job] = field(default_factory=dict)
    devices: dict[DeviceId, Device] = field(default_factory=dict)
    histories: dict[str, History] = field(default_factory=dict)
    queue: list[JobId] = field(default_factory=list)  # in order of arrival
    apart: set[frozenset[JobId]] = field(default_factory=set)  # pairs that were slower together
    step_ns_least: Nanos = 0  # the shortest step time of any job so far; 0: none is known

    @property
    def quantum_ns(self) -> Nanos:
        return self.policy.quantum_ns if self.settings.quantum_ns is None else self.settings.quantum_ns

    def device_of(self, job: Job) -> Device:
        if job.device is None:
            raise InternalError(f"job {job.id} in state {job.state} has no device")
        return self.devices[job.device]

    def lane_of(self, job: Job) -> Lane | None:
        return self.devices[job.device].lanes.get(job.lane) if job.device and job.lane else None

    def tenant_of(self, job: Job) -> Tenant:
        """The account of the job's tenant on the job's device."""
        tenants, name = self.device_of(job).tenants, job.spec.tenant
        if name not in tenants:
            weight = self.settings.tenant_weights_milli.get(name, WEIGHT_ONE)
            tenants[name] = Tenant(id=name, weight_milli=weight)
        return tenants[name]

    def tenant_level(self, job: Job, on: Device | None = None) -> int:
        """What the job's tenant has had: of the job's device or of that one, or of all while it has none."""
        if on is None and job.device is not None:
            on = self.devices[job.device]
        if on is not None:
            account = on.tenants.get(job.spec.tenant)
            return account.level if account is not None else 0
        accounts = (device.tenants.get(job.spec.tenant) for device in self.devices.values())
        return sum(account.level for account in accounts if account is not None)

    def jobs_on(self, device: Device) -> list[Job]:
        return [self.jobs[job_id] for job_id in device.promised]

    def holders_on(self, device: Device) -> list[Job]:
        return [self.jobs[lane.holder] for lane in device.lanes.values() if lane.holder is not None]

    def outgrown_on(self, device: Device) -> list[Job]:
        """The jobs that take turns and need more than they are promised."""
        managed = [job for job in self.jobs_on(device) if job.lane is not None and job.state is not JobState.BLOCKED]
        return [job for job in managed if not ledger.covers(device, job)]

    def held_back_on(self, device: Device) -> list[Job]:
        """The jobs that may have no turn, whatever is free."""
        return [job for job_id in device.promised if (job := self.jobs[job_id]).is_held_back]

    def waiting_in(self, lane: Lane) -> list[Job]:
        return [job for job_id in lane.jobs if self.wants_turn(job := self.jobs[job_id])]

    def wants_turn(self, job: Job) -> bool:
        """Whether a turn would help it: it waits for one, or has the memory it stopped for in the middle of one."""
        if job.state is BLOCKED:
            return ledger.covers(self.device_of(job), job)
        return job.state is WAITING and not job.is_held_back

    def ready_in(self, device: Device, lane: Lane) -> list[Job]:
        """Who waits for the lane and may have it: `wants_turn` and `may_run` of all its jobs in one go."""
        ready = []
        for job_id in lane.jobs:
            job = self.jobs[job_id]
            if job.state is WAITING:
                if job.is_held_back or job_id == device.claimant:
                    continue
            elif job.state is not BLOCKED:
                continue
            if ledger.covers(device, job) or self._may_try(device, job):
                ready.append(job)
        return ready

    def move(self, job: Job, cause: type, *, now: Nanos, to: JobState | None = None) -> None:
        """Move a job by the table; `to` narrows a move the table leaves open (see lifecycle.py)."""
        target = JOB_MOVES.get((job.state, cause))
        if target is None:
            raise InternalError(f"job {job.id} cannot go from {job.state} by {cause.__name__}")
        was, job.state = job.state, to if to is not None else target
        job.state_since_ns = now
        if job.state is WAITING and was not in AWAY:
            job.wanting_since_ns = now
        self.set_row(job, now=now)

    def set_row(self, job: Job, *, now: Nanos) -> None:
        """Note where the job's time goes from now on (A4)."""
        row = ROWS.get(job.state)
        if job.state is WAITING or job.state is BLOCKED:
            if self.may_run(job):
                row = "limit" if job.start_ns > now else "turn"
            else:
                row = "parked" if job.is_leaving and job.state is WAITING else "memory"
        if row != job.wall.row:
            begin_row(job, row, since=now)

    def move_lease(self, job: Job, cause: type, *, now: Nanos) -> None:
        """Move a job's lease by the table."""
        before = job.lease.state if job.lease is not None else None
        try:
            after = LEASE_MOVES[(before, cause)]
        except KeyError:
            raise InternalError(f"the lease of {job.id} cannot go from {before} by {cause.__name__}") from None
        lane = self.lane_of(job)
        if after is None:
            job.lease, job.memory.is_given = None, False
            if lane is not None and lane.holder == job.id:
                lane.holder = None
        elif job.lease is None:
            if lane is None or lane.holder is not None:
                raise InternalError(f"job {job.id} is granted a lane that is not free")
            job.lease = Lease(state=after, lane=lane.id, granted_ns=now)
            lane.holder = job.id
        else:
            job.lease.state = after
            job.lease.recalled_ns = now if after is LeaseState.RECALLED else job.lease.recalled_ns

    def is_oldest(self, job: Job) -> bool:
        """Whether no other job of its device came earlier; that one may always run, so somebody always can."""
        key = (job.arrived_ns, job.id)
        others = self.jobs_on(self.device_of(job))
        rivals = [
            other
            for other in others
            if other.lane is not None and not other.is_held_back and other.state is not BLOCKED
        ]
        return all(key <= (other.arrived_ns, other.id) for other in rivals)

    def may_run(self, job: Job) -> bool:
        """Whether the job may have a turn if the policy gives it one."""
        device = self.device_of(job)
        if job.state is not BLOCKED and (job.is_held_back or device.claimant == job.id):
            return False  # one whose allocation waits may come to the boundary where it is held back
        return ledger.covers(device, job) or self._may_try(device, job)

    def _may_try(self, device: Device, job: Job) -> bool:
        """Whether it may run though its needs are not covered (D2)."""
        return job.state is not BLOCKED and self.is_oldest(job) and not self.is_short(device)

    def is_short(self, device: Device) -> bool:
        """Whether an allocation waits on this device: then nobody is started into the same trouble (W5)."""
        return any(job.state is JobState.BLOCKED for job in self.jobs_on(device))

    def check_jobs(self) -> None:
        """Assert what must be true of every job by itself; a failure is a bug."""
        for job in self.jobs.values():
            if is_holding(job) != (job.lease is not None):
                raise InternalError(f"job {job.id} is {job.state} with lease {job.lease}")
            if (job.state is JobState.QUEUED) != (job.id in self.queue):
                raise InternalError(f"job {job.id} is {job.state} but the queue says otherwise")
            if (job.memory.parked_bytes > 0) and job.state not in AWAY:
                raise InternalError(
                    f"L6 broken: {job.state} job {job.id} has {job.memory.parked_bytes} bytes on the host"
                )
            if job.state in ENDED and (job.memory.promised_bytes or job.lane is not None):
                raise InternalError(f"ended job {job.id} still holds bytes or a lane")

    def host_bytes(self) -> int:
        """What parked jobs hold on the host, or have reserved there."""
        return sum(job.memory.parked_bytes for job in self.jobs.values())


def begin_row(job: Job, row: str | None, *, since: Nanos) -> None:
    """Book what the job did until then; from then on its time goes elsewhere."""
    if job.wall.row is not None and since > job.wall.row_since_ns:
        job.wall.spent_ns[job.wall.row] = job.wall.spent_ns.get(job.wall.row, 0) + since - job.wall.row_since_ns
    job.wall.row, job.wall.row_since_ns = row, since


def row_at(job: Job, now: Nanos) -> tuple[str | None, Nanos]:
    """Where the job's time goes, and since when: who was kept from a turn by its limit waits for one from the moment
    when it is not, and that is no event."""
    if job.wall.row == "limit" and job.start_ns <= now:
        return "turn", job.start_ns
    return job.wall.row, job.wall.row_since_ns


def spent_until(job: Job, now: Nanos) -> dict[str, Nanos]:
    """The job's wall time since it arrived, by row; adds up exactly (A4)."""
    spent = dict(job.wall.spent_ns)
    row, since = row_at(job, now)
    for each, span in ((job.wall.row, since - job.wall.row_since_ns), (row, now - since)):
        if each is not None and span:
            spent[each] = spent.get(each, 0) + span
    return spent


def is_holding(job: Job) -> bool:
    return job.state in HOLDING
