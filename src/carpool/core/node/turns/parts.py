"""Tenants' parts of a device's time: what each is guaranteed, what it may have at most, what was lent and borrowed.

Counted as the shares of jobs are (shares.py): `owed_from_ns` is when the guarantee next owes the tenant a turn,
`free_from_ns` when its ceiling next lets it have one, and held time moves both on by held / part.

Rules
  N16  A waiting tenant that is owed goes before all that are not, and before those owed later; which of its jobs goes
       is for the policy. While it waits, a job of another tenant keeps its turn for PART_QUANTUM_NS only. A job's own
       guarantee counts after those of tenants.
  N17  Over any span the jobs of a tenant hold the device no longer than ceiling x span, plus PART_BURST_NS of it and
       the turn that was under way. Who may have no turn because of that waits for nobody.
  N18  What one does not use is for the others, at once, and is counted: while a tenant wants no turn, its part of all
       time that is held is lent by it and borrowed by those who hold. Both sums are equal, to the nanosecond.

This module alone changes `Part`, and which part a job counts for.
"""

from __future__ import annotations

from collections.abc import Sequence

from carpool.core.kernel.ids import SHARE_ONE, Nanos, TenantId
from carpool.core.node.model import WANTING, Device, Job, Part
from carpool.core.node.node import Node
from carpool.units import MS

PART_QUANTUM_NS = 100 * MS
PART_BURST_NS = 300 * MS  # of unused time so much is saved up: a few turns of others


# --- who has a part -----------------------------------------------------------------------------------------


def settle(node: Node, device: Device) -> None:
    """Give each tenant that is here, or is guaranteed something, its part; all have one where anybody has."""
    here = {job.spec.tenant for job in node.jobs_on(device)} if node.has_parts else set[TenantId]()
    named = [tenant for tenant, terms in node.terms.items() if terms.guaranteed_milli] if node.has_parts else []
    for tenant in sorted({*here, *named, *device.parts}):
        terms = node.terms_of(tenant)
        part = device.parts.get(tenant)
        if part is None:
            part = device.parts[tenant] = Part(tenant=tenant, held_from_ns=device.held_ns)
        if part.guaranteed_milli != terms.guaranteed_milli:
            _begin_anew(device, part, terms.guaranteed_milli)
        part.limit_milli = terms.compute_milli_max
    if not node.has_parts:
        device.parts.clear()
    for job in node.jobs_on(device):
        job.share.part = device.parts.get(job.spec.tenant)


def _begin_anew(device: Device, part: Part, guaranteed_milli: int) -> None:
    """What was lent so far was lent of another part."""
    part.lent_before, part.held_from_ns, part.wanted_ns = lent(device, part), device.held_ns, 0
    part.guaranteed_milli = guaranteed_milli


# --- time ---------------------------------------------------------------------------------------------------


def charge_holders(node: Node, device: Device, *, now: Nanos) -> None:
    """Whoever holds a turn has had it until now; before the jobs' own accounts are charged."""
    wanting = _wanting(node, device)
    idle_milli = _idle_milli(device, wanting)
    for holder in node.holders_on(device):
        span, part = now - holder.service.charged_ns, holder.share.part
        if span <= 0 or part is None:
            continue
        device.held_ns += span
        for tenant in wanting:
            device.parts[tenant].wanted_ns += span
        part.borrowed += span * idle_milli
        holder.share.borrowed += span * idle_milli
        _charge(part, span, holder.service.step_ns or 0, now=now)


def _wanting(node: Node, device: Device) -> set[TenantId]:
    """The tenants that want turns of the device."""
    return {job.spec.tenant for job in node.lively_on(device) if job.state in WANTING}


def _idle_milli(device: Device, wanting: set[TenantId]) -> int:
    """The parts of all others."""
    return sum(part.guaranteed_milli for name, part in device.parts.items() if name not in wanting)


def _charge(part: Part, span: Nanos, step_ns: Nanos, *, now: Nanos) -> None:
    earliest = now - span - PART_BURST_NS
    if part.guaranteed_milli:
        latest = now + max(PART_BURST_NS, step_ns) * SHARE_ONE // part.guaranteed_milli
        owed_from_ns = max(part.owed_from_ns, earliest) + span * SHARE_ONE // part.guaranteed_milli
        part.owed_from_ns = min(latest, owed_from_ns)
    part.free_from_ns = max(part.free_from_ns, earliest) + span * SHARE_ONE // part.limit_milli


def lent(device: Device, part: Part) -> int:
    """What the tenant has lent of its part, in nanoseconds × thousandths of the device (N18)."""
    return part.lent_before + part.guaranteed_milli * (device.held_ns - part.held_from_ns - part.wanted_ns)


def borrowed_by(node: Node, job: Job, *, now: Nanos) -> int:
    """What a job has borrowed until now, in nanoseconds × thousandths."""
    if job.lease is None or job.share.part is None:
        return job.share.borrowed
    device = node.device_of(job)
    return job.share.borrowed + (now - job.service.charged_ns) * _idle_milli(device, _wanting(node, device))


def sums(node: Node, *, now: Nanos) -> tuple[dict[TenantId, int], dict[TenantId, int]]:
    """What each tenant has lent and what it has borrowed until now, on all devices, in nanoseconds × thousandths."""
    all_lent, all_borrowed = dict[TenantId, int](), dict[TenantId, int]()
    for device in node.devices.values():
        wanting, holders = _wanting(node, device), node.holders_on(device) if device.parts else []
        uncharged_ns = sum(now - holder.service.charged_ns for holder in holders)
        for name, part in device.parts.items():
            since = 0 if name in wanting else uncharged_ns * part.guaranteed_milli
            all_lent[name] = all_lent.get(name, 0) + lent(device, part) + since
            own = [each for each in holders if each.share.part is part]
            newer = sum(borrowed_by(node, each, now=now) - each.share.borrowed for each in own)
            all_borrowed[name] = all_borrowed.get(name, 0) + part.borrowed + newer
    return all_lent, all_borrowed


def lent_ns(node: Node, *, now: Nanos) -> dict[TenantId, Nanos]:
    """What each tenant has lent of its part until now, on all devices."""
    all_lent = sums(node, now=now)[0] if node.has_parts else {}
    return {tenant: lent_milli // SHARE_ONE for tenant, lent_milli in all_lent.items()}


# --- turns --------------------------------------------------------------------------------------------------


def most_owed(wanting: Sequence[Job], *, now: Nanos) -> Part | None:
    """Whose jobs must go first because of its guarantee (N16)."""
    found: Part | None = None
    for job in wanting:
        part = job.share.part
        if part is None or part is found or not is_owed(job, now=now):
            continue
        if found is None or (part.owed_from_ns, part.tenant) < (found.owed_from_ns, found.tenant):
            found = part
    return found


def is_owed(job: Job, *, now: Nanos) -> bool:
    part = job.share.part
    return part is not None and part.guaranteed_milli > 0 and part.owed_from_ns <= now


def is_kept_waiting(waiting: Sequence[Job], holder: Job, *, now: Nanos) -> bool:
    """Whether a tenant other than the holder's is owed a turn (N16)."""
    return any(is_owed(job, now=now) and job.share.part is not holder.share.part for job in waiting)


def wakeups(waiting: Sequence[Job], holder: Job | None, *, now: Nanos) -> list[Nanos]:
    """When a ceiling or a guarantee next changes who may run on a lane."""
    if holder is None or holder.lease is None or holder.share.part is None:
        return []
    times, kept = list[Nanos](), holder.lease.granted_ns + PART_QUANTUM_NS
    for job in waiting:
        part = job.share.part
        if part is not None and part is not holder.share.part and part.guaranteed_milli and part.owed_from_ns > now:
            times.append(max(part.owed_from_ns, kept))
    part = holder.share.part
    if part.limit_milli < SHARE_ONE:
        left = max(0, now - max(part.free_from_ns, now - PART_BURST_NS))
        times.append(now + max(MS, left * part.limit_milli // (SHARE_ONE - part.limit_milli)))
    return times
