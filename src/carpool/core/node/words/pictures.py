"""Builds the frozen pictures people see (views.py) from the state of a node; the sentences come from explain.py."""

from __future__ import annotations

from carpool.core.kernel.ids import SHARE_ONE, DeviceId, JobId, Nanos
from carpool.core.node import accounts, lifecycle
from carpool.core.node.memory import admission, ledger
from carpool.core.node.model import ENDED, Device, Job, Why
from carpool.core.node.moves import departures
from carpool.core.node.node import Node, is_asking, is_holding, leaves_for
from carpool.core.node.turns import choice
from carpool.core.node.words.views import DevicePicture, JobPicture, LanePicture, NodePicture

WAITS = ("turn", "limit", "memory", "parked")


def picture_job(node: Node, job: Job, reason: str, *, now: Nanos) -> JobPicture:
    served_ns = job.service.served_ns + (now - job.service.charged_ns if is_holding(job) else 0)
    rows = lifecycle.rows_of(job, now=now)
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
        remaining_ns=_remaining_ns(node, job, served_ns),
        arrived_ns=job.arrived_ns,
        state_ns=now - job.state_since_ns,
        served_ns=served_ns,
        waited_ns=sum(rows.get(row, 0) for row in WAITS),
        spent_ns=rows,
        waited_for_ns=dict(job.service.waited_for_ns),
        silent_ns=_silent_ns(job, now=now),
        is_hog=now >= (choice.deadline(node, job) or now + 1),
        needs=job.memory.needs,
        promised_bytes=job.memory.promised_bytes,
        live_bytes=job.memory.live_bytes,
        pending_bytes=job.memory.pending_bytes if is_asking(job) else 0,
        cap_bytes=job.spec.cap_bytes,
        guaranteed_milli=(job.share if job.device else job.spec).guaranteed_milli,
        limit_milli=(job.share if job.device else job.spec).limit_milli,
        is_suspended=departures.is_stopped(job),
        departures=departures.reasons_of(job),
        is_shrinking=not job.departures.keys().isdisjoint(admission.SQUEEZED),
        leaving_for=leaves_for(job),
        parked_bytes=job.memory.parked_bytes,
        move_ns=job.move.took_ns,
        move_trouble=job.move.trouble,
        reason=reason,
        moving_to=_moving_to(job),
        kept_on=job.move.source,
        kept_bytes=node.devices[job.move.source].kept[job.id] if job.move.source is not None else 0,
        move_refused=job.move.refused,
        change_ns=job.service.changes.each_ns,
        quantum_ns=choice.quantum_of(node, job, now=now) if node.lane_of(job) is not None else None,
        quantum_why=choice.why_quantum(node, job, now=now),
        borrowed_ns=job.share.borrowed // SHARE_ONE,
        user=job.spec.user,
        orders=job.wall.orders,
    )


def _remaining_ns(node: Node, job: Job, served_ns: Nanos) -> Nanos | None:
    remaining, is_known = accounts.remaining_ns(node, job, served_ns=served_ns)
    return remaining if is_known and job.state not in ENDED else None


def _silent_ns(job: Job, *, now: Nanos) -> Nanos | None:
    return None if job.lease is None else now - max(job.service.last_step_ns or 0, job.lease.granted_ns)


def _moving_to(job: Job) -> DeviceId | None:
    migrates = job.departures.get(Why.MIGRATES)
    return job.device if job.move.source is not None else migrates.to if migrates is not None else None


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


def picture_node(node: Node, reasons: dict[JobId, str], *, now: Nanos) -> NodePicture:
    return NodePicture(
        policy=node.policy.name,
        host_bytes=node.host_bytes(),
        host_bytes_max=node.settings.host_bytes_max,
        devices=tuple(picture_device(node, device) for device in node.devices.values()),
        jobs=tuple(picture_job(node, job, reasons[job.id], now=now) for job in node.jobs.values()),
    )
