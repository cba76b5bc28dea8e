"""Who leaves the device and comes back: suspended jobs, and what becomes of a move that fails.

Rules
  P1  Only a job that waits for a turn is told to park: its program is blocked at a boundary, so nothing touches its
      memory meanwhile. A holder is asked for its turn first.
  P2  A job's bytes leave its promise when it reports that they left the device, less what it reports to have stayed;
      they are promised again before it is told to come back (L6).
  P3  A job is told to park only if its bytes fit the host budget beside those parked already (L5).
  P4  A suspended job gets no turn and does not come back until it is resumed; one that cannot be parked stays where
      it is, with the reason, and is tried again later. Whoever was to leave for others and cannot goes on.
  P5  A move that fails loses nothing: the job is then where it was before.

What is deliberately not here: how bytes are moved (agent/parking/park.py), and who gets a turn (dispatch.py).
"""

from __future__ import annotations

from typing import assert_never

from carpool.core.kernel.ids import Nanos
from carpool.core.node.accounts import begin_wanting, come_back, raise_floors, reset_marks, view_of
from carpool.core.node.effects import Effect, ParkJob, UnparkJob
from carpool.core.node.events import JobParked, JobUnparked, MoveFailed, ResumeAsked, SuspendAsked
from carpool.core.node.memory import admission, lanes, ledger
from carpool.core.node.model import AWAY, Device, Job, JobState, Needs
from carpool.core.node.node import Node
from carpool.core.node.words import reasons

FAILS_COUNTED = 6  # the time after which a job is asked to leave again doubles so often

ParkingEvent = SuspendAsked | ResumeAsked | JobParked | JobUnparked | MoveFailed


def take(node: Node, job: Job, event: ParkingEvent, *, now: Nanos) -> None:
    """Take in a fact; what follows from it is settled and dispatched afterwards."""
    match event:
        case SuspendAsked():
            job.suspended_ns = job.suspended_ns if job.is_suspended else now
            job.is_suspended = True
            job.move.retry_ns = 0
        case ResumeAsked():
            if (job.is_suspended or job.is_sent_away) and job.state in AWAY:
                begin_wanting(node, job)
                job.wanting_since_ns = now
            job.is_suspended = job.is_sent_away = False
            job.move.retry_ns, job.move.trouble = 0, ""
        case JobParked():
            _left(node, job, event)
        case JobUnparked():
            _note_move(node.device_of(job), job.memory.parked_bytes, event.move_ns)
            job.memory.parked_bytes, job.move.took_ns, job.move.trouble, job.move.came_ns = 0, event.move_ns, "", now
            come_back(node, job)
        case MoveFailed():
            _stayed(node, job, event.reason, now=now)
        case _:
            assert_never(event)
    node.move(job, type(event), now=now)


def _left(node: Node, job: Job, event: JobParked) -> None:
    device = node.device_of(job)
    lanes.remove(device, job)
    before = (
        job.memory.parked_bytes if job.state is JobState.PARKED else 0
    )  # a process that follows brings only its own
    _note_move(device, max(0, event.parked_bytes - before), event.move_ns)
    job.memory.parked_bytes, job.move.took_ns, job.move.trouble = event.parked_bytes, event.move_ns, ""
    job.leaving_for, job.move.fails = None, 0
    room = job.memory.promised_bytes + ledger.free_bytes(device)
    job.memory.stayed_bytes = min(event.resident_bytes, room)
    ledger.promise(device, job, job.memory.stayed_bytes)


def _note_move(device: Device, count: int, move_ns: Nanos) -> None:
    device.moved_ns += move_ns
    device.moves_bytes += count
    device.moves_ns += move_ns


def _stayed(node: Node, job: Job, reason: str, *, now: Nanos) -> None:
    device = node.device_of(job)
    if job.state is JobState.PARKING:
        _go_on(job, reason)
        _ask_later(node, job, now=now)
        job.memory.parked_bytes = 0
        begin_wanting(node, job)
        return
    job.move.trouble, job.move.retry_ns = reason, now + node.settings.move_retry_ns
    lanes.remove(device, job)
    # It was promised what it needs, perhaps less than had stayed; others may have the difference by now (L1).
    job.memory.stayed_bytes = min(job.memory.stayed_bytes, job.memory.promised_bytes + ledger.free_bytes(device))
    ledger.promise(device, job, job.memory.stayed_bytes)


def _go_on(job: Job, reason: str) -> None:
    """It cannot be parked: it has turns again, unless it was suspended (P4) or is too large for its cap (Z3)."""
    job.move.trouble = reason
    give_up_move(job, reason)
    job.is_sent_away = job.gives_way = False


def _ask_later(node: Node, job: Job, *, now: Nanos) -> None:
    """Not to be asked to leave again for a while, which also ends the claim for which it was (rotation.py)."""
    times = 0 if job.is_suspended else min(job.move.fails, FAILS_COUNTED)
    job.move.retry_ns = now + (node.settings.move_retry_ns << times)
    if not job.is_suspended:  # one whose obstacle is there to stay is not asked again and again
        job.move.fails += 1


def give_up_move(job: Job, reason: str) -> None:
    """A job that was to go on on another device stays on its own, and is not tried again."""
    if job.moving_to is not None:
        job.moving_to, job.move.refused = None, reason


def came_back_alone(node: Node, job: Job) -> None:
    """The program was interrupted while it was away and took its bytes back: they are facts, covered later (M5)."""
    device = node.device_of(job)
    job.memory.parked_bytes = 0
    if job.lane is None:
        _squeeze_in(node, device, job, returning_needs(node, job, device))


def _squeeze_in(node: Node, device: Device, job: Job, wanted: Needs) -> None:
    """Promise as much as there is."""
    ledger.promise(device, job, min(wanted.resident_bytes, job.memory.promised_bytes + ledger.free_bytes(device)))
    admission.enter_lane(node, device, job)


def park_leaving(node: Node, device: Device, *, now: Nanos) -> list[Effect]:
    """Tell the jobs that are to leave and wait at a boundary to go (P1, P3)."""
    effects: list[Effect] = []
    for job in node.jobs_on(device):
        if job.state is JobState.WAITING and now >= job.move.retry_ns and job.is_leaving:
            effects += _park(node, device, job, now=now)
    return effects


def _park(node: Node, device: Device, job: Job, *, now: Nanos) -> list[Effect]:
    wanted = bytes_to_move(job)
    limit = node.settings.host_bytes_max
    if limit is not None and node.host_bytes() + wanted > limit:
        if job.leaving_for is not None or job.gives_way:
            _ask_later(node, job, now=now)
        _go_on(job, reasons.host_full(wanted, node.host_bytes(), limit))
        return []
    raise_floors(node, device)
    job.memory.parked_bytes = wanted
    node.move(job, ParkJob, now=now)
    return [ParkJob(job=job.id, limit_bytes=wanted, reason=reasons.held_back(job))]


def bytes_to_move(job: Job) -> int:
    """What has to be reserved on the host before it is parked."""
    return max(job.memory.promised_bytes, job.memory.needs.resident_bytes if job.memory.needs is not None else 0)


def unpark_fitting(node: Node, device: Device, rivals: list[Job], *, now: Nanos) -> list[Effect]:
    """Bring back whoever may come and has room, in the order of the policy; not before rivals that go before it.

    While room is made for somebody, only he may come (R3).
    """
    effects: list[Effect] = []
    away = [job for job in node.jobs_on(device) if may_return(job, now=now)]
    away = [job for job in away if device.claimant in (None, job.id)]
    while away:
        views = [view_of(node, job, now=now, on=device) for job in [*away, *rivals]]
        picked = node.policy.pick(views, now=now)
        if any(rival.id == picked for rival in rivals):
            break
        job = next((each for each in away if each.id == picked), away[0])
        away.remove(job)
        wanted = returning_needs(node, job, device)
        fit = fit_of(node, device, wanted, had_bytes=job.memory.promised_bytes)
        while fit is None and admission.merging_lets_in(node, job, device) and lanes.merge_free(device, node.jobs):
            reset_marks(node, device)
            fit = fit_of(node, device, wanted, had_bytes=job.memory.promised_bytes)
        if fit is not None:
            lanes.place(device, job, fit)
            ledger.promise(device, job, wanted.resident_bytes)
        elif not device.lanes:  # it needs more than the device has: alone it may try, as the oldest may (D2)
            _squeeze_in(node, device, job, wanted)
        if job.lane is not None:
            node.move(job, UnparkJob, now=now)
            effects.append(UnparkJob(job=job.id))
    return effects


def may_return(job: Job, *, now: Nanos) -> bool:
    return job.state is JobState.PARKED and not job.is_leaving and now >= job.move.retry_ns


def fit_of(node: Node, device: Device, wanted: Needs, *, had_bytes: int = 0) -> lanes.Fit | None:
    """Where a job that has so much of what it wants there would go; None without room."""
    return lanes.find_fit(
        device,
        resident_bytes=max(0, wanted.resident_bytes - had_bytes),
        ephemeral_bytes=wanted.ephemeral_bytes,
        lanes_max=node.policy.lanes_max,
    )


def returning_needs(node: Node, job: Job, device: Device) -> Needs:
    """What a parked job must be promised before it comes back; one sum if it was never measured (L4)."""
    if job.memory.needs is not None:
        return job.memory.needs
    # Room for its first turns, as far as there is any.
    slack = max(
        0, min(admission.start_floor_bytes(node, device), ledger.free_bytes(device) - job.memory.parked_bytes)
    )
    held = job.memory.parked_bytes + job.memory.stayed_bytes
    return Needs(persistent_bytes=job.spec.cap_bytes or held + slack, ephemeral_bytes=0)


def next_try(job: Job, *, now: Nanos) -> Nanos | None:
    """When a move that failed is due again; None if none did."""
    is_stuck = job.is_leaving and job.state is JobState.WAITING
    is_kept_out = job.state is JobState.PARKED and not job.is_leaving
    return job.move.retry_ns if (is_stuck or is_kept_out) and job.move.retry_ns > now else None


def awaits_return(node: Node, device: Device, *, now: Nanos) -> bool:
    """Whether a parked job of this device would come back if there were room."""
    return any(may_return(job, now=now) for job in node.jobs_on(device))


def is_due(node: Node, *, now: Nanos) -> bool:
    """Whether a parked job whose return failed may be tried again now."""
    return any(job.move.trouble and may_return(job, now=now) for job in node.jobs.values())
