"""Moving a job to another device of the node: parked on the source, counted on the target, unparked there.

Rules
  V1  A move begins only if the job's bytes and its guarantee (S3) fit on the target now, and no room is being made
      there for another (R3); else it is refused with the numbers and nothing changes.
  V2  Until the job has arrived its room on the source is kept (Device.kept, a term of L1), beside the promise on the
      target: a move that fails half way brings the job back to where it was.
  V3  A job is counted on the target before it is told to come back there; it has moved when it reports to be back.
  V4  Among the jobs of the target it stands like a newcomer (A2): what it had on the source gives no right there.
  V5  A suspended job moves with what stayed of it, and stays suspended.

What is deliberately not here: whether a process can use the other device at all (the driver knows kinds of devices).
"""

from __future__ import annotations

from carpool.core.kernel.ids import DeviceId, Nanos
from carpool.core.node import lifecycle
from carpool.core.node.effects import Effect, MoveJob, RejectEvent, UnparkJob
from carpool.core.node.events import MigrateAsked
from carpool.core.node.memory import admission, ledger
from carpool.core.node.model import AWAY, ENDED, PARKED, Device, Job, JobState, Needs, Why
from carpool.core.node.moves import departures
from carpool.core.node.node import Node
from carpool.core.node.words import reasons
from carpool.errors import InternalError


def take(node: Node, job: Job, event: MigrateAsked, *, now: Nanos) -> list[Effect]:
    """Begin a move, or refuse it; what follows is settled afterwards."""
    lifecycle.note_order(job, event, now=now)
    reason = refusal(node, job, event.device)
    if reason:
        return [RejectEvent(job=job.id, event=type(event).__name__, reason=reason)]
    departures.begin_move(node, job, event.device, now=now)
    lifecycle.move(node, job, MigrateAsked, now=now)
    return []


def refusal(node: Node, job: Job, to: DeviceId) -> str:
    """Why the job cannot be moved to this device now; empty if it can (V1)."""
    target = node.devices.get(to)
    if target is None:
        return reasons.no_target(list(node.devices), job, to)
    if Why.MIGRATES in job.departures or job.move.source is not None:
        return reasons.on_its_way(job)
    if job.device == to:
        return reasons.already_there(job, target)
    if not job.spec.may_park:
        return reasons.never_moves(job)
    wanted = _wanted(node, job, target)
    if wanted is None:
        return reasons.unmeasured(job)
    need = wanted.total_bytes
    if need > target.capacity_bytes or not _has_room(node, job, target, wanted):
        return reasons.no_room(job, need, target)
    return _trouble(node, job, target)


def _trouble(node: Node, job: Job, target: Device) -> str:
    """Why it may not have what is free of the target; empty if it may (R3, S3)."""
    if target.claimant is not None:
        return reasons.claimed(job, node.jobs[target.claimant], target)
    if node.has_compute_room(target, job.spec):
        return ""
    return reasons.no_share(job, job.spec.guaranteed_milli, node.unpromised_milli(target), target.id)


def _wanted(node: Node, job: Job, target: Device) -> Needs | None:
    """What the job needs on the target; None while nobody knows."""
    if job.state is JobState.PARKED:
        return admission.returning_needs(node, job, target)
    if job.memory.needs is None and job.spec.cap_bytes is not None:
        return Needs(persistent_bytes=job.spec.cap_bytes, ephemeral_bytes=0)
    return job.memory.needs


def _has_room(node: Node, job: Job, target: Device, wanted: Needs) -> bool:
    if departures.stays_away(job) and job.state is PARKED:
        return job.memory.stayed_bytes <= ledger.free_bytes(target)
    return admission.fit_of(node, target, wanted) is not None


def settle(node: Node, *, now: Nanos) -> list[Effect]:
    """Let parked jobs go on to their targets, and close the moves that are over, well or not."""
    effects: list[Effect] = []
    for job in node.jobs.values():
        if job.move.source is not None:
            effects += _close(node, job, job.move.source, now=now)
        elif job.departures and job.state is PARKED:
            migrates = job.departures.get(Why.MIGRATES)
            if migrates is not None and migrates.to is not None:
                effects += _depart(node, job, migrates.to, now=now)
    return effects


def _depart(node: Node, job: Job, to: DeviceId, *, now: Nanos) -> list[Effect]:
    """Its bytes are on the host: count it on the target, or let it come back where it was."""
    source, target = node.device_of(job), node.devices[to]
    wanted = admission.returning_needs(node, job, target)
    trouble = _trouble(node, job, target)
    if not _has_room(node, job, target, wanted):
        trouble = reasons.no_room(job, wanted.total_bytes, target)
    if trouble:
        departures.give_up_move(node, job, trouble)
        return _enter(node, source, job, wanted, now=now)
    ledger.shrink(source, node.jobs)
    departures.leave_device(node, source, job)
    if departures.stays_away(job):
        departures.count_on_target(node, job, None)
        ledger.promise(target, job, job.memory.stayed_bytes)
        return [MoveJob(job=job.id, source=source.id, device=target.id)]
    ledger.keep(source, job, min(wanted.total_bytes, ledger.free_bytes(source)))
    departures.count_on_target(node, job, source.id)
    return _enter(node, target, job, wanted, now=now)


def _close(node: Node, job: Job, source_id: DeviceId, *, now: Nanos) -> list[Effect]:
    """The copy to the target is over, one way or the other (V2)."""
    if job.state is JobState.UNPARKING:
        return []
    source, target = node.devices[source_id], node.device_of(job)
    ledger.unkeep(source, job)
    if job.state is not PARKED:
        departures.close_move(job)
        return [] if job.state in ENDED else [MoveJob(job=job.id, source=source.id, device=target.id)]
    departures.undo_move(job)
    departures.leave_device(node, target, job)
    return _enter(node, source, job, admission.returning_needs(node, job, source), now=now)


def _enter(node: Node, device: Device, job: Job, wanted: Needs, *, now: Nanos) -> list[Effect]:
    """Book a parked job on a device and order its return; where there is no room it stays parked there."""
    is_to_stay = departures.stays_away(job)
    had_bytes = job.memory.promised_bytes
    fit = admission.fit_of(node, device, wanted, had_bytes=had_bytes) if not is_to_stay else None
    if fit is None:
        ledger.promise_up_to(device, job, job.memory.stayed_bytes)
        return []
    ledger.place(device, job, fit)
    ledger.promise(device, job, wanted.resident_bytes)
    lifecycle.move(node, job, UnparkJob, now=now)
    return [UnparkJob(job=job.id)]


def check_moves(node: Node) -> None:
    """Assert V2 and V3; a failure is a bug."""
    for device in node.devices.values():
        for job_id, count in device.kept.items():
            job = node.jobs[job_id]
            if count < 0 or job.move.source != device.id or job.device == device.id or job.state not in AWAY:
                raise InternalError(f"V2 broken: {device.id} keeps {count} bytes for {job.state} job {job_id}")
    for job in node.jobs.values():
        if job.move.source is not None and job.id not in node.devices[job.move.source].kept:
            raise InternalError(f"V2 broken: nothing is kept for {job.id} on {job.move.source}")
