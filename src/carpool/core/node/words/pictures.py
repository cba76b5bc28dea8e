"""Builds the frozen pictures people see (views.py) from the state of a node."""

from __future__ import annotations

from carpool.core.kernel.ids import Nanos
from carpool.core.node.accounts import remaining_ns, rows_of
from carpool.core.node.memory import ledger, waiting
from carpool.core.node.model import ENDED, Device, Job, JobState
from carpool.core.node.moves import parking, rotation
from carpool.core.node.node import Node, is_holding
from carpool.core.node.turns import hogs
from carpool.core.node.turns.dispatch import turn_reason
from carpool.core.node.words import reasons
from carpool.core.node.words.views import DevicePicture, JobPicture, LanePicture, NodePicture
from carpool.units import format_ns

WAITS = ("turn", "limit", "memory", "parked")


def explain(node: Node, job: Job, *, now: Nanos) -> str:
    """One sentence: what the job does or waits for, with the numbers."""
    if job.state is JobState.WAITING:
        return turn_reason(node, node.device_of(job), job, now=now)
    if waiting.is_asking(job):
        return reasons.blocked(job, node.device_of(job))
    if job.state is JobState.PARKED:
        device = node.device_of(job)
        needs = parking.returning_needs(node, job, device)
        span = format_ns(now - (job.suspended_ns if job.is_suspended else job.state_since_ns))
        outlook, due_ns = rotation.outlook(node, device, job, now=now), parking.next_try(job, now=now)
        again_ns = due_ns - now if due_ns is not None else None
        return reasons.away(job, device, needs.total_bytes, span, outlook, again_ns)
    late = hogs.deadline(node, job)
    if late is not None and now >= late and job.lease is not None and job.lease.recalled_ns is not None:
        return reasons.hog(job, now - job.lease.recalled_ns, job.lease.hog_step)
    return reasons.standing(job, now=now)


def picture_job(node: Node, job: Job, *, now: Nanos) -> JobPicture:
    served_ns = job.service.served_ns + (now - job.service.charged_ns if is_holding(job) else 0)
    remaining, is_known = remaining_ns(node, job, served_ns=served_ns)
    late = hogs.deadline(node, job)
    last = max(job.service.last_step_ns or 0, job.lease.granted_ns) if job.lease is not None else None
    rows = rows_of(job, now=now)
    return JobPicture(
        id=job.id,
        name=job.spec.name,
        tenant=job.spec.tenant,
        state=job.state,
        device=job.device,
        lane=job.lane,
        priority=job.spec.priority,
        weight_milli=job.spec.weight_milli,
        steps=job.service.steps,
        steps_declared=job.spec.steps,
        step_ns=job.service.step_ns,
        remaining_ns=remaining if is_known and job.state not in ENDED else None,
        arrived_ns=job.arrived_ns,
        state_ns=now - job.state_since_ns,
        served_ns=served_ns,
        waited_ns=sum(rows.get(row, 0) for row in WAITS),
        spent_ns=rows,
        waited_for_ns=dict(job.service.waited_for_ns),
        silent_ns=now - last if last is not None else None,
        is_hog=late is not None and now >= late,
        needs=job.memory.needs,
        promised_bytes=job.memory.promised_bytes,
        live_bytes=job.memory.live_bytes,
        pending_bytes=job.memory.pending_bytes if waiting.is_asking(job) else 0,
        cap_bytes=job.spec.cap_bytes,
        guaranteed_milli=(job.share if job.device else job.spec).guaranteed_milli,
        limit_milli=(job.share if job.device else job.spec).limit_milli,
        is_suspended=job.is_suspended or job.is_sent_away or job.gives_way,
        is_shrinking=job.squeeze is not None,
        leaving_for=job.leaving_for,
        parked_bytes=job.memory.parked_bytes,
        move_ns=job.move.took_ns,
        move_trouble=job.move.trouble,
        reason=explain(node, job, now=now),
        moving_to=job.moving_to if job.move.source is None else job.device,
        kept_on=job.move.source,
        kept_bytes=node.devices[job.move.source].kept[job.id] if job.move.source is not None else 0,
        move_refused=job.move.refused,
    )


def picture_device(node: Node, device: Device) -> DevicePicture:
    return DevicePicture(
        id=device.id,
        capacity_bytes=device.capacity_bytes,
        promised_bytes=ledger.promised_bytes(device),
        lanes_bytes=ledger.lanes_bytes(device),
        free_bytes=ledger.free_bytes(device),
        live_bytes=sum(job.memory.live_bytes for job in node.jobs_on(device)),
        claimant=device.claimant,
        lanes=tuple(
            LanePicture(id=lane.id, bytes=lane.bytes, jobs=tuple(lane.jobs), holder=lane.holder)
            for lane in device.lanes.values()
        ),
    )


def picture_node(node: Node, *, now: Nanos) -> NodePicture:
    return NodePicture(
        policy=node.policy.name,
        host_bytes=node.host_bytes(),
        host_bytes_max=node.settings.host_bytes_max,
        devices=tuple(picture_device(node, device) for device in node.devices.values()),
        jobs=tuple(picture_job(node, job, now=now) for job in node.jobs.values()),
    )
