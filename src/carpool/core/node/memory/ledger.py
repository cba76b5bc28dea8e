"""The account of every byte of a device: promised to jobs, cut into lanes, held, asked for, or away on the host.

Two kinds of bytes are promised: to a job, for what stays between its turns (its persistent bytes and the framework's
overhead), and to a lane, for what its jobs use inside a turn, one at a time. Between two turns the ephemeral part of
a lane is empty. So at a boundary a lane can change size, take in another lane's jobs or be closed without a copy.

Rules
  L1  Σ promised to jobs + Σ kept for jobs on their way to another device + Σ lanes ≤ capacity. A promise that would
      break L1 is not made; the job waits.
  L2  Every promise is at least zero and belongs to a resident job of this device.
  L3  A lane is at least as large as the largest measured ephemeral need of the jobs whose needs are covered.
  L4  A job whose needs are not known yet is promised one sum that has to cover both kinds together.
  L5  Σ parked bytes ≤ host budget, but for what jobs of an earlier driver bring. A job is told to park only after its
      bytes were reserved on the host; they are its own there until it is back or over.
  L6  No job is both parked and counted. A parked job has no lane, and is promised only what it reported to have
      stayed on the device. All of it is promised again before the job is told to come back.
  L7  A job rests while it is in its own code without a turn, is not held back, and no allocation of it waits. A
      device and its lanes know who does not, so that jobs that rest cost a decision nothing.
  N1  A resident managed job is in exactly one lane of its device, an unmanaged or ended job in none.
  N2  A lane has at most one holder, and the holder is one of its jobs.
  N3  A lane with no jobs does not exist.
  N4  Only a job that holds nothing is moved to another lane.

Placing a job of ephemeral need E, in this order (the order of the Salus paper, with merging added):
open a lane of E bytes if the policy allows one more and it fits; else the smallest lane that is large enough;
else grow the lane that needs the least; else merge free lanes until one of the former fits; else there is no room.

This module alone changes `Job.memory`, a job's device and lane, and the sizes and members of lanes. Whatever it
changes of who holds or wants bytes, it marks by touching the device: then the scheduler settles who gets what.

What is deliberately not here: whether a job uses what it was promised (the page and the meter know), and who
gets a turn. A job measured to need more than its promise is *uncovered*: it keeps what it was promised, gets no
turn, and is promised more as soon as L1 allows (admission.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from carpool.core.kernel.ids import DeviceId, JobId, LaneId, Nanos
from carpool.core.node.model import RESIDENT, Device, Job, JobState, Lane, Needs
from carpool.core.node.node import note_left, note_wish
from carpool.errors import InternalError
from carpool.units import format_bytes

Sizes = dict[LaneId, tuple[DeviceId, int, tuple[JobId, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Where a job would go: an existing lane (grown to `lane_bytes`) or, with no lane, a new one."""

    lane: LaneId | None
    lane_bytes: int


def touch(device: Device) -> None:
    """Mark that who holds or wants bytes of this device changed."""
    device.is_touched = True


def clear_touches(devices: Iterable[Device]) -> None:
    """What was changed needs no settling."""
    for device in devices:
        device.is_touched = False


def note_settled(devices: Iterable[Device]) -> None:
    """Bytes are settled: with what was changed, and with what was lent."""
    for device in devices:
        device.is_touched = device.is_lent = False


# --- bytes promised to jobs ---------------------------------------------------------------------------------


def promised_bytes(device: Device) -> int:
    return sum(device.promised.values()) + sum(device.kept.values())


def lanes_bytes(device: Device) -> int:
    return sum(lane.bytes for lane in device.lanes.values())


def free_bytes(device: Device) -> int:
    return device.capacity_bytes - promised_bytes(device) - lanes_bytes(device)


def terms(device: Device) -> str:
    """The terms of L1: what is free of a device, and who has the rest."""
    return (
        f"{format_bytes(max(0, free_bytes(device)))} of {format_bytes(device.capacity_bytes)} is unpromised on"
        f" {device.id} ({format_bytes(promised_bytes(device))} to jobs,"
        f" {format_bytes(lanes_bytes(device))} in lanes)"
    )


def promise(device: Device, job: Job, count: int) -> None:
    """Set the job's promise on this device, where it is resident then; the caller has made sure that L1 allows it."""
    device.promised[job.id] = count
    device.is_touched = True
    job.memory.promised_bytes = count
    job.device = device.id
    note_wish(device, job)


def promise_up_to(device: Device, job: Job, wanted: int) -> None:
    """Promise as much of that as there is, beside what the job is promised already."""
    promise(device, job, min(wanted, job.memory.promised_bytes + free_bytes(device)))


def release(device: Device, job: Job) -> None:
    device.promised.pop(job.id, None)
    device.is_touched = True
    note_wish(device, job)
    job.memory.promised_bytes = 0


def withdraw(device: Device, job: Job) -> None:
    """Take back all that a job was promised which has not begun: it is on no device then."""
    remove(device, job)
    release(device, job)
    job.memory.needs = job.device = None


def keep(device: Device, job: Job, count: int) -> None:
    """Keep room for a job that leaves for another device, until it has arrived there (V2)."""
    device.kept[job.id] = count
    device.is_touched = True


def unkeep(device: Device, job: Job) -> None:
    device.kept.pop(job.id, None)
    device.is_touched = True


# --- what a job needs, holds, asks for, and has on the host -------------------------------------------------


def learn_needs(device: Device, job: Job, needs: Needs, measured: Needs) -> None:
    """The job was measured; `needs` has the margin beyond it."""
    memory = job.memory
    memory.is_measured, memory.measured_bytes, memory.needs = True, measured.total_bytes, needs
    device.is_touched = True


def recall_needs(job: Job, needs: Needs | None) -> None:
    """What an earlier run of the same program needed counts until this one is measured."""
    job.memory.needs = needs


def see_live(job: Job, count: int) -> None:
    job.memory.live_bytes = count


def tell_cap(job: Job, count: int) -> None:
    job.memory.cap_sent_bytes = count


def ask(device: Device, job: Job, count: int) -> None:
    """The job's allocations wait for so much now."""
    device.is_touched = True
    job.memory.pending_bytes = count
    note_wish(device, job)


def begin_request(job: Job, *, now: Nanos) -> None:
    """This is the next allocation that waits, and its time begins now."""
    job.memory.asked_ns, job.memory.denied_ns = now, None


def deny(job: Job, reason: str, *, now: Nanos) -> None:
    job.memory.denied_ns, job.memory.denial = now, reason


def forget_denial(job: Job) -> None:
    """It went on."""
    job.memory.denial = ""


def lend(device: Device, job: Job) -> None:
    """Until its turn ends the job has what its allocation waited for (W2)."""
    device.is_lent = True
    job.memory.is_given, job.memory.pending_bytes = True, 0
    note_wish(device, job)


def end_loan(device: Device, job: Job) -> None:
    """Its turn is over: what it is promised beyond its needs is for others again (W2)."""
    memory, needs = job.memory, job.memory.needs
    memory.is_given = False
    if needs is not None and memory.promised_bytes > needs.persistent_bytes + needs.overhead_bytes:
        device.is_touched = True


def reserve_host(job: Job, count: int) -> None:
    """So much of the host budget is the job's (L5); 0 gives it back."""
    job.memory.parked_bytes = count


def note_stayed(device: Device, job: Job, count: int) -> None:
    """So much of a parked job is still on the device, as far as L1 allows to say so (L6)."""
    job.memory.stayed_bytes = min(count, job.memory.promised_bytes + free_bytes(device))
    promise(device, job, job.memory.stayed_bytes)


# --- lanes --------------------------------------------------------------------------------------------------


def find_fit(device: Device, *, resident_bytes: int, ephemeral_bytes: int, lanes_max: int) -> Fit | None:
    """The best place for a job by L1, or None; changes nothing."""
    left = free_bytes(device) - resident_bytes
    if left < 0:
        return None
    if len(device.lanes) < lanes_max and ephemeral_bytes <= left:
        return Fit(lane=None, lane_bytes=ephemeral_bytes)
    roomy = [lane for lane in device.lanes.values() if lane.bytes >= ephemeral_bytes]
    if roomy:
        best = min(roomy, key=lambda lane: (lane.bytes, len(lane.jobs), lane.id))
        return Fit(lane=best.id, lane_bytes=best.bytes)
    growable = [lane for lane in device.lanes.values() if ephemeral_bytes - lane.bytes <= left]
    if growable:
        best = min(growable, key=lambda lane: (ephemeral_bytes - lane.bytes, len(lane.jobs), lane.id))
        return Fit(lane=best.id, lane_bytes=ephemeral_bytes)
    return None


def merging_would_fit(device: Device, *, resident_bytes: int, ephemeral_bytes: int) -> bool:
    """Whether one merged lane for everybody would leave room for the job."""
    if len(device.lanes) < 2:
        return False
    widest = max(lane.bytes for lane in device.lanes.values())
    used = promised_bytes(device) + resident_bytes + max(widest, ephemeral_bytes)
    return used <= device.capacity_bytes


def place(device: Device, job: Job, fit: Fit) -> Lane:
    """Put the job into the lane of a fit, opening or growing it."""
    if fit.lane is None:
        device.lanes_made += 1
        lane = Lane(id=LaneId(f"{device.id}/{device.lanes_made}"))
        device.lanes[lane.id] = lane
    else:
        lane = device.lanes[fit.lane]
    lane.bytes = max(lane.bytes, fit.lane_bytes)
    lane.jobs.append(job.id)
    job.lane = lane.id
    device.is_touched = True
    note_wish(device, job)
    return lane


def remove(device: Device, job: Job) -> None:
    """Take a job out of its lane; close the lane when it was the last (N3)."""
    lane = device.lanes.get(job.lane) if job.lane is not None else None
    if lane is not None and lane.holder == job.id:
        raise InternalError(f"N4 broken: {job.id} leaves lane {lane.id} while it holds it")
    job.lane = None
    if lane is None:
        return
    lane.jobs.remove(job.id)
    note_left(lane, job.id)
    device.is_touched = True
    if not lane.jobs:
        del device.lanes[lane.id]


def shrink(device: Device, jobs: dict[JobId, Job]) -> None:
    """Cut every lane to the largest measured need of its jobs; only ever makes lanes smaller."""
    for lane in device.lanes.values():
        wanted = 0
        for job_id in lane.jobs:
            needs = jobs[job_id].memory.needs
            if needs is not None and jobs[job_id].state is not JobState.BLOCKED:  # it has its bytes for itself (W1)
                wanted = max(wanted, needs.ephemeral_bytes)
        lane.bytes = min(lane.bytes, wanted)


def resize_lane(device: Device, lane: Lane, count: int) -> None:
    lane.bytes = count
    device.is_touched = True


def merge(device: Device, jobs: dict[JobId, Job], *, keep: LaneId, close: LaneId) -> None:
    """Move every job of a lane that nobody holds into another lane."""
    closing, kept = device.lanes[close], device.lanes[keep]
    if closing.holder is not None:
        raise InternalError(f"N4 broken: lane {close} is merged while {closing.holder} holds it")
    kept.bytes = max(kept.bytes, closing.bytes)
    for job_id in closing.jobs:
        jobs[job_id].lane = keep
        kept.jobs.append(job_id)
        note_wish(device, jobs[job_id])
    del device.lanes[close]
    device.is_touched = True


def merge_free(device: Device, jobs: dict[JobId, Job]) -> bool:
    """Merge one free lane into its best partner; False if there is none to merge."""
    free = sorted((lane for lane in device.lanes.values() if lane.holder is None), key=lambda lane: lane.bytes)
    for closing in free:
        others = [lane for lane in device.lanes.values() if lane.id != closing.id]
        if others:
            keep = max(others, key=lambda lane: (lane.bytes, lane.id))
            merge(device, jobs, keep=keep.id, close=closing.id)
            return True
    return False


def sizes(devices: Iterable[Device]) -> Sizes:
    return {
        lane.id: (device.id, lane.bytes, tuple(lane.jobs)) for device in devices for lane in device.lanes.values()
    }


# --- the rules, asserted ------------------------------------------------------------------------------------


def check_ledger(device: Device, jobs: Mapping[JobId, Job]) -> None:
    """Assert the numbered rules; a failure is a bug."""
    if free_bytes(device) < 0:
        raise InternalError(
            f"L1 broken on {device.id}: {promised_bytes(device)} promised + {lanes_bytes(device)} in lanes"
            f" > {device.capacity_bytes}"
        )
    for job_id, count in device.promised.items():
        job = jobs[job_id]
        if count < 0 or job.device != device.id or job.state not in RESIDENT or job.memory.promised_bytes != count:
            raise InternalError(f"L2 broken on {device.id}: {count} promised to {job_id} in state {job.state}")
        if job.state is JobState.PARKED and job.lane is not None:
            raise InternalError(f"L6 broken on {device.id}: parked job {job_id} is in lane {job.lane}")


def check_lanes(device: Device, jobs: dict[JobId, Job]) -> None:
    """Assert N1 to N3; a failure is a bug."""
    seen: set[JobId] = set()
    for lane in device.lanes.values():
        if not lane.jobs:
            raise InternalError(f"N3 broken: lane {lane.id} has no jobs")
        if lane.holder is not None and lane.holder not in lane.jobs:
            raise InternalError(f"N2 broken: lane {lane.id} is held by {lane.holder}, which is not in it")
        for job_id in lane.jobs:
            if job_id in seen or jobs[job_id].lane != lane.id:
                raise InternalError(f"N1 broken: job {job_id} is in {lane.id} and elsewhere")
            seen.add(job_id)
    for job in jobs.values():
        if job.lane is not None and job.device == device.id and job.id not in seen:
            raise InternalError(f"N1 broken: job {job.id} names lane {job.lane} but is not in it")
