"""What a tenant may have at most, of jobs and of bytes: who of the queue waits for that, and how much is left.

Rules
  N14  A job starts only on a device that its tenant may use, and while fewer of the tenant's jobs than it may have are
       started. Those that are there already go on.
  N15  Σ promised to a tenant's jobs + what the widest of them needs of each lane ≤ its ceiling of memory. A promise
       that would break this is not made; the job waits, and nobody is parked for it.

Both speak of new promises: a ceiling that was lowered is above what is promised for a while (tenants.py).
"""

from __future__ import annotations

from carpool.core.kernel.ids import TenantId
from carpool.core.node.memory import admission
from carpool.core.node.model import RESIDENT, Device, Job, Needs
from carpool.core.node.node import Node
from carpool.core.node.words import tenancy as words


def review_queue(node: Node) -> None:
    """Note who waits in the queue for its tenant's ceilings, and why (N14, N15)."""
    if not node.has_terms:
        if node.barred:
            node.barred = {}
        return
    started: dict[TenantId, int] = {}
    for job in node.jobs.values():
        if job.state in RESIDENT:
            started[job.spec.tenant] = started.get(job.spec.tenant, 0) + 1
    node.barred = {}
    for job_id in node.queue:
        why = _why_barred(node, node.jobs[job_id], started.get(node.jobs[job_id].spec.tenant, 0))
        if why:
            node.barred[job_id] = why


def _why_barred(node: Node, job: Job, started: int) -> str:
    tenant, terms = job.spec.tenant, node.terms_of(job.spec.tenant)
    if terms.jobs_max is not None and started >= terms.jobs_max:
        return words.jobs_wait(tenant, started, terms.jobs_max)
    if terms.devices is not None and not any(node.may_use(job.spec, device) for device in node.devices):
        return words.device_wait(tenant, terms.devices, job.spec.device)
    if terms.memory_bytes_max is None or any(_leaves_room(node, job, each) for each in node.devices.values()):
        return ""
    need = min(_least(node, job, device).total_bytes for device in admission.allowed_devices(node, job))
    return words.memory_wait(tenant, need, terms.memory_bytes_max, node.tenant_bytes(tenant))


def _least(node: Node, job: Job, device: Device) -> Needs:
    return admission.starting_needs(node, job, device)


def _leaves_room(node: Node, job: Job, device: Device) -> bool:
    least = _least(node, job, device)
    is_allowed = node.may_use(job.spec, device.id)
    return is_allowed and node.tenant_lets(job, device, least.resident_bytes, least.ephemeral_bytes)
