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
  R5  A job that could not be parked for another goes on at once, and is left alone for longer each time.
  R6  A job is not parked if what the others leave on the device would keep it from ever coming back.

What is deliberately not here: how a job leaves and comes back, and suspended jobs (parking.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from carpool.core import admission, lanes, ledger, parking, reasons
from carpool.core.accounts import view_of
from carpool.core.model import WANTING, Device, Job, JobState, Lane, Nanos, Needs
from carpool.core.node import Node
from carpool.errors import InternalError
from carpool.units import SECOND

CLAIMANTS_TRIED = 16  # how deep into the order one look goes past claimants for which no room can be made
IDLE_PATIENCE_NS = 2 * SECOND  # a job between two turns is asked to leave if it was there not longer than this
FIRST_TURN_FACTOR = 4  # weights, their gradients and two states of an optimizer: only the first are there before it
FIRST_STAY_NS = 2 * SECOND  # before anybody was moved, nobody knows how fast moving is
LOOK_PART = 4  # claimants the policy does not prefer are looked at again after a quarter of the time it did not


@dataclass(frozen=True, slots=True)
class Plan:
    """Who would have to leave for a claimant; nobody, with the reason, if that is not to be."""

    leaving: tuple[Job, ...] = ()
    why_not: str = ""


# --- claims -------------------------------------------------------------------------------------------------


def wants_memory(node: Node, job: Job, *, now: Nanos) -> bool:
    """Whether the job is a claimant: it would run if there were room."""
    match job.state:
        case JobState.QUEUED:
            return not job.is_suspended
        case JobState.PARKED:
            return parking.may_return(job, now=now)
        case JobState.WAITING:
            return not job.is_leaving and not ledger.covers(node.device_of(job), job)
        case _:
            return False


def make_room(node: Node, *, now: Nanos) -> None:
    """Choose for each device the claimant that gets room next and those that leave for it (R1 to R4)."""
    if not node.settings.move_percent:
        return
    for device in node.devices.values():
        if device.claimant is None and not is_moving(node, device):
            _open_claim(node, device, now=now)


def _open_claim(node: Node, device: Device, *, now: Nanos) -> None:
    for job in _in_order(node, device, _claimants(node, device, now=now), now=now)[:CLAIMANTS_TRIED]:
        if now < device.quiet_until_ns and not _is_exempt(node, job):
            continue
        plan = plan_for(node, device, job, now=now)
        if plan.leaving:
            _mark(device, job, plan)
            return


def _mark(device: Device, claimant: Job, plan: Plan) -> None:
    device.claimant = claimant.id
    for job in plan.leaving:
        job.leaving_for = claimant.id


def _claimants(node: Node, device: Device, *, now: Nanos) -> list[Job]:
    elsewhere = {other.claimant for other in node.devices.values()}
    queued = [node.jobs[job_id] for job_id in node.queue if job_id not in elsewhere]
    allowed = [job for job in queued if job.spec.device in (None, device.id)]
    return [job for job in allowed + node.jobs_on(device) if wants_memory(node, job, now=now)]


def _is_exempt(node: Node, claimant: Job) -> bool:
    return claimant.state is JobState.QUEUED and node.quantum_ns == 0


def lets_start(node: Node, device: Device, job: Job, *, now: Nanos) -> bool:
    """Whether a queued job may have free bytes: not those made free for another (R3), and not if parked jobs would
    then wait for its end because the host has no room for it (R2)."""
    if device.claimant not in (None, job.id):
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
    leaving = [job for job in node.jobs_on(device) if job.leaving_for == device.claimant]
    is_met = claimant is None or not (wants_memory(node, claimant, now=now) or is_before_first_turn(claimant))
    if is_met or not leaving or not all(_still_leaves(job, now=now) for job in leaving):
        close(node, device, now=now)
        if claimant is not None and is_before_first_turn(claimant):
            room = min(_first_room_bytes(node, device, claimant), claimant.promised_bytes + ledger.free_bytes(device))
            ledger.promise(device, claimant, max(room, claimant.promised_bytes))


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


# --- plans --------------------------------------------------------------------------------------------------


def plan_for(node: Node, device: Device, claimant: Job, *, now: Nanos) -> Plan:
    """Who would leave for this claimant; changes nothing."""
    wanted = _wanted(node, device, claimant)

    def has_room(trial: Device) -> bool:
        resident_bytes = max(0, wanted.resident_bytes - claimant.promised_bytes)
        fit = lanes.find_fit(
            trial,
            resident_bytes=resident_bytes,
            ephemeral_bytes=wanted.ephemeral_bytes,
            lanes_max=node.policy.lanes_max,
        )
        merged = lanes.merging_would_fit(trial, resident_bytes=resident_bytes, ephemeral_bytes=wanted.ephemeral_bytes)
        return fit is not None or merged

    return _plan(node, device, claimant, has_room, now=now)


def _plan(node: Node, device: Device, claimant: Job, has_room: Callable[[Device], bool], *, now: Nanos) -> Plan:
    movable = [job for job in node.jobs_on(device) if job.id != claimant.id and _may_leave(job, now=now)]
    movable = [job for job in movable if job.needs is not None or job.served_ns]  # measured, or it never will be
    if not has_room(_without(node, device, movable)):
        return Plan()
    stuck = next((job for job in movable if now < job.move_retry_ns), None)
    able = [job for job in movable if now >= job.move_retry_ns]
    if stuck is not None and not has_room(_without(node, device, able)):
        return Plan(why_not=reasons.cannot_leave(stuck))
    full = _host_trouble(node, device, claimant, _fewest(node, device, able, has_room))
    if full:
        return Plan(why_not=full)
    after = [job for job in able if _goes_before(node, device, claimant, job, now=now)]
    if not has_room(_without(node, device, after)):
        first = next(job for job in able if job not in after)
        return Plan(why_not=reasons.not_before(node.policy.name, first))
    new = [] if _is_exempt(node, claimant) else [job for job in after if now < stays_until(node, device, job)]
    after = [job for job in after if job not in new]
    if new and not has_room(_without(node, device, after)):
        stay_ns = stays_until(node, device, new[0]) - new[0].came_ns
        return Plan(why_not=reasons.after_stay(new[0], stay_ns, node.settings.move_percent))
    leaving = _fewest(node, device, _in_order(node, device, after, now=now), has_room)
    stranded = next((job for job in leaving if _is_stranded(node, device, claimant, job)), None)
    if stranded is not None:
        return Plan(why_not=reasons.would_strand(stranded, device))
    full = _host_trouble(node, device, claimant, leaving)
    return Plan(why_not=full) if full else Plan(leaving=tuple(leaving))


def _host_trouble(node: Node, device: Device, claimant: Job, leaving: Sequence[Job]) -> str:
    """Why the host cannot take them; empty if it can. When they come back, the claimant has to go while they are
    still there, so there must be room for it too."""
    limit = node.settings.host_bytes_max
    moved_bytes = sum(map(parking.bytes_to_move, leaving))
    if claimant.state is not JobState.PARKED:
        moved_bytes += _wanted(node, device, claimant).resident_bytes
    if limit is None or node.host_bytes() + moved_bytes <= limit:
        return ""
    return reasons.host_is_full(moved_bytes, node.host_bytes(), limit)


def stays_until(node: Node, device: Device, job: Job) -> Nanos:
    """Until when a resident job is left there, so that its way out and back is worth it (R4)."""
    percent = node.settings.move_percent
    if not device.moves_bytes:
        return job.came_ns + FIRST_STAY_NS
    both_ways_ns = 2 * parking.bytes_to_move(job) * device.moves_ns // device.moves_bytes
    return job.came_ns + max(node.settings.quiet_ns_min, both_ways_ns * (100 - percent) // percent)


def _fewest(node: Node, device: Device, order: Sequence[Job], has_room: Callable[[Device], bool]) -> list[Job]:
    """From the last of the order on, as many as make room; then without those that are not needed for it."""
    leaving: list[Job] = []
    for job in reversed(order):
        if has_room(_without(node, device, leaving)):
            break
        leaving.append(job)
    for job in leaving[:-1]:
        rest = [other for other in leaving if other is not job]
        if has_room(_without(node, device, rest)):
            leaving = rest
    return leaving


def _may_leave(job: Job, *, now: Nanos) -> bool:
    """Whether the job will be at a boundary soon and is not on its way already."""
    if job.is_leaving or job.lane is None:
        return False
    return job.state in (JobState.WAITING, JobState.RUNNING) or _is_briefly_idle(job, now=now)


def _still_leaves(job: Job, *, now: Nanos) -> bool:
    holds = job.state in (JobState.WAITING, JobState.RUNNING, JobState.PROFILING, JobState.PARKING)
    return holds or _is_briefly_idle(job, now=now)


def _is_briefly_idle(job: Job, *, now: Nanos) -> bool:
    return job.state is JobState.IDLE and now - job.state_since_ns < IDLE_PATIENCE_NS


def _wanted(node: Node, device: Device, claimant: Job) -> Needs:
    if claimant.state is JobState.QUEUED:
        return admission.starting_needs(node, claimant, device)
    return parking.returning_needs(node, claimant, device)


def _without(node: Node, device: Device, leaving: Sequence[Job]) -> Device:
    """The device as it would be if these jobs were parked."""
    gone = {job.id for job in leaving}
    trial = Device(id=device.id, capacity_bytes=device.capacity_bytes, promised=dict(device.promised))
    for job in leaving:
        trial.promised[job.id] = _staying_bytes(job)
    for lane in device.lanes.values():
        stay = [job_id for job_id in lane.jobs if job_id not in gone]
        if stay:
            trial.lanes[lane.id] = Lane(id=lane.id, bytes=lane.bytes, jobs=stay)
    lanes.shrink(trial, node.jobs)
    return trial


def _staying_bytes(job: Job) -> int:
    """What a job leaves on the device when it is parked: as the last time, else what its framework takes."""
    overhead = job.needs.overhead_bytes if job.needs is not None else 0
    return min(job.promised_bytes, job.stayed_bytes or overhead)


def _is_stranded(node: Node, device: Device, claimant: Job, leaver: Job) -> bool:
    """Whether the leaver could not come back though all others were parked (R6)."""
    others = [job for job in node.jobs_on(device) if job.id not in (leaver.id, claimant.id)]
    left = sum(job.promised_bytes if job.state is JobState.UNMANAGED else _staying_bytes(job) for job in others)
    wanted = _wanted(node, device, claimant)
    needs = leaver.needs
    own = needs.resident_bytes + needs.ephemeral_bytes if needs is not None else leaver.promised_bytes
    return left + wanted.overhead_bytes + own > device.capacity_bytes


def _goes_before(node: Node, device: Device, claimant: Job, resident: Job, *, now: Nanos) -> bool:
    views = [view_of(node, job, now=now, on=device) for job in (claimant, resident)]
    return node.policy.pick(views, now=now) == claimant.id


def _in_order(node: Node, device: Device, jobs: Sequence[Job], *, now: Nanos) -> list[Job]:
    """The jobs as the policy would have them go."""
    left = {job.id: view_of(node, job, now=now, on=device) for job in jobs}
    ordered: list[Job] = []
    while left:
        picked = node.policy.pick(list(left.values()), now=now)
        chosen = picked if picked is not None else next(iter(left))
        ordered.append(node.jobs[chosen])
        del left[chosen]
    return ordered


# --- first turns --------------------------------------------------------------------------------------------


def _first_room_bytes(node: Node, device: Device, job: Job) -> int:
    """A guess at what a job that nobody measured will hold in its first turn, from what it holds before."""
    guess = FIRST_TURN_FACTOR * job.live_bytes + admission.start_floor_bytes(node, device)
    return min(device.capacity_bytes, guess)


def lacks_first_room(node: Node, job: Job) -> bool:
    """Whether it was never measured, is about to have its first turn, and will probably need more than it has."""
    if not is_before_first_turn(job):
        return False
    return admission.room_bytes(node, job) < _first_room_bytes(node, node.device_of(job), job)


def is_before_first_turn(job: Job) -> bool:
    is_unknown = job.needs is None and job.spec.cap_bytes is None
    return is_unknown and job.state is JobState.WAITING and not job.served_ns


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

    others = [other for other in node.jobs_on(device) if other.id != job.id and _may_leave(other, now=now)]
    able = _in_order(node, device, [other for other in others if now >= other.move_retry_ns], now=now)
    if not has_room(_without(node, device, able)):
        return False
    leaving = _fewest(node, device, able, has_room)
    limit = node.settings.host_bytes_max
    if limit is not None and node.host_bytes() + sum(map(parking.bytes_to_move, leaving)) > limit:
        return False
    _mark(device, job, Plan(leaving=tuple(leaving)))
    return True


# --- time and words -----------------------------------------------------------------------------------------


def is_due(node: Node, device: Device, *, now: Nanos) -> bool:
    """Whether a Tick should look for claimants and leavers again."""
    if device.claimant is not None:
        return True
    return bool(node.settings.move_percent) and any(
        now >= device.quiet_until_ns or _is_exempt(node, job) for job in _claimants(node, device, now=now)
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
    stays = [stays_until(node, device, job) for job in node.jobs_on(device) if job.lane is not None]
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
    plan = plan_for(node, device, job, now=now)
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
