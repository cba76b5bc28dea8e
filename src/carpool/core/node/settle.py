"""What follows when bytes changed hands: outgrown promises, lane sizes, the queue, and everybody's cap.

Runs after every event that made or freed room, never for a plain hand-over of a turn.
"""

from __future__ import annotations

from carpool.core.kernel.ids import DeviceId, JobId, Nanos
from carpool.core.node.accounts import raise_floors, reset_marks, view_of
from carpool.core.node.effects import Effect, ExplainWait, SetCap, StartJob
from carpool.core.node.memory import admission, lanes, ledger, waiting
from carpool.core.node.model import Device, Job
from carpool.core.node.moves import migration, parking, rotation
from carpool.core.node.node import Node
from carpool.core.node.turns import hogs, shares
from carpool.core.node.turns.dispatch import recall
from carpool.core.node.words import reasons
from carpool.core.policies.view import JobView

ADMIT_TRIES = 16  # how deep into the queue one pass looks past jobs that do not fit


def settle(node: Node, *, now: Nanos) -> list[Effect]:
    """Cover outgrown promises, cut lanes, admit the queue, and tell jobs how much they may hold."""
    effects: list[Effect] = []
    returns = migration.settle(node, now=now)
    for device in node.devices.values():
        raise_floors(node, device)
        hogs.forgive(node, device)
        lanes.shrink(device, node.jobs)
        for job in sorted(node.jobs_on(device), key=lambda job: (job.arrived_ns, job.id)):
            effects += _cover(node, device, job, now=now)
        lanes.shrink(device, node.jobs)
        effects += waiting.settle(node, device, now=now)
        returns += parking.unpark_fitting(node, device, _rivals(node, device, now=now), now=now)
        rotation.review(node, device, now=now)
    effects += _admit(node, now=now)
    for device in node.devices.values():
        rotation.review(node, device, now=now)
        returns += parking.unpark_fitting(node, device, [], now=now)
    rotation.make_room(node, now=now)
    # A job may take its bytes back only after its cap, and those of the others, say so.
    told = [effect for device in node.devices.values() for effect in shares.settle(node, device)]
    return effects + told + _set_caps(node) + returns


def _rivals(node: Node, device: Device, *, now: Nanos) -> list[Job]:
    """Queued jobs that could have what is free of the device; parked ones may have to let them go first."""
    if not any(parking.may_return(job, now=now) for job in node.jobs_on(device)):
        return []
    queued = [node.jobs[job_id] for job_id in node.queue[:ADMIT_TRIES]]
    allowed = [job for job in queued if not job.is_suspended and job.spec.device in (None, device.id)]
    allowed = [job for job in allowed if rotation.lets_start(node, device, job, now=now)]
    return [job for job in allowed if admission.find_offer(node, job, [device]) is not None]


def _cover(node: Node, device: Device, job: Job, *, now: Nanos) -> list[Effect]:
    """Make the promises hold what a resident job needs, merging lanes if that helps (M5)."""
    while not admission.cover(node, job):
        if not _merge_for(node, job, [device]):
            return _free_a_lane_for(node, job, [device], now=now)
    return []


def _admit(node: Node, *, now: Nanos) -> list[Effect]:
    effects: list[Effect] = []
    if not node.queue:
        return effects
    left: dict[JobId, JobView] = {}
    for job_id in node.queue:
        job = node.jobs[job_id]
        if job.is_suspended:
            effects += _explain(job, reasons.suspended_in_queue(job))
        else:
            left[job_id] = view_of(node, job, now=now)
    kept: dict[DeviceId, Job] = {}  # devices on which this job is not passed any more (M3)
    for _ in range(min(ADMIT_TRIES, len(left))):
        job = _next_in_queue(node, left, now=now)
        del left[job.id]
        allowed = admission.allowed_devices(node, job)
        devices = [each for each in allowed if each.id not in kept and rotation.lets_start(node, each, job, now=now)]
        offer = admission.find_offer(node, job, devices)
        while offer is None and _merge_for(node, job, devices):
            offer = admission.find_offer(node, job, devices)
        if offer is not None:
            admission.accept(job, offer)
            node.queue.remove(job.id)
            node.move(job, StartJob, now=now)
            rotation.review(node, offer.device, now=now)
            job.reason = ""
            effects.append(StartJob(job=job.id, device=offer.device.id))
            continue
        effects += _free_a_lane_for(node, job, devices, now=now)
        was_told = job.is_outlook_told
        effects += _explain(job, _queue_reason(node, job, allowed, kept, now=now), is_told=was_told)
        if _is_overdue(node, job, now=now):
            kept |= {device.id: job for device in devices}
    return effects


def _is_overdue(node: Node, job: Job, *, now: Nanos) -> bool:
    return now - job.arrived_ns >= node.settings.pass_over_ns


def _next_in_queue(node: Node, left: dict[JobId, JobView], *, now: Nanos) -> Job:
    """Whoever waited too long, in order of arrival (M3); then whom the policy picks."""
    oldest = node.jobs[next(iter(left))]
    if _is_overdue(node, oldest, now=now):
        return oldest
    picked = node.policy.pick(list(left.values()), now=now)
    return node.jobs[picked] if picked is not None else oldest


def _merge_for(node: Node, job: Job, devices: list[Device]) -> bool:
    """Merge one free lane if merging can let the job in; False if nothing was merged."""
    for device in devices:
        if admission.merging_lets_in(node, job, device) and lanes.merge_free(device, node.jobs):
            reset_marks(node, device)
            return True
    return False


def _free_a_lane_for(node: Node, job: Job, devices: list[Device], *, now: Nanos) -> list[Effect]:
    """Recall the youngest holder where merging would let the job in but every lane is held."""
    for device in devices:
        if admission.merging_lets_in(node, job, device):
            youngest = max(node.holders_on(device), key=lambda holder: (holder.arrived_ns, holder.id))
            return recall(node, youngest, f"its lane is merged to let {job.spec.name} in", now=now)
    return []


def _queue_reason(node: Node, job: Job, devices: list[Device], kept: dict[DeviceId, Job], *, now: Nanos) -> str:
    roomy = [device for device in devices if shares.has_room(node, device, job.spec)]
    if not roomy:
        freest = max(devices, key=lambda each: (shares.unpromised_milli(node, each), each.id))
        return reasons.compute_wait(job, shares.unpromised_milli(node, freest), freest)
    device = max(roomy, key=lambda each: (each.id not in kept, ledger.free_bytes(each), each.id))
    if device.id in kept:
        return reasons.passed_over(kept[device.id], node.settings.pass_over_ns)
    measured = next((each for each in node.jobs_on(device) if _is_being_measured(each)), None)
    whom = _measured_words(node, device, measured) if measured is not None else ""
    need = admission.total_need_bytes(job)
    floor = admission.start_floor_bytes(node, device)
    outlook = rotation.outlook(node, device, job, now=now)
    job.is_outlook_told = job.is_outlook_told or bool(outlook)
    return reasons.queue_wait(need, device, floor, outlook, measured, whom)


def _measured_words(node: Node, device: Device, job: Job) -> str:
    smaller = admission.smaller_promise_bytes(node, device, job)
    shrinks = admission.is_open_and_quiet(job) and smaller < job.memory.promised_bytes
    return reasons.open_promise(job, node.settings.start_patience_ns if shrinks else None)


def _is_being_measured(job: Job) -> bool:
    return job.memory.needs is None and job.spec.cap_bytes is None and job.lane is not None


def _explain(job: Job, reason: str, *, is_told: bool = False) -> list[Effect]:
    """Say why a job waits when that changed; while others rotate the numbers change all the time, so then once."""
    is_old = job.reason == reason or is_told
    job.reason = reason
    return [] if is_old else [ExplainWait(job=job.id, reason=reason)]


def _set_caps(node: Node) -> list[Effect]:
    effects: list[Effect] = []
    for device in node.devices.values():
        for job in node.jobs_on(device):
            cap = admission.room_bytes(node, job)
            if cap != job.memory.cap_sent_bytes:
                job.memory.cap_sent_bytes = cap
                effects.append(SetCap(job=job.id, cap_bytes=cap))
    return effects
