"""The account of every byte promised on a device.

Two kinds of bytes are promised: to a job, for what stays between its turns (its persistent bytes and the
framework's overhead), and to a lane, for what its jobs use inside a turn, one at a time.

Rules
  L1  Σ promised to jobs + Σ kept for jobs on their way to another device + Σ lanes ≤ capacity. A promise that would
      break L1 is not made; the job waits.
  L2  Every promise is at least zero and belongs to a resident job of this device.
  L3  A lane is at least as large as the largest measured ephemeral need of the jobs whose needs are covered.
  L4  A job whose needs are not known yet is promised one sum that has to cover both kinds together.
  L5  Σ parked bytes ≤ host budget. A job is told to park only after its bytes were reserved on the host.
  L6  No job is both parked and counted: a parked job has no lane, and is promised only what it reported to have
      stayed on the device; all of it is promised again before the job is told to come back.

What is deliberately not here: whether a job uses what it was promised (the page and the meter know), and who
gets a turn. A job measured to need more than its promise is *uncovered*: it keeps what it was promised, gets no
turn, and is promised more as soon as L1 allows (admission.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from carpool.core.kernel.ids import JobId
from carpool.core.node.model import BLOCKED, RESIDENT, Device, Job, JobState
from carpool.errors import InternalError


def promised_bytes(device: Device) -> int:
    return sum(device.promised.values()) + sum(device.kept.values())


def lanes_bytes(device: Device) -> int:
    return sum(lane.bytes for lane in device.lanes.values())


def free_bytes(device: Device) -> int:
    return device.capacity_bytes - promised_bytes(device) - lanes_bytes(device)


def promise(device: Device, job: Job, count: int) -> None:
    """Set the job's promise on this device; the caller has made sure that L1 allows it."""
    device.promised[job.id] = count
    job.memory.promised_bytes = count


def release(device: Device, job: Job) -> None:
    device.promised.pop(job.id, None)
    job.memory.promised_bytes = 0


def keep(device: Device, job: Job, count: int) -> None:
    """Keep room for a job that leaves for another device, until it has arrived there (V2)."""
    device.kept[job.id] = count


def unkeep(device: Device, job: Job) -> None:
    device.kept.pop(job.id, None)


def covers(device: Device, job: Job) -> bool:
    """Whether the promises made to the job and its lane hold what it was measured to need, or waits for (W1)."""
    if job.state is BLOCKED:
        return job.memory.promised_bytes >= job.memory.live_bytes + job.memory.pending_bytes
    needs = job.memory.needs
    if needs is None:
        return True
    beyond = job.memory.promised_bytes - needs.persistent_bytes - needs.overhead_bytes
    if beyond < 0:
        return False
    lane = device.lanes.get(job.lane) if job.lane is not None else None
    scratch = needs.ephemeral_bytes
    return beyond >= scratch or (lane is not None and lane.bytes >= scratch)


def was_given(job: Job) -> bool:
    """Whether it is promised more than it keeps between its turns: what it waited for in this one (W2)."""
    return job.memory.needs is not None and job.memory.promised_bytes > job.memory.needs.resident_bytes


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
    for lane in device.lanes.values():
        for job_id in lane.jobs:
            job = jobs[job_id]
            covered = job.memory.needs is not None and job.state is not JobState.BLOCKED and covers(device, job)
            unsplit = job.memory.needs is not None and job.memory.promised_bytes >= job.memory.needs.total_bytes
            if (
                covered
                and not unsplit
                and job.memory.needs is not None
                and job.memory.needs.ephemeral_bytes > lane.bytes
            ):
                raise InternalError(f"L3 broken on {lane.id}: {lane.bytes} bytes, {job_id} needs more")
