"""Whose memory is whose: which jobs of a device are owned by their tenants' guarantees, which have theirs on loan.

A tenant's part of a device is its guaranteed thousandths of the capacity. What its jobs take of it is what they are
promised there and what the widest of them needs of a lane.

Rules
  N19  The jobs of a tenant that are on a device are owned, the oldest first, as far as they fit into its part
       together. All others are on loan.
  N20  A job that wants room and fits into its tenant's part beside the owned ones is owed it. While anybody is owed
       room on a device, nobody else is given any there.
  N21  What jobs hold beyond their tenants' parts and could not give back within `return_ns` fits into what is
       guaranteed to nobody. That is all of a job that was never measured, may not be parked, takes no turns, or has
       too long steps; of any other, what it leaves on the device when it is parked. So who is owed room can have it.

Everything here is a question; moves/lending.py acts on the answers. N21 speaks of what is given: what runs already
when a driver or a guarantee comes is a fact.
"""

from __future__ import annotations

from carpool.core.kernel.ids import SHARE_ONE, JobId, Nanos, TenantId
from carpool.core.node.model import PARKED, UNMANAGED, WAITING, Device, Job, JobState, Loan, Needs
from carpool.core.node.node import Node, covers
from carpool.core.node.words import tenancy as words


def part_bytes(node: Node, device: Device, tenant: TenantId) -> int:
    """What a tenant is guaranteed of a device."""
    return node.terms_of(tenant).guaranteed_milli * device.capacity_bytes // SHARE_ONE


def common_bytes(node: Node, device: Device) -> int:
    """What is guaranteed to nobody."""
    return device.capacity_bytes - sum(part_bytes(node, device, tenant) for tenant in node.terms)


def owned_by(node: Node, device: Device, tenant: TenantId, *, but: Job | None = None) -> tuple[list[Job], int, int]:
    """The jobs that a tenant owns there (N19), what they are promised, and what the widest needs of a lane."""
    part = part_bytes(node, device, tenant)
    if not part:
        return [], 0, 0
    return _fitting([job for job in _present(node, device, tenant) if job is not but], part)


def _fitting(jobs: list[Job], part: int) -> tuple[list[Job], int, int]:
    mine, promised, widest = list[Job](), 0, 0
    for job in sorted(jobs, key=lambda each: (each.arrived_ns, each.id)):
        wider = max(widest, _scratch(job))
        if promised + job.memory.promised_bytes + wider <= part:
            mine.append(job)
            promised, widest = promised + job.memory.promised_bytes, wider
    return mine, promised, widest


def owned(node: Node, device: Device) -> set[JobId]:
    """The ids of all jobs that are owned there."""
    here = dict[TenantId, list[Job]]()
    for job in node.jobs_on(device):
        if job.state is not PARKED:
            here.setdefault(job.spec.tenant, []).append(job)
    parts = {tenant: part_bytes(node, device, tenant) for tenant in here}
    return {job.id for tenant, part in parts.items() if part for job in _fitting(here[tenant], part)[0]}


def may_be_asked(job: Job, claimant: Job, owned_here: set[JobId]) -> bool:
    """Whether a job may be parked for that one: an owned one only for its own tenant's."""
    return job.id not in owned_here or job.spec.tenant == claimant.spec.tenant


def _present(node: Node, device: Device, tenant: TenantId) -> list[Job]:
    """The tenant's jobs whose memory is there."""
    return [job for job in node.jobs_on(device) if job.spec.tenant == tenant and job.state is not PARKED]


def _scratch(job: Job) -> int:
    return job.memory.needs.ephemeral_bytes if job.memory.needs is not None and job.lane is not None else 0


def over_bytes(node: Node, device: Device, tenant: TenantId) -> int:
    """How far a tenant is above its part there; below zero is room."""
    here = _present(node, device, tenant)
    used = sum(job.memory.promised_bytes for job in here) + max(map(_scratch, here), default=0)
    return used - part_bytes(node, device, tenant)


def byte_ns(device: Device, loan: Loan, *, now: Nanos) -> tuple[int, int]:
    """What was lent and borrowed until now, in bytes × nanoseconds."""
    span = now - device.loans_ns
    return loan.lent_byte_ns + loan.lent_bytes * span, loan.borrowed_byte_ns + loan.borrowed_bytes * span


# --- who may have room --------------------------------------------------------------------------------------


def is_owed(node: Node, device: Device, job: Job, wanted: Needs) -> bool:
    """Whether what the job wants fits into its tenant's part beside the owned ones (N20)."""
    part = part_bytes(node, device, job.spec.tenant)
    if not part:
        return False
    _, promised, widest = owned_by(node, device, job.spec.tenant, but=job)
    return promised + wanted.resident_bytes + max(widest, wanted.ephemeral_bytes) <= part


def lets(node: Node, device: Device, job: Job, wanted: Needs) -> bool:
    """Whether the guarantees of tenants let a job have so much of a device (N20, N21)."""
    return not why_not(node, device, job, wanted)


def why_not(node: Node, device: Device, job: Job, wanted: Needs) -> str:
    """Why the guarantees of tenants do not let it; empty if they do."""
    if not node.has_guarantees or is_owed(node, device, job, wanted):
        return ""
    owed = next((each for each in waiting_owed(node, device) if each is not job), None)
    if owed is not None:
        return words.owed_first(owed, device)
    fixed, room = _fixed_beyond(node, device, job, wanted), common_bytes(node, device)
    return words.not_lent(job, device, fixed, room, node.settings.return_ns) if fixed > room else ""


def waiting_owed(node: Node, device: Device) -> list[Job]:
    """Those noted to be owed room there (moves/lending.py) that have not got it since."""
    noted = [node.jobs[job_id] for job_id in device.owed if job_id in node.jobs]
    return [job for job in noted if _is_without(device, job)]


def _is_without(device: Device, job: Job) -> bool:
    if job.state is WAITING:
        return not covers(device, job)
    return job.state is PARKED or job.state is JobState.QUEUED


def _fixed_beyond(node: Node, device: Device, newcomer: Job, wanted: Needs) -> int:
    """What jobs would hold beyond their tenants' parts and could not give back in time, with a newcomer (N21)."""
    fixed, widest = dict[TenantId, int](), dict[TenantId, int]()
    for job in [*node.jobs_on(device), newcomer]:
        is_new = job is newcomer
        if not is_new and newcomer.id == job.id:
            continue
        count = wanted.resident_bytes if is_new else job.memory.promised_bytes
        scratch = wanted.ephemeral_bytes if is_new else _scratch(job)
        if job.state is PARKED and not is_new:
            scratch = 0
        elif can_promise(node, device, job):
            count, scratch = min(count, _overhead(job)), 0
        tenant = job.spec.tenant
        fixed[tenant] = fixed.get(tenant, 0) + count
        widest[tenant] = max(widest.get(tenant, 0), scratch)
    beyond = [fixed[tenant] + widest[tenant] - part_bytes(node, device, tenant) for tenant in fixed]
    return sum(each for each in beyond if each > 0)


def can_promise(node: Node, device: Device, job: Job) -> bool:
    """Whether a job is known to be at a boundary, and away from the device, within `return_ns` (O5)."""
    past = job.history
    step_ns = job.service.step_ns or (past.step_ns if past is not None else None)
    needs = job.memory.needs or (past.needs if past is not None else None)
    if needs is None or step_ns is None or not job.spec.may_park or job.state is UNMANAGED or job.move.fails:
        return False
    return step_ns + copy_ns(device, needs.persistent_bytes) <= node.settings.return_ns


def _overhead(job: Job) -> int:
    """What it leaves on the device when it is parked, as far as its program is known."""
    known = job.memory.needs or (job.history.needs if job.history is not None else None)
    return known.overhead_bytes if known is not None else 0


def copy_ns(device: Device, count: int) -> Nanos:
    """How long a copy of so many bytes will probably take; nothing before anybody was moved."""
    return count * device.moves_ns // device.moves_bytes if device.moves_bytes else 0
