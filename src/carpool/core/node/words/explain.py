"""What people are shown: frozen pictures of the state (views.py), and for every job one true sentence.

Why a job waits is asked of whoever decided it: the departures' table, the choice of turns, those who would have to
leave. The policy is asked to defend only what it decided.
"""

from __future__ import annotations

from carpool.core.kernel.ids import Nanos
from carpool.core.node import accounts, lifecycle
from carpool.core.node.memory import admission, ledger
from carpool.core.node.model import ENDED, PARKED, WAITING, Device, Job, JobState, Lane, LeaseState, Why
from carpool.core.node.moves import departures, leavers
from carpool.core.node.node import Node, is_asking, is_holding, next_try, start_ns
from carpool.core.node.turns import choice, shares
from carpool.core.node.words import reasons
from carpool.core.node.words.views import DevicePicture, JobPicture, LanePicture, NodePicture
from carpool.units import format_bytes, format_ns

STOPPED = frozenset({Why.SUSPENDED, Why.SENT_AWAY, Why.GIVES_WAY})  # shown as suspended
WAITS = ("turn", "limit", "memory", "parked")


def explain(node: Node, job: Job, *, now: Nanos) -> str:
    """One sentence: what the job does or waits for, with the numbers."""
    if job.state is WAITING:
        return turn_reason(node, node.device_of(job), job, now=now)
    if is_asking(job):
        return reasons.blocked(job, node.device_of(job))
    if job.state is PARKED:
        return _away(node, node.device_of(job), job, now=now)
    late = choice.deadline(node, job)
    if late is not None and now >= late and job.lease is not None and job.lease.recalled_ns is not None:
        return reasons.hog(job, now - job.lease.recalled_ns, job.lease.hog_step)
    return reasons.standing(job, now=now)


def _away(node: Node, device: Device, job: Job, *, now: Nanos) -> str:
    """Why a parked job is not back."""
    suspended = job.departures.get(Why.SUSPENDED)
    span = format_ns(now - (suspended.since_ns if suspended is not None else job.state_since_ns))
    found = departures.first(job)
    if found is not None and found[0].away is not None:
        return found[0].away(job, found[1], span)
    need = admission.returning_needs(node, job, device).total_bytes
    due_ns = next_try(job, now=now)
    outlook = leavers.outlook(node, device, job, now=now)
    outlook = f"it is tried again, in {format_ns(due_ns - now)}" if due_ns is not None else outlook or "others end"
    return reasons.kept_out(job, device, need, span, outlook)


def _stuck(job: Job, device: Device) -> str:
    """Why a job that is held back at a boundary is still there."""
    found = departures.first(job)
    if found is None:
        return ""
    held = f"{format_bytes(job.memory.promised_bytes)} still on {device.id}"
    return found[0].stuck(job, found[1], held, job.move.trouble or "it is about to move")


def turn_reason(node: Node, device: Device, job: Job, *, now: Nanos) -> str:
    """Why a waiting job has no turn right now."""
    lane = node.lane_of(job)
    view = accounts.view_of(node, job, now=now)
    if job.departures:
        return _stuck(job, device)
    if not node.may_run(job):
        return reasons.uncovered(job, device)
    if device.has_shares and not shares.may_start(job, now=now):
        return reasons.limit_wait(view, job, device, start_ns(job) - now)
    measured = next((other for other in node.holders_on(device) if other.state is JobState.PROFILING), None)
    if measured is not None and lane is not None:
        return reasons.profiling_wait(view, measured, lane.id)
    holder = node.jobs[lane.holder] if lane is not None and lane.holder is not None else None
    if holder is None or lane is None:
        return reasons.clearing_wait(view, node.holders_on(device), choice.newcomer(node, device, now=now), device)
    holder_view = accounts.view_of(node, holder, now=now)
    return reasons.turn_wait(view, holder_view, lane.id, _why_not_yet(node, device, lane, job, holder, now=now))


def _why_not_yet(node: Node, device: Device, lane: Lane, job: Job, holder: Job, *, now: Nanos) -> str:
    """How the sentence about a held lane ends; the policy is asked to defend only what it decided."""
    if holder.lease is None or holder.lease.state is LeaseState.RECALLED:
        newcomer = choice.newcomer(node, device, now=now) if node.policy.lanes_max > 1 else None
        following = newcomer.id if newcomer is not None else choice.successor(node, device, lane, now=now)
        if following is None or following == job.id:
            return reasons.already_recalled(choice.preference(node, job, holder, now=now))
        successor = node.jobs[following]
        return reasons.recalled_for(successor, choice.preference(node, successor, job, now=now))
    left_ns = holder.lease.granted_ns + choice.quantum_of(node, holder, now=now) - now
    if left_ns > 0:
        return reasons.rest_of_quantum(left_ns)
    kept = choice.preference(node, holder, job, now=now)
    return reasons.preferred(kept) if kept else reasons.soon_recalled(choice.preference(node, job, holder, now=now))


def picture_job(node: Node, job: Job, *, now: Nanos) -> JobPicture:
    served_ns = job.service.served_ns + (now - job.service.charged_ns if is_holding(job) else 0)
    remaining, is_known = accounts.remaining_ns(node, job, served_ns=served_ns)
    late = choice.deadline(node, job)
    last = max(job.service.last_step_ns or 0, job.lease.granted_ns) if job.lease is not None else None
    rows = lifecycle.rows_of(job, now=now)
    makes_room, migrates = job.departures.get(Why.MAKES_ROOM), job.departures.get(Why.MIGRATES)
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
        pending_bytes=job.memory.pending_bytes if is_asking(job) else 0,
        cap_bytes=job.spec.cap_bytes,
        guaranteed_milli=(job.share if job.device else job.spec).guaranteed_milli,
        limit_milli=(job.share if job.device else job.spec).limit_milli,
        is_suspended=not job.departures.keys().isdisjoint(STOPPED),
        is_shrinking=not job.departures.keys().isdisjoint(admission.SQUEEZED),
        leaving_for=makes_room.whom if makes_room is not None else None,
        parked_bytes=job.memory.parked_bytes,
        move_ns=job.move.took_ns,
        move_trouble=job.move.trouble,
        reason=explain(node, job, now=now),
        moving_to=job.device if job.move.source is not None else migrates.to if migrates is not None else None,
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
