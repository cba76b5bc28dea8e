"""Who has the device now: grants and recalls of one device; hogs.py takes turns from holders that went silent.

Rules
  D1  A free lane for which somebody waits who may run is granted in the same call.
  D2  A job whose needs are not covered gets no turn, unless it is the oldest of its device (somebody always can).
  D3  A job without known needs has the whole device to itself for its first turns, and goes first while others
      queue for the memory its open promise holds.
  D4  A holder is recalled only for a job the policy prefers or a guarantee puts first, after its quantum, or because
      it outgrew its promise or used up its limit (shares.py).
  D5  Where one job runs at a time, the successor of a recalled holder is chosen beforehand, anew at every event. It
      gets the turn when that comes back, so a driver may tell it before it tells the core. No successor is named if
      bytes change hands then: an allocation waits on the device, or the holder gives back what its own waited for
      (W2).
  D6  A holder loses its turn by lapse only after several looks that found it silent. A look that comes late counts no
      more than one in time: perhaps the whole machine stood still, and the holder is in the middle of a step.
  D7  A job that wanted no more when its last turn ended does not wait for a holder's quantum when it asks again. It
      is compared at once, and of equals it goes first. What it did not use is not saved up (A2): it gets its share.
"""

from __future__ import annotations

from carpool.core.kernel.ids import JobId, Nanos
from carpool.core.node import lifecycle
from carpool.core.node.effects import Effect, GrantLease
from carpool.core.node.memory import admission
from carpool.core.node.model import BLOCKED, Device, Job, JobState, Lane, Why
from carpool.core.node.moves import departures, leavers
from carpool.core.node.node import Node, is_leaving, is_over_limit
from carpool.core.node.turns import choice, packing


def dispatch(node: Node, device: Device, *, now: Nanos) -> list[Effect]:
    """Recall, merge, spread and grant until nothing more is to be done on this device."""
    effects: list[Effect] = []
    if node.policy.lanes_max > 1:
        slower = packing.judge(node, device)
        if slower is not None:
            effects += lifecycle.recall(node, slower, "it is slower beside its neighbour than in turns", now=now)
        packing.arrange(node, device)
        newcomer = choice.newcomer(node, device, now=now)
        if newcomer is not None:
            return effects + _measure_alone(node, device, newcomer, now=now)
    for lane in list(device.lanes.values()):
        effects += _serve(node, device, lane, now=now)
    return effects


def _serve(node: Node, device: Device, lane: Lane, *, now: Nanos) -> list[Effect]:
    holder = node.jobs[lane.holder] if lane.holder is not None else None
    promised, lane.successor = lane.successor, None
    if holder is not None and not node.may_run(holder):
        return lifecycle.recall(node, holder, _why_not(node, device, holder, now=now), now=now)
    if holder is not None and device.has_shares and is_over_limit(holder, now=now):
        lane.successor = choice.successor(node, device, lane, now=now) if choice.is_sure(node, holder) else None
        return lifecycle.recall(node, holder, choice.why_not_on(node, device, holder, now=now), now=now)
    if holder is not None and not choice.is_due(node, holder, now=now):
        if promised is not None and choice.is_sure(node, holder):
            lane.successor = choice.successor(node, device, lane, now=now)
        return []
    waiting = choice.ready(node, device, lane, now=now)
    if not waiting:
        return []
    chosen = _named(waiting, promised) if holder is None and promised is not None else None
    chosen = chosen or choice.choose(node, device, waiting, holder, now=now)
    if chosen is None or chosen is holder:
        return []
    if _make_first_room(node, device, chosen, now=now):
        parked = departures.park_leaving(node, device, now=now)
        if holder is None:
            return parked + _serve(node, device, lane, now=now)  # somebody else may have the lane meanwhile (D1)
        return parked + (
            lifecycle.recall(node, holder, departures.held_words(holder), now=now) if is_leaving(holder) else []
        )
    if holder is not None:
        is_named = choice.is_sure(node, holder) and choice.has_its_room(node, chosen)
        lane.successor = chosen.id if is_named else None
        return lifecycle.recall(node, holder, choice.why_first(node, chosen, holder, now=now), now=now)
    if len(device.lanes) > 1 and any(job.state is JobState.PROFILING for job in node.holders_on(device)):
        return []
    return _grant(node, device, lane, chosen, now=now)


def _make_first_room(node: Node, device: Device, job: Job, *, now: Nanos) -> bool:
    """Whether others are parked before a job that nobody measured has its first turn; nothing if it was measured."""
    if job.memory.needs is not None:
        return False
    leaving = leavers.first_room(node, device, job, now=now)
    if leaving is not None:
        departures.claim(node, device, job, leaving, Why.MAKES_ROOM, now=now)
    return leaving is not None


def _why_not(node: Node, device: Device, holder: Job, *, now: Nanos) -> str:
    """Why a holder may not go on."""
    return departures.held_words(holder) or choice.why_not_on(node, device, holder, now=now)


def _named(waiting: list[Job], promised: JobId) -> Job | None:
    """The successor, if it still waits (D5)."""
    return next((job for job in waiting if job.id == promised), None)


def _measure_alone(node: Node, device: Device, newcomer: Job, *, now: Nanos) -> list[Effect]:
    """With several lanes: clear the whole device for a newcomer's first turns (D3)."""
    holders = node.holders_on(device)
    lane = node.lane_of(newcomer)
    if holders or lane is None:
        reason = f"{newcomer.spec.name} is to be measured alone"
        settled = [job for job in holders if job.state is not JobState.PROFILING or is_leaving(job)]
        settled += [job for job in holders if job not in settled and is_over_limit(job, now=now)]
        return [effect for job in settled for effect in lifecycle.recall(node, job, reason, now=now)]
    if _make_first_room(node, device, newcomer, now=now):
        parked = departures.park_leaving(node, device, now=now)
        return parked + [effect for each in device.lanes.values() for effect in _serve(node, device, each, now=now)]
    return _grant(node, device, lane, newcomer, now=now)


def _grant(node: Node, device: Device, lane: Lane, job: Job, *, now: Nanos) -> list[Effect]:
    was_blocked = job.state is BLOCKED
    lifecycle.move_lease(node, job, GrantLease, now=now)
    is_measured = job.memory.needs is not None
    lifecycle.move(node, job, GrantLease, now=now, to=JobState.RUNNING if is_measured else JobState.PROFILING)
    if not was_blocked:
        return [grant_of(node, lane, job.id)]
    told = admission.lend(node, device, job)
    effects: list[Effect] = [grant_of(node, lane, job.id), *told]
    if not node.may_run(job):  # only to come to its next boundary
        effects += lifecycle.recall(node, job, _why_not(node, device, job, now=now), now=now)
    return effects


def grant_of(node: Node, lane: Lane, job: JobId) -> GrantLease:
    is_shared = len(lane.jobs) > 1 or bool(node.queue)
    return GrantLease(job=job, lane=lane.id, lane_bytes=lane.bytes, is_shared=is_shared)
