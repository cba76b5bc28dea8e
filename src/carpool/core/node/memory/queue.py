"""The queue: in which order waiting jobs start, what is done to let the next one in, and what the others are told.

Whether there is room for one is admission.py's question; for whom others are parked is rotation.py's.
"""

from __future__ import annotations

from collections.abc import Iterator

from carpool.core.kernel.ids import DeviceId, JobId, Nanos
from carpool.core.node import accounts, lifecycle
from carpool.core.node.effects import Effect, ExplainWait, StartJob
from carpool.core.node.memory import admission
from carpool.core.node.model import Device, Job
from carpool.core.node.moves import departures, leavers
from carpool.core.node.node import Node, is_asked_away, may_return
from carpool.core.node.words import reasons

ADMIT_TRIES = 16  # how deep into the queue one pass looks past jobs that do not fit


def refusal(node: Node, job: Job) -> str | None:
    """Why the job can never run here, or None (M4)."""
    devices = admission.allowed_devices(node, job)
    if not devices:
        return reasons.no_device(list(node.devices), job)
    need = admission.total_need_bytes(job)
    largest = max(devices, key=lambda device: (device.capacity_bytes, device.id))
    if need is not None and need > largest.capacity_bytes:
        return reasons.never_fits(job, need, largest)
    return None


def rivals(node: Node, device: Device, *, now: Nanos) -> list[Job]:
    """Queued jobs that could have what is free of the device; parked ones may have to let them go first."""
    if not any(may_return(job, now=now) for job in node.jobs_on(device)):
        return []
    queued = [node.jobs[job_id] for job_id in node.queue[:ADMIT_TRIES] if job_id not in node.barred]
    allowed = [job for job in queued if not is_asked_away(job) and node.may_use(job.spec, device.id)]
    allowed = [job for job in allowed if _lets_start(node, device, job, now=now)]
    return [job for job in allowed if admission.find_offer(node, job, [device]) is not None]


def _lets_start(node: Node, device: Device, job: Job, *, now: Nanos) -> bool:
    """Whether a queued job may have free bytes: not those made free for another (R3), not where its guarantee finds
    no room (S3), and not if parked jobs would then wait for its end because the host has no room for it (R2)."""
    if device.claimant not in (None, job.id) or not node.has_compute_room(device, job.spec):
        return False
    if node.settings.host_bytes_max is None or not node.awaits_return(device, now=now):
        return True
    return node.has_host_room(admission.starting_needs(node, job, device).resident_bytes)


def merge_and_cover(node: Node, device: Device, job: Job, *, now: Nanos) -> list[Effect]:
    """Merge lanes as far as that makes room for a resident job that outgrew its promise (M5)."""
    while _merge_for(node, job, [device]):
        if admission.cover(node, job):
            return []
    return _free_a_lane_for(node, job, [device], now=now)


def _who_may(node: Node) -> tuple[list[Job], list[Effect]]:
    """The jobs of the queue that start if there is room; the others are told why they do not, whatever is free."""
    admission.review_ceilings(node)
    left, effects = list[Job](), list[Effect]()
    for job_id in node.queue:
        job = node.jobs[job_id]
        if job.departures and is_asked_away(job):  # few are, and a long queue is gone through at every start
            effects += _explain(job, departures.queued_words(job))
        elif job_id in node.barred:
            effects += _explain(job, node.barred[job_id])
        else:
            left.append(job)
    return left, effects


def admit(node: Node, *, now: Nanos) -> list[Effect]:
    if not node.queue:
        return []
    left, effects = _who_may(node)
    if not node.may_start:
        return effects + _explain_starts(node, left, now=now)
    kept: dict[DeviceId, Job] = {}  # devices on which this job is not passed any more (M3)
    for job in _in_turn(node, left, now=now):
        left = [other for other in left if other is not job]
        if job.id in node.barred:  # by one that was let in just now
            effects += _explain(job, node.barred[job.id])
            continue
        allowed = admission.allowed_devices(node, job)
        devices = [each for each in allowed if each.id not in kept and _lets_start(node, each, job, now=now)]
        offer = admission.find_offer(node, job, devices)
        while offer is None and _merge_for(node, job, devices):
            offer = admission.find_offer(node, job, devices)
        if offer is not None:
            admission.accept(job, offer)
            lifecycle.move(node, job, StartJob, now=now)
            if offer.device.claimant == job.id:
                departures.close_claim(node, offer.device, now=now)
            lifecycle.note_reason(job, "")
            effects.append(StartJob(job=job.id, device=offer.device.id))
            admission.review_ceilings(node)
            if not node.may_start:
                return effects + _explain_starts(node, left, now=now)
            continue
        effects += _free_a_lane_for(node, job, devices, now=now)
        reason, has_outlook = leavers.why_queued(node, job, allowed, kept, now=now)
        effects += _explain(job, reason, is_told=job.is_outlook_told)
        job.is_outlook_told = job.is_outlook_told or has_outlook
        if _is_overdue(node, job, now=now):
            kept |= {device.id: job for device in devices}
    return effects


def _explain_starts(node: Node, left: list[Job], *, now: Nanos) -> list[Effect]:
    """Tell those who have just come why they wait. Others were told of something, and it is soon over."""
    new = [job for job in left if job.arrived_ns == now and not job.reason]
    words = reasons.start_wait(node.settings, len(node.starts), node.starts_most, node.start_trouble)
    return [ExplainWait(job=job.id, reason=words) for job in new]


def _is_overdue(node: Node, job: Job, *, now: Nanos) -> bool:
    return now - job.arrived_ns >= node.settings.pass_over_ns


def _in_turn(node: Node, queued: list[Job], *, now: Nanos) -> Iterator[Job]:
    """Whoever waited too long, in order of arrival (M3); then whom the policy puts first. Letting one in changes
    nobody's place, so a policy is asked once for all of them: it costs as much as the queue is long."""
    tried: set[JobId] = set()
    order: list[Job] | None = None
    owed = {job_id for device in node.devices.values() for job_id in device.owed}
    for job in queued if owed else ():
        if job.id in owed:  # by its tenant's guarantee, before everybody else (N20)
            tried.add(job.id)
            yield job
    while len(tried) < min(ADMIT_TRIES, len(queued)):
        job = next(each for each in queued if each.id not in tried)
        if not _is_overdue(node, job, now=now):
            order = order or accounts.in_order(node, queued, now=now, at_most=ADMIT_TRIES)
            job = next(each for each in order if each.id not in tried)
        tried.add(job.id)
        yield job


def _merge_for(node: Node, job: Job, devices: list[Device]) -> bool:
    """Merge one free lane if merging can let the job in; False if nothing was merged."""
    for device in devices:
        if admission.merging_lets_in(node, job, device) and admission.merge_free(node, device):
            return True
    return False


def _free_a_lane_for(node: Node, job: Job, devices: list[Device], *, now: Nanos) -> list[Effect]:
    """Recall the youngest holder where merging would let the job in but every lane is held."""
    for device in devices:
        if admission.merging_lets_in(node, job, device):
            youngest = max(node.holders_on(device), key=lambda holder: (holder.arrived_ns, holder.id))
            return lifecycle.recall(node, youngest, f"its lane is merged to let {job.spec.name} in", now=now)
    return []


def _explain(job: Job, reason: str, *, is_told: bool = False) -> list[Effect]:
    """Say why a job waits when that changed; while others rotate the numbers change all the time, so then once."""
    is_old = job.reason == reason or is_told
    lifecycle.note_reason(job, reason)
    return [] if is_old else [ExplainWait(job=job.id, reason=reason)]
