"""Allocations that wait: a job asked for memory where it stands, found none, and waits for it instead of failing.

Rules
  W1  A turn in which that happens is taken, so that others go on; what the job holds is promised to it beside the
      lane it held it in. It is not moved and not parked: it is not at a boundary.
  W2  It is given what it asks for in the order of the policy, as soon as L1 allows; with the bytes it gets its turn
      again, and only with its turn may it use them. A program outside its turns (it starts, saves, takes none) may
      use them at once.
  W3  Bytes are given only if afterwards all who wait can still end, one after the other (the banker's algorithm). In
      that order each has the rest of what it is known to need from what is free, and from what those before it gave
      back at the end of their turns. So two half-filled jobs never wait for each other. Where needs have grown
      so that there is no such order any more, the first in the order of the policy gets what there is.
  W4  Nobody gets more than its own cap. An allocation over it that was told to wait (--wait-memory) is freed by a
      larger one (resize.py); any other fails at once: no waiting could help.
  W5  Where parking others gives it what it asks for, they are parked at once: the last in the order of the policy, no
      more than needed. They come back by themselves, not before the device was quiet for as long as R4 says: a job
      that grew is likely to grow on. Where it does not, others go on, but only those whose needs are covered.
  W6  Where no room can be made, an allocation that nobody told to wait (--wait-memory) fails: at once, or after
      `PATIENCE_NS` if others may come to a boundary or end until then, and that would help. One that was told to wait
      fails when everybody who has memory of the device waits like this, and only the end of one of them can free
      any. One fails at a time: that of the job which had the least device time, of several the youngest; the others
      wait for what becomes of it.
  W7  At its deadline an allocation fails.
  W8  An order to end the job (Ctrl-C, cancel) ends every allocation of it that waits at that moment: inside an
      allocation the program cannot hear the order. What it asks for later, perhaps to save its work, may wait again.

An allocation that fails is told so by the driver, with the sentence why, and the program gets the error of its
framework. docs/design/0012-growth.md has the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from carpool.core.kernel.ids import Nanos
from carpool.core.node import lifecycle
from carpool.core.node.effects import DenyMemory, Effect
from carpool.core.node.memory import admission, ledger
from carpool.core.node.model import (
    AWAY,
    BLOCKED,
    HOLDING,
    OUTSIDE,
    PARKED,
    WANTING,
    Departure,
    Device,
    Job,
    JobState,
    Why,
)
from carpool.core.node.moves import departures, leavers
from carpool.core.node.node import Node, is_asking, is_leaving
from carpool.core.node.words import denials
from carpool.units import SECOND

COMING = HOLDING | {JobState.STARTING, JobState.IDLE, BLOCKED}  # not at a boundary, but perhaps soon
MOVING = frozenset({JobState.PARKING, JobState.UNPARKING})
PATIENCE_NS = 30 * SECOND  # others that start, save or end come to a boundary or are gone after this
TRIES_MAX = 2  # who could not leave so often in a row probably never can
HEARD_NS = 2 * SECOND  # a program that waits hears within milliseconds; one that still waits asked again


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One waiting job: what it has, what it needs to end its turn, and what it keeps after that."""

    has_bytes: int
    claim_bytes: int
    keeps_bytes: int


def is_safe(free_bytes: int, parts: list[Part]) -> bool:
    """Whether all can have their claims one after the other (W3)."""
    left = sorted(parts, key=lambda part: part.claim_bytes - part.has_bytes)
    while left:
        # Nobody's end takes anything from the others: whoever can end first may.
        ending = next((part for part in left if part.claim_bytes - part.has_bytes <= free_bytes), None)
        if ending is None:
            return False
        left.remove(ending)
        free_bytes += max(0, ending.has_bytes - ending.keeps_bytes)
    return True


# --- who waits ----------------------------------------------------------------------------------------------


def take(node: Node, job: Job, pending_bytes: int, *, now: Nanos) -> list[Effect]:
    """Take in how much the job's allocations wait for."""
    before, device = job.memory.pending_bytes, node.device_of(job)
    ledger.ask(device, job, pending_bytes)
    was_heard = job.memory.denied_ns is not None and now - job.memory.denied_ns >= HEARD_NS
    if not before or was_heard:  # then this is the next allocation, and its time begins now
        ledger.begin_request(job, now=now)
    if job.state is BLOCKED and not pending_bytes:
        lifecycle.unblock(node, job, now=now)
        return []
    if job.state in HOLDING and before and pending_bytes:  # seen twice: its new cap is no help
        return _block(node, device, job, now=now)
    return []


def _block(node: Node, device: Device, job: Job, *, now: Nanos) -> list[Effect]:
    """Take its turn, and promise it what it holds at the cost of its lane (W1)."""
    lane = node.lane_of(job)
    effects = lifecycle.revoke(node, job, denials.blocked(job, device), now=now, to=BLOCKED)
    beyond = max(0, job.memory.live_bytes - job.memory.promised_bytes)
    if lane is not None:
        moved = min(beyond, lane.bytes)
        ledger.resize_lane(device, lane, lane.bytes - moved)
        beyond -= moved
        ledger.promise(device, job, job.memory.promised_bytes + moved)
    ledger.promise(device, job, job.memory.promised_bytes + min(beyond, max(0, ledger.free_bytes(device))))
    return effects


# --- who gets what ------------------------------------------------------------------------------------------


def settle(node: Node, device: Device, *, now: Nanos) -> list[Effect]:
    """Give what there is, have others parked for what there is not, and tell who waits in vain."""
    if not node.is_concerned(device):
        return []
    _give(node, device, now=now)
    _make_room(node, device, now=now)
    return _deny(node, device, now=now)


def _give(node: Node, device: Device, *, now: Nanos) -> None:
    """Promise waiting jobs what they ask for, as far as W2 to W4 allow."""
    waiting = [job for job in node.jobs_on(device) if is_asking(job)]
    asking = [job for job in waiting if job.memory.promised_bytes < _wanted_bytes(job) and _is_under_cap(job)]
    was_safe = is_safe(ledger.free_bytes(device), [part_of(job) for job in waiting])
    for job in leavers.in_order(node, device, asking, now=now):
        before, wanted = job.memory.promised_bytes, _wanted_bytes(job)
        if wanted - before > ledger.free_bytes(device):
            continue
        ledger.promise(device, job, wanted)
        if was_safe and not is_safe(ledger.free_bytes(device), [part_of(each) for each in waiting]):
            ledger.promise(device, job, before)
        elif not was_safe:
            return


def part_of(job: Job) -> Part:
    asks = _wanted_bytes(job)
    if job.memory.needs is None or job.state is not BLOCKED:
        return Part(has_bytes=job.memory.promised_bytes, claim_bytes=asks, keeps_bytes=job.memory.promised_bytes)
    claim = max(asks, job.memory.needs.total_bytes)
    return Part(has_bytes=job.memory.promised_bytes, claim_bytes=claim, keeps_bytes=job.memory.needs.resident_bytes)


def _has_it(node: Node, job: Job) -> bool:
    """Whether it may have what it asks for, with its turn or, without one, by its cap."""
    room_bytes = job.memory.promised_bytes if job.state is BLOCKED else admission.room_bytes(node, job)
    return room_bytes >= _wanted_bytes(job)


def _wanted_bytes(job: Job) -> int:
    return job.memory.live_bytes + job.memory.pending_bytes


def _is_under_cap(job: Job) -> bool:
    return job.spec.cap_bytes is None or _wanted_bytes(job) <= job.spec.cap_bytes


def _is_told(job: Job, *, now: Nanos) -> bool:
    """Whether it was told just now that there is no memory, and what becomes of it is not seen yet."""
    return job.memory.denied_ns is not None and now - job.memory.denied_ns < HEARD_NS


def _stuck(node: Node, device: Device, *, now: Nanos) -> list[Job]:
    """The jobs that wait for others' memory."""
    asking = [job for job in node.jobs_on(device) if is_asking(job) and not _has_it(node, job)]
    return [job for job in asking if _is_under_cap(job) and not _is_told(job, now=now)]


# --- who makes room (W5) ------------------------------------------------------------------------------------


def _make_room(node: Node, device: Device, *, now: Nanos) -> None:
    """Mark those who leave the device for an allocation, and let them back when none waits any more."""
    for job in node.jobs_on(device):
        if Why.GIVES_WAY in job.departures and job.state not in AWAY and not leavers.still_leaves(job, now=now):
            departures.drop(node, job, Why.GIVES_WAY)
    stuck = _stuck(node, device, now=now)
    if not stuck:
        _let_back(node, device, now=now)
    for job in leavers.in_order(node, device, stuck, now=now):
        leaving = _leavers_for(node, device, job, now=now)
        if leaving is not None:
            for each in leaving:
                departures.add(node, each, Why.GIVES_WAY, Departure(since_ns=now))
            return


def _leavers_for(node: Node, device: Device, job: Job, *, now: Nanos) -> list[Job] | None:
    """Who has to leave beside those who do already, so that the job has what it asks for; None if that is no help."""
    others = leavers.askable(node, device, job)
    going = [other for other in others if _is_on_its_way(other, now=now)]
    able = [other for other in others if leavers.may_leave(other, now=now) and now >= other.move.retry_ns]
    missing = _wanted_bytes(job) - job.memory.promised_bytes
    missing -= ledger.free_bytes(leavers.without(node, device, going)) - ledger.free_bytes(device)

    def has_room(trial: Device) -> bool:
        return ledger.free_bytes(trial) >= missing

    if not node.settings.move_percent or not has_room(leavers.without(node, device, able)):
        return None if missing > ledger.free_bytes(device) else []
    leaving = leavers.fewest(node, device, leavers.in_order(node, device, able, now=now), has_room)
    return leaving if node.has_host_room(sum(map(admission.bytes_to_move, leaving))) else None


def _is_on_its_way(job: Job, *, now: Nanos) -> bool:
    """Whether its memory is about to leave the device, for whomever."""
    return job.state is JobState.PARKING or (is_leaving(job) and leavers.still_leaves(job, now=now))


def _let_back(node: Node, device: Device, *, now: Nanos) -> None:
    here = node.jobs_on(device)
    staying = [job for job in here if Why.GIVES_WAY not in job.departures]
    is_used = any(job.state in WANTING or job.state is JobState.STARTING for job in staying)
    for job in here:
        if job.state is not PARKED or not is_used or now >= device.quiet_until_ns:
            departures.drop(node, job, Why.GIVES_WAY)


# --- who waits in vain (W4, W6, W7, W8) ---------------------------------------------------------------------


def _deny(node: Node, device: Device, *, now: Nanos) -> list[Effect]:
    here = node.jobs_on(device)
    effects: list[Effect] = []
    for job in here:
        wait_ns = job.spec.wait_memory_ns
        is_late = wait_ns is not None and now - job.memory.asked_ns >= wait_ns
        is_capped = wait_ns is None and not _is_under_cap(job)
        if (is_late or is_capped) and is_asking(job) and not _has_it(node, job) and not _is_told(job, now=now):
            waited_ns = now - job.memory.asked_ns
            facts = _facts(node, device, job)
            effects += _tell(job, denials.at_its_cap(job) if is_capped else facts.waited_long(waited_ns), now=now)
    if any(job.state in MOVING or _is_on_its_way(job, now=now) or _is_told(job, now=now) for job in here):
        return effects
    stuck = _stuck(node, device, now=now)
    unwilling = [
        job for job in stuck if job.spec.wait_memory_ns is None and not _may_hope(node, device, job, now=now)
    ]
    if unwilling:
        job = min(unwilling, key=_loss)
        return effects + _tell(job, _facts(node, device, job).not_told_to_wait(), now=now)
    if not all(job.spec.wait_memory_ns is None for job in stuck) and not any(
        _may_free(node, job, now=now) for job in here
    ):
        job = min(stuck, key=_loss)
        return effects + _tell(job, _facts(node, device, job).nobody_goes_on(), now=now)
    return effects


def _may_hope(node: Node, device: Device, job: Job, *, now: Nanos) -> bool:
    """Whether a job that was not told to wait does so: others may come to a boundary or end, and that would help."""
    if now - job.memory.asked_ns >= PATIENCE_NS:
        return False
    others = [other for other in node.jobs_on(device) if other is not job and now >= other.move.retry_ns]
    coming = [other for other in others if other.state in COMING and (not is_asking(other) or _has_it(node, other))]
    missing = _wanted_bytes(job) - job.memory.promised_bytes
    return ledger.free_bytes(leavers.without(node, device, coming)) >= missing


def _facts(node: Node, device: Device, job: Job) -> denials.Facts:
    others = [other for other in node.jobs_on(device) if other is not job]
    return denials.Facts(job=job, device=device, others=others, room_bytes=_could_have(node, device, job))


def _could_have(node: Node, device: Device, job: Job) -> int:
    """What it would be given if it asked for that much: all that is free, or no more than it has (W3)."""
    if job.state is not BLOCKED:
        return admission.room_bytes(node, job)
    more, part = max(0, ledger.free_bytes(device)), part_of(job)
    if job.spec.cap_bytes is not None:
        more = min(more, max(0, job.spec.cap_bytes - job.memory.promised_bytes))
    has = job.memory.promised_bytes + more
    claim = max(has, job.memory.needs.total_bytes if job.memory.needs is not None else 0)
    others = [part_of(other) for other in node.jobs_on(device) if is_asking(other) and other is not job]
    was_safe = is_safe(more, [*others, replace(part, claim_bytes=claim)])
    is_still = is_safe(ledger.free_bytes(device) - more, [*others, replace(part, has_bytes=has, claim_bytes=claim)])
    return has if is_still or not was_safe else job.memory.promised_bytes


def _loss(job: Job) -> tuple[Nanos, Nanos, str]:
    """What would be lost with the job: of several the least, of these the youngest."""
    return job.service.served_ns, -job.arrived_ns, job.id


def give_up(job: Job, *, now: Nanos) -> list[Effect]:
    """Somebody wants it to end (W8)."""
    is_inside = is_asking(job) or (job.state in HOLDING and job.memory.pending_bytes > 0)  # else it has gone on since
    return _tell(job, denials.is_to_end(job), now=now) if is_inside else []


def _tell(job: Job, reason: str, *, now: Nanos) -> list[Effect]:
    ledger.deny(job, reason, now=now)
    return [DenyMemory(job=job.id, reason=reason)]


def _may_free(node: Node, job: Job, *, now: Nanos) -> bool:
    """Whether memory of this job may become free though nobody fails: it computes or may, ends its start or what it
    does between turns, waits for its user (W4), or is asked later once more to leave."""
    if is_asking(job):
        return _has_it(node, job) or not _is_under_cap(job)
    if job.state is JobState.WAITING:
        is_asked_again = now < job.move.retry_ns and job.move.fails < TRIES_MAX
        return is_asked_again or (node.wants_turn(job) and node.may_run(job))
    return job.state in HOLDING or job.state in OUTSIDE


# --- time ---------------------------------------------------------------------------------------------------


def is_due(node: Node, device: Device, *, now: Nanos) -> bool:
    """Whether a Tick should look whether room can be made, whether somebody waits in vain, or may come back."""
    return node.is_pressed(device) or (now >= device.quiet_until_ns and node.is_concerned(device))


def next_looks(node: Node, device: Device, *, now: Nanos) -> list[Nanos]:
    """When somebody may have waited long enough, or may come back; nothing if nobody waits, or is away for one."""
    if not node.is_concerned(device):
        return []
    times: list[Nanos] = []
    watch_ns = now + node.settings.watch_ns
    for job in node.jobs_on(device):
        if is_asking(job):
            times += [watch_ns, job.memory.asked_ns + (job.spec.wait_memory_ns or 0)]
        elif Why.GIVES_WAY in job.departures:
            times += [watch_ns if job.state is not PARKED else device.quiet_until_ns]
    return [time for time in times if time > now]
