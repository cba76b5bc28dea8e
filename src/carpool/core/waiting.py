"""Allocations that wait: a job asked for memory in the middle of a turn, found none, and may wait for it.

Rules
  W1  Its turn is taken, so that others go on; what it holds is promised to it beside the lane it held it in. It is
      not moved and not parked: it is not at a boundary.
  W2  It is given what it asks for in the order of the policy, as soon as L1 allows; with the bytes it gets its turn
      again, and only with its turn may it use them.
  W3  Bytes are given only if afterwards there is an order in which all who wait can have the rest of what they are
      known to need, one after the other, each from what is free and what those before it gave back at the end of
      their turns (the banker's algorithm). So two half-filled jobs never wait for each other. Where needs have grown
      so that there is no such order any more, the first in the order of the policy gets what there is.
  W4  Nobody gets more than its own cap; a larger one (resize.py) frees a waiting allocation.
  W5  While somebody waits, only jobs whose needs are covered get turns. Where nobody can go on like that, the
      youngest that waits at a boundary makes room: it is parked until the allocation has what it waits for. If it
      cannot be, the next one is asked, and it again later.

How long it waits is counted where it waits (native/meter.c): at its deadline it fails, and the job goes on without.
"""

from __future__ import annotations

from dataclasses import dataclass

from carpool.core import ledger, reasons
from carpool.core.accounts import raise_floors, reset_marks, view_of
from carpool.core.effects import Effect, RevokeLease
from carpool.core.events import ProgressSeen
from carpool.core.model import HOLDING, Device, Job, JobState, Nanos
from carpool.core.node import Node

GOING_ON = HOLDING | {JobState.STARTING, JobState.IDLE, JobState.PARKING, JobState.UNPARKING}


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


def take(node: Node, job: Job, event: ProgressSeen, *, now: Nanos) -> list[Effect]:
    """Take in how much the job's allocations wait for."""
    before, job.pending_bytes = job.pending_bytes, event.pending_bytes
    if job.state is JobState.BLOCKED and not event.pending_bytes:
        raise_floors(node, node.device_of(job))
        node.move(job, ProgressSeen, now=now, to=JobState.IDLE)  # it goes on, and asks at its next point
        return []
    if (
        job.state in HOLDING and before and event.pending_bytes
    ):  # seen twice: the cap it was told meanwhile is no help
        return _block(node, node.device_of(job), job, now=now)
    return []


def _block(node: Node, device: Device, job: Job, *, now: Nanos) -> list[Effect]:
    """Take its turn, and promise it what it holds at the cost of its lane (W1)."""
    raise_floors(node, device)
    lane = node.lane_of(job)
    reason = reasons.blocked(job, device)
    node.move_lease(job, RevokeLease, now=now)
    node.move(job, RevokeLease, now=now, to=JobState.BLOCKED)
    reset_marks(node, device)
    beyond = max(0, job.live_bytes - job.promised_bytes)
    if lane is not None:
        moved = min(beyond, lane.bytes)
        lane.bytes -= moved
        beyond -= moved
        ledger.promise(device, job, job.promised_bytes + moved)
    ledger.promise(device, job, job.promised_bytes + min(beyond, max(0, ledger.free_bytes(device))))
    return [RevokeLease(job=job.id, reason=reason)]


def give(node: Node, device: Device, *, now: Nanos) -> None:
    """Promise waiting jobs what they ask for, as far as W2 to W4 allow."""
    blocked = [job for job in node.jobs_on(device) if job.state is JobState.BLOCKED]
    asking = [job for job in blocked if not ledger.covers(device, job) and _is_under_cap(job)]
    was_safe = is_safe(ledger.free_bytes(device), [part_of(job) for job in blocked])
    while asking:
        picked = node.policy.pick([view_of(node, job, now=now) for job in asking], now=now)
        job = next((each for each in asking if each.id == picked), asking[0])
        asking.remove(job)
        before, wanted = job.promised_bytes, job.live_bytes + job.pending_bytes
        if wanted - before > ledger.free_bytes(device):
            continue
        ledger.promise(device, job, wanted)
        if was_safe and not is_safe(ledger.free_bytes(device), [part_of(each) for each in blocked]):
            ledger.promise(device, job, before)
        elif not was_safe:
            return


def make_room(node: Node, device: Device, *, now: Nanos) -> None:
    """Send one job off the device if an allocation waits and nobody can go on (W5)."""
    here = node.jobs_on(device)
    stuck = [job for job in here if job.state is JobState.BLOCKED and _is_under_cap(job)]
    if all(ledger.covers(device, job) for job in stuck):
        for job in here:
            job.gives_way = False
        return
    is_underway = any(job.state in GOING_ON or node.wants_turn(job) and node.may_run(job) for job in here)
    waiting = [job for job in here if job.state is JobState.WAITING and not job.is_held_back]
    waiting = [job for job in waiting if now >= job.move_retry_ns]
    if not is_underway and waiting:
        max(waiting, key=lambda job: (job.arrived_ns, job.id)).gives_way = True


def nobody_goes_on(node: Node, job: Job) -> bool:
    """Whether this job and all others of its device wait for memory that only the end of one of them can free."""
    here = node.jobs_on(node.device_of(job))
    resident = [each for each in here if each.state not in (JobState.PARKED, JobState.UNMANAGED)]
    return all(each.state is JobState.BLOCKED and not node.wants_turn(each) for each in resident)


def part_of(job: Job) -> Part:
    asks = job.live_bytes + job.pending_bytes
    if job.needs is None:
        return Part(has_bytes=job.promised_bytes, claim_bytes=asks, keeps_bytes=job.promised_bytes)
    claim = max(asks, job.needs.total_bytes)
    return Part(has_bytes=job.promised_bytes, claim_bytes=claim, keeps_bytes=job.needs.resident_bytes)


def _is_under_cap(job: Job) -> bool:
    return job.spec.cap_bytes is None or job.live_bytes + job.pending_bytes <= job.spec.cap_bytes
