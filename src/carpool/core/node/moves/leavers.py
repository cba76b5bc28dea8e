"""Who would have to leave the device so that a claimant has room (rotation.py says who is a claimant, and when).

Everything here looks at the device as it would be if some of its jobs were parked; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from carpool.core.kernel.ids import DeviceId, Nanos
from carpool.core.node import accounts
from carpool.core.node.memory import admission, ledger, tenure
from carpool.core.node.model import FOR_CLAIMANT, Device, Job, JobState, Lane, Needs
from carpool.core.node.node import Node, is_leaving, is_unknown
from carpool.core.node.words import reasons
from carpool.units import SECOND

IDLE_PATIENCE_NS = 2 * SECOND  # a job between two turns is asked to leave if it was there not longer than this
FIRST_STAY_NS = 2 * SECOND  # before anybody was moved, nobody knows how fast moving is


@dataclass(frozen=True, slots=True)
class Plan:
    """Who would have to leave for a claimant; nobody, with the reason, if that is not to be."""

    leaving: tuple[Job, ...] = ()
    why_not: str = ""


def in_order(node: Node, device: Device, jobs: Sequence[Job], *, now: Nanos) -> list[Job]:
    """The jobs as the policy would have them go: the last of them leave first."""
    return accounts.in_order(node, jobs, now=now, on=device)


def is_exempt(node: Node, claimant: Job) -> bool:
    return claimant.state is JobState.QUEUED and node.quantum_ns == 0


def plan_for(node: Node, device: Device, claimant: Job, *, now: Nanos) -> Plan:
    """Who would leave for this claimant; changes nothing."""
    not_let = _why_not_let(node, device, claimant)
    return (
        Plan(why_not=not_let) if not_let else _plan(node, device, claimant, room_for(node, device, claimant), now=now)
    )


def _why_not_let(node: Node, device: Device, claimant: Job) -> str:
    """Why guarantees of tenants let it have no room, whoever leaves; empty if they do."""
    return tenure.why_not(node, device, claimant, _wanted(node, device, claimant)) if node.has_guarantees else ""


def room_for(node: Node, device: Device, claimant: Job) -> Callable[[Device], bool]:
    """Whether a device, which may only be imagined, has the room that a claimant wants."""
    wanted = _wanted(node, device, claimant)

    def has_room(trial: Device) -> bool:
        resident_bytes = max(0, wanted.resident_bytes - claimant.memory.promised_bytes)
        fit = ledger.find_fit(
            trial,
            resident_bytes=resident_bytes,
            ephemeral_bytes=wanted.ephemeral_bytes,
            lanes_max=node.policy.lanes_max,
        )
        merged = ledger.merging_would_fit(
            trial, resident_bytes=resident_bytes, ephemeral_bytes=wanted.ephemeral_bytes
        )
        return fit is not None or merged

    return has_room


def _plan(node: Node, device: Device, claimant: Job, has_room: Callable[[Device], bool], *, now: Nanos) -> Plan:
    movable = [job for job in askable(node, device, claimant) if may_leave(job, now=now)]
    movable = [
        job for job in movable if job.memory.needs is not None or job.service.served_ns
    ]  # measured, or it never will be
    if not has_room(without(node, device, movable)):
        fixed = [job for job in node.jobs_on(device) if job.id != claimant.id and not job.spec.may_park]
        if fixed and has_room(without(node, device, [*movable, *fixed])):
            return Plan(why_not=reasons.cannot_leave(fixed[0]))
        return Plan()
    stuck = next((job for job in movable if now < job.move.retry_ns), None)
    able = [job for job in movable if now >= job.move.retry_ns]
    if stuck is not None and not has_room(without(node, device, able)):
        return Plan(why_not=reasons.cannot_leave(stuck))

    def not_yet(why: str) -> Plan:
        """It is only a matter of time, unless the host will be too full for it then."""
        last = in_order(node, device, able, now=now) if node.settings.host_bytes_max is not None else []
        return Plan(why_not=_host_trouble(node, device, claimant, fewest(node, device, last, has_room)) or why)

    after = [job for job in able if _goes_before(node, device, claimant, job, now=now)]
    if not has_room(without(node, device, after)):
        first = next(job for job in able if job not in after)
        return not_yet(reasons.not_before(node.policy.name, first))
    new = [] if is_exempt(node, claimant) else [job for job in after if now < stays_until(node, device, job)]
    after = [job for job in after if job not in new]
    if new and not has_room(without(node, device, after)):
        stay_ns = stays_until(node, device, new[0]) - new[0].move.came_ns
        return not_yet(reasons.after_stay(new[0], stay_ns, node.settings.move_percent))
    leaving = fewest(node, device, in_order(node, device, after, now=now), has_room)
    stranded = next((job for job in leaving if _is_stranded(node, device, claimant, job)), None)
    if stranded is not None:
        return Plan(why_not=reasons.would_strand(stranded, device))
    full = _host_trouble(node, device, claimant, leaving)
    return Plan(why_not=full) if full else Plan(leaving=tuple(leaving))


def askable(node: Node, device: Device, claimant: Job) -> list[Job]:
    """Those that may be parked for it: what a tenant is guaranteed and its jobs have is theirs (N19)."""
    others = [job for job in node.jobs_on(device) if job.id != claimant.id]
    if not node.has_guarantees:
        return others
    owned = tenure.owned(node, device)
    return [job for job in others if tenure.may_be_asked(job, claimant, owned)]


def _host_trouble(node: Node, device: Device, claimant: Job, leaving: Sequence[Job]) -> str:
    """Why the host cannot take them; empty if it can. When they come back, the claimant has to go while they are
    still there, so there must be room for it too."""
    moved_bytes = sum(map(admission.bytes_to_move, leaving))
    if claimant.state is not JobState.PARKED:
        moved_bytes += _wanted(node, device, claimant).resident_bytes
    if node.has_host_room(moved_bytes):
        return ""
    return reasons.host_is_full(moved_bytes, node.host_bytes(), node.settings.host_bytes_max or 0)


def stays_until(node: Node, device: Device, job: Job) -> Nanos:
    """Until when a resident job is left there, so that its way out and back is worth it (R4)."""
    percent = node.settings.move_percent
    if not device.moves_bytes:
        return job.move.came_ns + FIRST_STAY_NS
    both_ways_ns = 2 * admission.bytes_to_move(job) * device.moves_ns // device.moves_bytes
    return job.move.came_ns + max(node.settings.quiet_ns_min, both_ways_ns * (100 - percent) // percent)


def fewest(node: Node, device: Device, order: Sequence[Job], has_room: Callable[[Device], bool]) -> list[Job]:
    """From the last of the order on, as many as make room; then without those that are not needed for it."""
    leaving: list[Job] = []
    for job in reversed(order):
        if has_room(without(node, device, leaving)):
            break
        leaving.append(job)
    for job in leaving[:-1]:
        rest = [other for other in leaving if other is not job]
        if has_room(without(node, device, rest)):
            leaving = rest
    return leaving


def may_leave(job: Job, *, now: Nanos) -> bool:
    """Whether the job will be at a boundary soon, may be parked there and is not on its way already."""
    if job.lane is None or is_leaving(job) or not job.spec.may_park:
        return False
    return job.state in (JobState.WAITING, JobState.RUNNING) or _is_briefly_idle(job, now=now)


def still_leaves(job: Job, *, now: Nanos) -> bool:
    """Whether a leaver will be gone soon: it was not seen to be unable to."""
    holds = job.state in (JobState.WAITING, JobState.RUNNING, JobState.PROFILING, JobState.PARKING)
    return now >= job.move.retry_ns and (holds or _is_briefly_idle(job, now=now))


def _is_briefly_idle(job: Job, *, now: Nanos) -> bool:
    return job.state is JobState.IDLE and now - job.state_since_ns < IDLE_PATIENCE_NS


def _wanted(node: Node, device: Device, claimant: Job) -> Needs:
    if claimant.state is JobState.QUEUED:
        return admission.starting_needs(node, claimant, device)
    return admission.returning_needs(node, claimant, device)


def without(node: Node, device: Device, leaving: Sequence[Job]) -> Device:
    """The device as it would be if these jobs were parked."""
    gone = {job.id for job in leaving}
    trial = Device(id=device.id, capacity_bytes=device.capacity_bytes)
    trial.promised, trial.kept = dict(device.promised), dict(device.kept)
    for job in leaving:
        trial.promised[job.id] = _staying_bytes(job)
    for lane in device.lanes.values():
        stay = [job_id for job_id in lane.jobs if job_id not in gone]
        if stay:
            trial.lanes[lane.id] = Lane(id=lane.id, bytes=lane.bytes, jobs=stay)
    ledger.shrink(trial, node.jobs)
    return trial


def _staying_bytes(job: Job) -> int:
    """What a job leaves on the device when it is parked: as the last time, else what its framework takes."""
    overhead = job.memory.needs.overhead_bytes if job.memory.needs is not None else 0
    return min(job.memory.promised_bytes, job.memory.stayed_bytes or overhead)


def _is_stranded(node: Node, device: Device, claimant: Job, leaver: Job) -> bool:
    """Whether the leaver could not come back though all others were parked (R6)."""
    others = [job for job in node.jobs_on(device) if job.id not in (leaver.id, claimant.id)]
    left = sum(
        job.memory.promised_bytes if job.state is JobState.UNMANAGED or not job.spec.may_park else _staying_bytes(job)
        for job in others
    )
    wanted = _wanted(node, device, claimant)
    needs = leaver.memory.needs
    own = needs.total_bytes if needs is not None else leaver.memory.promised_bytes
    return left + wanted.overhead_bytes + own > device.capacity_bytes


def _goes_before(node: Node, device: Device, claimant: Job, resident: Job, *, now: Nanos) -> bool:
    return accounts.pick(node, [claimant, resident], now=now, on=device) == claimant.id


def first_room(node: Node, device: Device, job: Job, *, now: Nanos) -> list[Job] | None:
    """Who leaves before a job that nobody measured has its first turn, so that what will probably appear has room.

    Its turn has been decided, so neither order nor quiet matter. None if it has room, or none can be made.
    """
    is_short = node.settings.move_percent and admission.lacks_first_room(node, job)
    if not is_short or device.claimant is not None or node.is_moving(device):
        return None
    wanted = admission.first_room_bytes(node, device, job)

    def has_room(trial: Device) -> bool:
        return admission.room_on(node, trial, job) >= wanted

    others = [other for other in askable(node, device, job) if may_leave(other, now=now)]
    able = [other for other in others if now >= other.move.retry_ns]
    able = in_order(node, device, able, now=now)
    if not has_room(without(node, device, able)):
        return None
    leaving = fewest(node, device, able, has_room)
    return leaving if node.has_host_room(sum(map(admission.bytes_to_move, leaving))) else None


def outlook(node: Node, device: Device, job: Job, *, now: Nanos) -> str:
    """Half a sentence: when a claimant will have its memory; empty if nothing but others' end can help."""
    if device.claimant == job.id:
        leaving = [other for other in node.jobs_on(device) if not other.departures.keys().isdisjoint(FOR_CLAIMANT)]
        return reasons.being_parked([other.spec.name for other in leaving])
    if device.claimant is not None:
        return reasons.after_claimant(node.jobs[device.claimant])
    not_let = _why_not_let(node, device, job)
    if not_let or not node.settings.move_percent:
        return not_let
    plan = plan_for(node, device, job, now=now)
    if not plan.leaving:
        return plan.why_not
    if now < device.quiet_until_ns:
        return reasons.after_stay(plan.leaving[0], device.quiet_ns, node.settings.move_percent)
    return reasons.being_parked([other.spec.name for other in plan.leaving])


def why_queued(
    node: Node, job: Job, devices: list[Device], kept: dict[DeviceId, Job], *, now: Nanos
) -> tuple[str, bool]:
    """Why a queued job does not start, and whether others will leave for it; `kept`: devices kept for others (M3)."""
    roomy = [device for device in devices if node.has_compute_room(device, job.spec)]
    if not roomy:
        freest = max(devices, key=lambda each: (node.unpromised_milli(each), each.id))
        return reasons.compute_wait(job, node.unpromised_milli(freest), freest), False
    device = max(roomy, key=lambda each: (each.id not in kept, ledger.free_bytes(each), each.id))
    if device.id in kept:
        return reasons.passed_over(kept[device.id], node.settings.pass_over_ns), False
    measured = next((each for each in node.jobs_on(device) if _is_being_measured(each)), None)
    whom = _measured_words(node, device, measured) if measured is not None else ""
    need = admission.total_need_bytes(job)
    floor = admission.start_floor_bytes(node, device)
    words = outlook(node, device, job, now=now)
    return reasons.queue_wait(need, device, floor, words, measured, whom), bool(words)


def _measured_words(node: Node, device: Device, job: Job) -> str:
    smaller = admission.smaller_promise_bytes(node, device, job)
    shrinks = admission.is_open_and_quiet(job) and smaller < job.memory.promised_bytes
    return reasons.open_promise(job, node.settings.start_patience_ns if shrinks else None)


def _is_being_measured(job: Job) -> bool:
    return is_unknown(job) and job.lane is not None
