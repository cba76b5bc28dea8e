"""Whose memory makes room: jobs are parked so that others, for which there is none, get theirs.

A *claimant* wants memory that is not there: it waits in the queue, or is parked and not suspended, or has outgrown
its promise, or is about to have its first turn with too little room. For it, resident jobs are parked at their
boundaries (departures.py); they are claimants from then on and come back the same way. So jobs whose bytes sum to
several times the device's capacity all run, in turns of residency.

Rules
  R1  Who is resident is the policy's order: a job is parked only for a claimant which the policy puts before it.
  R2  Only jobs that take turns and can be parked are, and no more of them than needed. It must be seen beforehand
      that the claimant then has room on the device, and that they have room on the host (L5), also on the way back.
  R3  One claimant a device at a time. Until it has its room or cannot get it, nobody else is let in there.
  R4  Moving takes at most `move_percent` of a device's time. After the moves for one claimant, nobody is moved for
      another until the device had `(100 - percent) / percent` times as long without. Nobody is parked who was not
      there so much longer than its own moves will probably take. A newcomer under a policy without a quantum
      (first come, priorities) need not wait for that: each comes only once.
  R5  A job that could not be parked for another goes on at once, like all who were to leave with it, and is left
      alone for longer each time.
  R6  A job is not parked if what the others leave on the device would keep it from ever coming back.

What is deliberately not here: who would have to leave (leavers.py), how a job leaves and comes back, and suspended
jobs (departures.py).
"""

from __future__ import annotations

from carpool.core.kernel.ids import Nanos
from carpool.core.node import accounts
from carpool.core.node.memory import admission, ledger
from carpool.core.node.model import PARKED, WANTING, Device, Job, Why
from carpool.core.node.moves import departures, leavers
from carpool.core.node.node import Node, leaves_for
from carpool.errors import InternalError

CLAIMANTS_TRIED = 16  # how deep into the order one look goes past claimants for which no room can be made
LOOK_PART = 4  # claimants the policy does not prefer are looked at again after a quarter of the time it did not


# --- claims -------------------------------------------------------------------------------------------------


def make_room(node: Node, *, now: Nanos) -> None:
    """Choose for each device the claimant that gets room next and those that leave for it (R1 to R4)."""
    if not node.settings.move_percent:
        return
    for device in node.devices.values():
        if device.claimant is None and not node.is_moving(device):
            _open_claim(node, device, now=now)


def _open_claim(node: Node, device: Device, *, now: Nanos) -> None:
    claimants = _claimants(node, device, now=now)
    for job in accounts.in_order(node, claimants, now=now, on=device, at_most=CLAIMANTS_TRIED):
        if now < device.quiet_until_ns and not leavers.is_exempt(node, job):
            continue
        plan = leavers.plan_for(node, device, job, now=now)
        if plan.leaving:
            departures.claim(node, device, job, plan.leaving, Why.MAKES_ROOM, now=now)
            return


def _claimants(node: Node, device: Device, *, now: Nanos) -> list[Job]:
    elsewhere = {other.claimant for other in node.devices.values()} if node.queue else set()
    allowed = [job for job in node.queued_for(device) if job.id not in elsewhere]
    allowed = [job for job in allowed if node.has_compute_room(device, job.spec)]
    return [job for job in allowed + node.lively_on(device) if node.wants_memory(job, now=now)]


def review(node: Node, device: Device, *, now: Nanos) -> None:
    """End a claim that is met, pointless, or whose leavers do not leave."""
    if device.claimant is None:
        return
    claimant = node.jobs.get(device.claimant)
    is_first = claimant is not None and admission.is_before_first_turn(claimant)
    is_met = claimant is None or not (is_first or node.wants_memory(claimant, now=now))
    if is_met or is_vain(node, device, now=now):
        departures.close_claim(node, device, now=now)
        if claimant is not None and is_first:
            wanted = admission.first_room_bytes(node, device, claimant)
            ledger.promise_up_to(device, claimant, max(wanted, claimant.memory.promised_bytes))


def is_vain(node: Node, device: Device, *, now: Nanos) -> bool:
    """Whether the leavers cannot make the room that is claimed: none is left, or one of them does not go."""
    if device.claimant is None:
        return False
    leaving = [job for job in node.lively_on(device) if leaves_for(job) == device.claimant]
    return not leaving or not all(leavers.still_leaves(job, now=now) for job in leaving)


# --- time ---------------------------------------------------------------------------------------------------


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
    if not node.settings.move_percent or not any(job.state in WANTING for job in node.lively_on(device)):
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


def check_claim(node: Node, device: Device) -> None:
    """Assert R3; a failure is a bug."""
    for job in node.jobs_on(device):
        leaving = job.departures.get(Why.MAKES_ROOM)
        if leaving is not None and (leaving.whom != device.claimant or job.state is PARKED):
            raise InternalError(f"R3 broken on {device.id}: {job.state} {job.id} makes room for {leaving.whom}")
