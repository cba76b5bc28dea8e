"""Memory that is lent comes back, and what is above a lowered ceiling leaves: who is told to go, and for whom.

memory/tenure.py says what is owned, on loan and owed. Here those on loan are parked at their boundaries when what
they have is owed to somebody.

Rules
  N22  For a job that is owed room and has none, as few of those on loan as needed are parked, as soon as it wants it,
       whatever the policy says of their order, and however short a time they have been there. First goes the tenant
       that is furthest above its part; of its jobs the one with the shortest steps, that had least, holds least, and
       came last. Nobody is ended, and no iteration is lost.
  N23  A borrower that is asked gets no turn from that moment on. One without a boundary now (it starts, or wants no
       turn) is parked the moment it asks for a turn; where that is not soon, others go instead.
  N24  Where a ceiling of memory is below what a tenant's jobs need, the oldest keep theirs as far as it goes. The
       others get no turn, leave at their next boundary, and come back by themselves; meanwhile no other job of the
       tenant starts.

  N25  What is lent is counted: what tenants hold beyond their parts, and beyond what is guaranteed to nobody, is
       borrowed by them, in proportion, and lent by those who do not use theirs, in proportion. Both sums are equal,
       to the byte and the nanosecond.

This module alone changes `Device.owed` and `Device.loans`.
"""

from __future__ import annotations

from carpool.core.kernel.ids import JobId, Nanos, TenantId
from carpool.core.node.memory import admission, tenure
from carpool.core.node.model import BLOCKED, RESIDENT, Departure, Device, Job, JobState, Loan, Needs, Why
from carpool.core.node.moves import departures, leavers
from carpool.core.node.node import Node

SLOW = frozenset({JobState.STARTING, JobState.IDLE, JobState.PROFILING})  # no boundary of theirs is in sight


def review(node: Node, *, now: Nanos) -> None:
    """Note who is owed room, and who is above its tenant's ceiling; before bytes are settled."""
    for device in node.devices.values():
        device.owed = _owed(node, device, now=now) if node.has_guarantees else ()
    capped = dict[TenantId, list[Job]]()
    for job in node.jobs.values():
        has_ceiling = node.terms_of(job.spec.tenant).memory_bytes_max is not None
        if job.state in RESIDENT and (has_ceiling or Why.ABOVE in job.departures):
            capped.setdefault(job.spec.tenant, []).append(job)
    for jobs in capped.values():
        _keep_ceiling(node, jobs, now=now)


def begin_anew(node: Node, *, now: Nanos) -> None:
    """What is said of tenants changed: marks of before may have no reason any more."""
    review(node, now=now)
    call_back(node, now=now)
    note_loans(node, now=now)


# --- loans --------------------------------------------------------------------------------------------------


def _owed(node: Node, device: Device, *, now: Nanos) -> tuple[JobId, ...]:
    wanting = [job for job in node.queued_for(device) + node.lively_on(device) if node.wants_memory(job, now=now)]
    wanting = [job for job in wanting if node.has_compute_room(device, job.spec) or job.device is not None]
    found = [job for job in wanting if tenure.is_owed(node, device, job, _wanted(node, device, job))]
    return tuple(job.id for job in leavers.in_order(node, device, found, now=now))


def _wanted(node: Node, device: Device, job: Job) -> Needs:
    if job.state is JobState.QUEUED:
        return admission.starting_needs(node, job, device)
    return admission.returning_needs(node, job, device)


def call_back(node: Node, *, now: Nanos) -> None:
    """Have those on loan parked for whom they are owed to (N22)."""
    for device in node.devices.values():
        owed = tenure.waiting_owed(node, device)
        if not owed:
            _let_go_on(node, device)
        elif not node.is_moving(device) and (device.claimant is None or device.claimant not in device.owed):
            for job in owed:
                if _call_for(node, device, job, now=now):
                    break


def _let_go_on(node: Node, device: Device) -> None:
    """Nobody is owed anything any more: those that are still here may stay."""
    for job in node.lively_on(device):
        if Why.LENT in job.departures and job.departures[Why.LENT].whom != device.claimant:
            departures.drop(node, job, Why.LENT)


def _call_for(node: Node, device: Device, job: Job, *, now: Nanos) -> bool:
    """Whether somebody leaves for this job now."""
    has_room = leavers.room_for(node, device, job)
    owned = tenure.owned(node, device)
    loans = [each for each in node.jobs_on(device) if each.id not in owned and each is not job and each.spec.may_park]
    over = {tenant: tenure.over_bytes(node, device, tenant) for tenant in {each.spec.tenant for each in loans}}
    loans = sorted(loans, key=lambda each: _victim_rank(each, over[each.spec.tenant]), reverse=True)
    gone = [each for each in loans if Why.LENT in each.departures and each.state in SLOW]
    able = [each for each in loans if leavers.may_leave(each, now=now) and now >= each.move.retry_ns]
    able = [each for each in able if each.memory.needs is not None or each.service.served_ns]
    if has_room(leavers.without(node, device, able)):
        leaving = leavers.fewest(node, device, able, has_room)
        if not leaving or not node.has_host_room(sum(map(admission.bytes_to_move, leaving))):
            return False
        if device.claimant is not None:  # for somebody to whom nothing is owed
            departures.close_claim(node, device, now=now)
        departures.claim(node, device, job, leaving, Why.LENT, now=now)
        return True
    slow = [each for each in loans if each.state in SLOW and each not in gone and not each.departures]
    slow = [each for each in slow if tenure.can_promise(node, device, each)]
    if has_room(leavers.without(node, device, [*able, *gone, *slow])):
        for each in slow:  # they have no boundary now: nobody waits for them, and they go as soon as they can (N23)
            departures.add(node, each, Why.LENT, Departure(since_ns=now, lender=job.spec.tenant))
    return False


def _victim_rank(job: Job, over_bytes: int) -> tuple[int, int, int, int, int, str]:
    """Who is parked first (N22): the lowest."""
    service = job.service
    return -over_bytes, service.step_ns or 0, service.served_ns, job.memory.promised_bytes, -job.arrived_ns, job.id


# --- what is lent is counted --------------------------------------------------------------------------------


def note_loans(node: Node, *, now: Nanos) -> None:
    """Bytes are settled: what is lent from now on, and what was until now (N25)."""
    for device in node.devices.values():
        for loan in device.loans.values():
            loan.lent_byte_ns, loan.borrowed_byte_ns = tenure.byte_ns(device, loan, now=now)
        device.loans_ns = now
        tenants = sorted({*node.terms, *device.loans, *(job.spec.tenant for job in node.jobs_on(device))})
        over = {tenant: tenure.over_bytes(node, device, tenant) for tenant in tenants}
        beyond = sum(each for each in over.values() if each > 0) - tenure.common_bytes(node, device)
        total = max(0, min(beyond, sum(-each for each in over.values() if each < 0)))
        lent = _split(total, [max(0, -over[tenant]) for tenant in tenants])
        borrowed = _split(total, [max(0, over[tenant]) for tenant in tenants])
        for tenant, lent_bytes, borrowed_bytes in zip(tenants, lent, borrowed, strict=True):
            loan = device.loans.setdefault(tenant, Loan())
            loan.lent_bytes, loan.borrowed_bytes = lent_bytes, borrowed_bytes


def _split(total: int, weights: list[int]) -> list[int]:
    """A number in proportion to weights; the parts add up to it exactly."""
    parts, whole, so_far = list[int](), sum(weights), 0
    for weight in weights:
        given = total * so_far // whole if whole else 0
        so_far += weight
        parts.append((total * so_far // whole if whole else 0) - given)
    return parts


# --- ceilings that were lowered -----------------------------------------------------------------------------


def _keep_ceiling(node: Node, jobs: list[Job], *, now: Nanos) -> None:
    """Hold back the youngest of a tenant's jobs as far as they are above its ceiling, and let the others (N24)."""
    most = node.terms_of(jobs[0].spec.tenant).memory_bytes_max
    held, widest = 0, 0
    for job in sorted(jobs, key=lambda each: (each.arrived_ns, each.id)):
        needs = job.memory.needs
        total = max(held + max(job.memory.promised_bytes, needs.resident_bytes if needs is not None else 0), held)
        wider = max(widest, needs.ephemeral_bytes if needs is not None else 0)
        is_above = most is not None and total + wider > most
        if not is_above or job.state is JobState.UNMANAGED or job.state is BLOCKED:
            departures.drop(node, job, Why.ABOVE)
            held, widest = total, wider
        elif Why.ABOVE not in job.departures:
            departures.add(node, job, Why.ABOVE, Departure(since_ns=now))
            departures.retry_now(job)
