"""The lanes of a device: open, best fit, grow, shrink, merge, move, close.

Between two turns the ephemeral part of a lane is empty, so at a boundary a lane can change size, take in
another lane's jobs or be closed without copying a byte.

Rules
  N1  A resident managed job is in exactly one lane of its device, an unmanaged or ended job in none.
  N2  A lane has at most one holder, and the holder is one of its jobs.
  N3  A lane with no jobs does not exist.
  N4  Only a job that holds nothing is moved to another lane.

Placing a job of ephemeral need E, in this order (the order of the Salus paper, with merging added):
open a lane of E bytes if the policy allows one more and it fits; else the smallest lane that is large enough;
else grow the lane that needs the least; else merge free lanes until one of the former fits; else there is no room.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from carpool.core.kernel.ids import DeviceId, JobId, LaneId
from carpool.core.node.effects import Effect, ResizeLane
from carpool.core.node.memory.ledger import free_bytes, promised_bytes
from carpool.core.node.model import Device, Job, JobState, Lane
from carpool.errors import InternalError

Sizes = dict[LaneId, tuple[DeviceId, int, tuple[JobId, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Where a job would go: an existing lane (grown to `lane_bytes`) or, with no lane, a new one."""

    lane: LaneId | None
    lane_bytes: int


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
    return lane


def remove(device: Device, job: Job) -> None:
    """Take a job out of its lane; close the lane when it was the last (N3)."""
    lane = device.lanes.get(job.lane) if job.lane is not None else None
    job.lane = None
    if lane is None:
        return
    lane.jobs.remove(job.id)
    if lane.holder == job.id:
        lane.holder = None
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


def merge(device: Device, jobs: dict[JobId, Job], *, keep: LaneId, close: LaneId) -> None:
    """Move every job of a lane that nobody holds into another lane."""
    closing, kept = device.lanes[close], device.lanes[keep]
    if closing.holder is not None:
        raise InternalError(f"N4 broken: lane {close} is merged while {closing.holder} holds it")
    kept.bytes = max(kept.bytes, closing.bytes)
    for job_id in closing.jobs:
        jobs[job_id].lane = keep
        kept.jobs.append(job_id)
    del device.lanes[close]


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


def changes(before: Sizes, after: Sizes) -> list[Effect]:
    """What to tell a driver of lanes that were closed, opened or resized meanwhile."""
    gone = [(lane, (facts[0], 0, ())) for lane, facts in before.items() if lane not in after]
    changed = [(lane, facts) for lane, facts in after.items() if before.get(lane) != facts]
    return [
        ResizeLane(device=device, lane=lane, lane_bytes=size, jobs=jobs)
        for lane, (device, size, jobs) in [*gone, *changed]
    ]


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
