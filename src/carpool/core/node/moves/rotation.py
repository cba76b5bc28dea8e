"""Whose memory makes room: jobs are parked so that others, for which there is none, get theirs.

A *claimant* wants memory that is not there: it waits in the queue, or is parked and not suspended, or has outgrown
its promise, or is about to have its first turn with too little room. For it, resident jobs are parked at their
boundaries (parking.py); they are claimants from then on and come back the same way. So jobs whose bytes sum to
several times the device's capacity all run, in turns of residency.

Rules
  R1  Who is resident is the policy's order: a job is parked only for a claimant which the policy puts before it.
  R2  Only jobs that take turns and can be parked are, no more of them than needed, and only if it is seen beforehand
      that the claimant then has room on the device and they have room on the host (L5), also on the way back.
  R3  One claimant a device at a time. Until it has its room or cannot get it, nobody else is let in there.
  R4  Moving takes at most `move_percent` of a device's time: after the moves for one claimant nobody is moved for
      another until the device had `(100 - percent) / percent` times as long without, and nobody is parked who was
      not there so much longer than his own moves will probably take. A newcomer under a policy without a quantum
      (first come, priorities) need not wait for that: each comes only once.
  R5  A job that could not be parked for another goes on at once, like all who were to leave with it, and is left
      alone for longer each time.
  R6  A job is not parked if what the others leave on the device would keep it from ever coming back.

What is deliberately not here: who would have to leave (leavers.py), how a job leaves and comes back, and suspended
jobs (parking.py).
"""

from __future__ import annotations

from carpool.core.kernel.ids import Nanos
from carpool.core.node.memory import admission, ledger
from carpool.core.node.model import WANTING, Device, Job, JobState
from carpool.core.node.moves import leavers, parking
from carpool.core.node.node import Node
from carpool.core.node.turns import shares
from carpool.core.node.words import reasons
from carpool.errors import InternalError

CLAIMANTS_TRIED = 16  # how deep into the order one look goes past claimants for which no room can be made
FIRST_TURN_FACTOR = 4  # weights, their gradients and two states of an optimizer: only the first are there before it
LOOK_PART = 4  # claimants the policy does not prefer are looked at again after a quarter of the time it did not


# --- claims -------------------------------------------------------------------------------------------------


def wants_memory(node: Node, job: Job, *, now: Nanos) -> bool:
    """Whether the job is a claimant: it would run if there were room."""
    if job.state is JobState.WAITING and job.device is not None:  # most are, and this is asked of all at every event
        return not ledger.covers(node.devices[job.device], job) and not job.is_leaving
    if job.state is JobState.QUEUED:
        return not job.is_suspended
    return job.state is JobState.PARKED and parking.may_return(job, now=now)


def make_room(node: Node, *, now: Nanos) -> None:
    """Choose for each device the claimant that gets room next and those that leave for it (R1 to R4)."""
    if not node.settings.move_percent:
        return
    for device in node.devices.values():
        if device.claimant is None and not is_moving(node, device):
            _open_claim(node, device, now=now)


def _open_claim(node: Node, device: Device, *, now: Nanos) -> None:
    claimants = _claimants(node, device, now=now)
    for job in leavers.in_order(node, device, claimants, now=now, at_most=CLAIMANTS_TRIED):
        if now < device.quiet_until_ns and not leavers.is_exempt(node, job):
            continue
        plan = leavers.plan_for(node, device, job, now=now)
        if plan.leaving:
            _mark(device, job, plan)
            return


def _mark(device: Device, claimant: Job, plan: leavers.Plan) -> None:
    device.claimant = claimant.id
    for job in plan.leaving:
        job.leaving_for = claimant.id


def _claimants(node: Node, device: Device, *, now: Nanos) -> list[Job]:
    elsewhere = {other.claimant for other in node.devices.values()} if node.queue else set()
    queued = [node.jobs[job_id] for job_id in node.queue if job_id not in elsewhere]
    allowed = [job for job in queued if job.spec.device in (None, device.id)]
    allowed = [job for job in allowed if shares.has_room(node, device, job.spec)]
    return [job for job in allowed + node.jobs_on(device) if wants_memory(node, job, now=now)]


def lets_start(node: Node, device: Device, job: Job, *, now: Nanos) -> bool:
    """Whether a queued job may have free bytes: not those made free for another (R3), not where its guarantee finds
    no room (S3), and not if parked jobs would then wait for its end because the host has no room for it (R2)."""
    if device.claimant not in (None, job.id) or not shares.has_room(node, device, job.spec):
        return False
    limit = node.settings.host_bytes_max
    if limit is None or not parking.awaits_return(node, device, now=now):
        return True
    return node.host_bytes() + admission.starting_needs(node, job, device).resident_bytes <= limit


def review(node: Node, device: Device, *, now: Nanos) -> None:
    """End a claim that is met, pointless, or whose leavers do not leave."""
    if device.claimant is None:
        return
    claimant = node.jobs.get(device.claimant)
    is_met = claimant is None or not (wants_memory(node, claimant, now=now) or is_before_first_turn(claimant))
    if is_met or is_vain(node, device, now=now):
        close(node, device, now=now)
        if claimant is not None and is_before_first_turn(claimant):
            room = min(
                _first_room_bytes(node, device, claimant), claimant.memory.promised_bytes + ledger.free_bytes(device)
            )
            ledger.promise(device, claimant, max(room, claimant.memory.promised_bytes))


def is_vain(node: Node, device: Device, *, now: Nanos) -> bool:
    """Whether a claim cannot be met by those who leave: they are gone, or one of them does not go."""
    if device.claimant is None:
        return False
    leaving = [job for job in node.jobs_on(device) if job.leaving_for == device.claimant]
    return not leaving or not all(leavers.still_leaves(job, now=now) for job in leaving)


def close(node: Node, device: Device, *, now: Nanos) -> None:
    device.claimant = None
    for job in node.jobs_on(device):
        job.leaving_for = None
    if not is_moving(node, device):
        begin_quiet(node, device, now=now)


def is_moving(node: Node, device: Device) -> bool:
    return any(job.state in (JobState.PARKING, JobState.UNPARKING) for job in node.jobs_on(device))


def begin_quiet(node: Node, device: Device, *, now: Nanos) -> None:
    """The moves for a claimant are over: from now on the device is left to those who are there (R4)."""
    percent = node.settings.move_percent
    if device.moved_ns and percent:
        device.quiet_ns = max(node.settings.quiet_ns_min, device.moved_ns * (100 - percent) // percent)
        device.quiet_until_ns = now + device.quiet_ns
        device.moved_ns = 0


def note_move(node: Node, job: Job, *, now: Nanos) -> None:
    """A job came back, or could not leave: if that was the last move for a claimant, the quiet begins."""
    device = node.devices[job.device] if job.device is not None else None
    if device is not None and device.claimant is None and not is_moving(node, device):
        begin_quiet(node, device, now=now)


# --- first turns --------------------------------------------------------------------------------------------


def _first_room_bytes(node: Node, device: Device, job: Job) -> int:
    """A guess at what a job that nobody measured will hold in its first turn, from what it holds before."""
    guess = FIRST_TURN_FACTOR * job.memory.live_bytes + admission.start_floor_bytes(node, device)
    return min(device.capacity_bytes, guess)


def lacks_first_room(node: Node, job: Job) -> bool:
    """Whether it was never measured, is about to have its first turn, and will probably need more than it has."""
    if not is_before_first_turn(job):
        return False
    return admission.room_bytes(node, job) < _first_room_bytes(node, node.device_of(job), job)


def is_before_first_turn(job: Job) -> bool:
    is_unknown = job.memory.needs is None and job.spec.cap_bytes is None
    return is_unknown and job.state is JobState.WAITING and not job.service.served_ns


def make_first_room(node: Node, device: Device, job: Job, *, now: Nanos) -> bool:
    """Before a job that nobody measured has its first turn: make room for what will probably appear in it.

    Its turn has been decided, so neither order nor quiet matter. False if it has room, or none can be made.
    """
    is_short = node.settings.move_percent and lacks_first_room(node, job)
    if not is_short or device.claimant is not None or is_moving(node, device):
        return False
    wanted = _first_room_bytes(node, device, job)

    def has_room(trial: Device) -> bool:
        return admission.room_on(node, trial, job) >= wanted

    others = [other for other in node.jobs_on(device) if other.id != job.id and leavers.may_leave(other, now=now)]
    able = leavers.in_order(node, device, [other for other in others if now >= other.move.retry_ns], now=now)
    if not has_room(leavers.without(node, device, able)):
        return False
    leaving = leavers.fewest(node, device, able, has_room)
    limit = node.settings.host_bytes_max
    if limit is not None and node.host_bytes() + sum(map(parking.bytes_to_move, leaving)) > limit:
        return False
    _mark(device, job, leavers.Plan(leaving=tuple(leaving)))
    return True


# --- time and words -----------------------------------------------------------------------------------------


def is_due(node: Node, device: Device, *, now: Nanos) -> bool:
    """Whether a Tick should look for claimants and leavers again."""
    if device.claimant is not None:
        return True
    return bool(node.settings.move_percent) and any(
        now >= device.quiet_until_ns or leavers.is_exempt(node, job) for job in _claimants(node, device, now=now)
    )


def next_look(node: Node, device: Device, *, now: Nanos) -> Nanos | None:
    """When a claimant could be preferred to those who have the memory; None without the one or the other."""
    if device.claimant is not None:
        return now + node.settings.watch_ns
    if not node.settings.move_percent or not any(job.state in WANTING for job in node.jobs_on(device)):
        return None
    waiting = _claimants(node, device, now=now)
    if not waiting:
        return None
    if device.quiet_until_ns > now:
        return device.quiet_until_ns
    newest = max(job.state_since_ns for job in waiting)
    again = now + max(node.settings.watch_ns, (now - max(device.quiet_until_ns, newest)) // LOOK_PART)
    stays = [leavers.stays_until(node, device, job) for job in node.jobs_on(device) if job.lane is not None]
    return min([again, *(until for until in stays if until > now)])


def outlook(node: Node, device: Device, job: Job, *, now: Nanos) -> str:
    """Half a sentence: when a claimant will have its memory; empty if nothing but others' end can help."""
    if device.claimant == job.id:
        leaving = [other.spec.name for other in node.jobs_on(device) if other.leaving_for == job.id]
        return reasons.being_parked(leaving)
    if device.claimant is not None:
        return reasons.after_claimant(node.jobs[device.claimant])
    if not node.settings.move_percent:
        return ""
    plan = leavers.plan_for(node, device, job, now=now)
    if not plan.leaving:
        return plan.why_not
    if now < device.quiet_until_ns:
        return reasons.after_stay(plan.leaving[0], device.quiet_ns, node.settings.move_percent)
    return reasons.being_parked([other.spec.name for other in plan.leaving])


def check_claim(node: Node, device: Device) -> None:
    """Assert R3; a failure is a bug."""
    for job in node.jobs_on(device):
        if job.leaving_for is not None and (job.leaving_for != device.claimant or job.state is JobState.PARKED):
            raise InternalError(f"R3 broken on {device.id}: {job.state} {job.id} makes room for {job.leaving_for}")
