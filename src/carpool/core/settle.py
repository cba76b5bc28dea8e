"""What follows when bytes changed hands: outgrown promises, lane sizes, the queue, and everybody's cap.

Runs after every event that made or freed room, never for a plain hand-over of a turn.
"""

from __future__ import annotations

from carpool.core import admission, lanes, ledger, reasons
from carpool.core.accounts import reset_marks, view_of
from carpool.core.dispatch import recall
from carpool.core.effects import Effect, ExplainWait, SetCap, StartJob
from carpool.core.model import Job, Nanos
from carpool.core.node import Node

ADMIT_TRIES = 16  # how deep into the queue one pass looks past jobs that do not fit


def settle(node: Node, *, now: Nanos) -> list[Effect]:
    """Cover outgrown promises, cut lanes, admit the queue, and tell jobs how much they may hold."""
    for device in node.devices.values():
        lanes.shrink(device, node.jobs)
        for job in sorted(node.jobs_on(device), key=lambda job: (job.arrived_ns, job.id)):
            admission.cover(node, job)
        lanes.shrink(device, node.jobs)
    return _admit(node, now=now) + _set_caps(node)


def _admit(node: Node, *, now: Nanos) -> list[Effect]:
    effects: list[Effect] = []
    left = [node.jobs[job_id] for job_id in node.queue]
    for _ in range(min(ADMIT_TRIES, len(left))):
        picked = node.policy.pick([view_of(node, job, now=now) for job in left], now=now)
        if picked is None:
            break
        job = node.jobs[picked]
        left.remove(job)
        offer = admission.find_offer(node, job)
        while offer is None and _merge_for(node, job):
            offer = admission.find_offer(node, job)
        if offer is not None:
            admission.accept(job, offer)
            node.queue.remove(job.id)
            node.move(job, StartJob, now=now)
            job.reason = ""
            effects.append(StartJob(job=job.id, device=offer.device.id))
            continue
        effects += _free_a_lane_for(node, job, now=now)
        effects += _explain(job, _queue_reason(node, job))
        if now - job.arrived_ns >= node.settings.pass_over_ns:
            for behind in left:
                effects += _explain(behind, reasons.passed_over(behind, job))
            break
    return effects


def _merge_for(node: Node, job: Job) -> bool:
    """Merge one free lane if merging can let the job in; False if nothing was merged."""
    for device in admission.allowed_devices(node, job):
        wanted = admission.total_need_bytes(job) or admission.start_floor_bytes(node, device)
        if lanes.merging_would_fit(device, resident_bytes=wanted, ephemeral_bytes=0) and lanes.merge_free(
            device, node.jobs
        ):
            reset_marks(node, device)
            return True
    return False


def _free_a_lane_for(node: Node, job: Job, *, now: Nanos) -> list[Effect]:
    """Recall the youngest holder where merging would let the job in but every lane is held."""
    for device in admission.allowed_devices(node, job):
        wanted = admission.total_need_bytes(job) or admission.start_floor_bytes(node, device)
        if lanes.merging_would_fit(device, resident_bytes=wanted, ephemeral_bytes=0):
            youngest = max(node.holders_on(device), key=lambda holder: (holder.arrived_ns, holder.id))
            return recall(node, youngest, f"its lane is merged to let {job.spec.name} in", now=now)
    return []


def _queue_reason(node: Node, job: Job) -> str:
    devices = admission.allowed_devices(node, job)
    device = max(devices, key=lambda each: (ledger.free_bytes(each), each.id))
    measured = next(
        (each for each in node.jobs_on(device) if each.needs is None and each.spec.cap_bytes is None), None
    )
    need = admission.total_need_bytes(job)
    floor = admission.start_floor_bytes(node, device)
    return reasons.queue_wait(job, need, device, floor, measured)


def _explain(job: Job, reason: str) -> list[Effect]:
    if job.reason == reason:
        return []
    job.reason = reason
    return [ExplainWait(job=job.id, reason=reason)]


def _set_caps(node: Node) -> list[Effect]:
    effects: list[Effect] = []
    for device in node.devices.values():
        for job in node.jobs_on(device):
            cap = admission.room_bytes(node, job)
            if cap != job.cap_sent_bytes:
                job.cap_sent_bytes = cap
                effects.append(SetCap(job=job.id, cap_bytes=cap))
    return effects
