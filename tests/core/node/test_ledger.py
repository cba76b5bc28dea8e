"""The account of a device's bytes: what L1 to L4 say, and that breaking them is noticed."""

from __future__ import annotations

import pytest

from carpool.core.kernel.ids import DeviceId, JobId, LaneId
from carpool.core.node.memory import ledger
from carpool.core.node.model import Device, Job, JobSpec, JobState, Lane, Memory, Needs
from carpool.core.node.node import covers
from carpool.errors import InternalError
from tests.core.node.driver import needs

LANE = LaneId("gpu0/1")


def device_with(*jobs: Job, capacity_bytes: int = 100, lane_bytes: int = 0) -> Device:
    device = Device(id=DeviceId("gpu0"), capacity_bytes=capacity_bytes)
    device.lanes[LANE] = Lane(id=LANE, bytes=lane_bytes, jobs=[job.id for job in jobs])
    for job in jobs:
        job.device, job.lane = device.id, LANE
    return device


def job_of(name: str, known: Needs | None = None, state: JobState = JobState.WAITING) -> Job:
    return Job(id=JobId(name), spec=JobSpec(name=name), arrived_ns=0, state=state, memory=Memory(needs=known))


def check(device: Device, *jobs: Job) -> None:
    ledger.check_ledger(device, {job.id: job for job in jobs})


def test_free_is_what_is_promised_neither_to_jobs_nor_to_lanes() -> None:
    a, b = job_of("a"), job_of("b")
    device = device_with(a, b, lane_bytes=30)
    ledger.promise(device, a, 20)
    ledger.promise(device, b, 15)
    assert (ledger.promised_bytes(device), ledger.lanes_bytes(device), ledger.free_bytes(device)) == (35, 30, 35)
    ledger.promise(device, a, 5)
    assert ledger.free_bytes(device) == 50, "a promise is set, not added"
    ledger.release(device, b)
    assert (ledger.free_bytes(device), b.memory.promised_bytes) == (65, 0)
    ledger.release(device, b)
    assert ledger.free_bytes(device) == 65, "releasing twice frees nothing twice"


@pytest.mark.parametrize(
    ("promised", "lane_bytes", "is_covered"),
    [(10, 20, True), (9, 20, False), (10, 19, False), (30, 0, True), (29, 0, False), (29, 20, True)],
)
def test_a_job_is_covered_by_its_promise_and_its_lane_or_by_one_sum(
    promised: int, lane_bytes: int, is_covered: bool
) -> None:
    job = job_of("a", needs(8, 20, 2))
    device = device_with(job, lane_bytes=lane_bytes)
    ledger.promise(device, job, promised)
    assert covers(device, job) is is_covered


def test_l4_a_job_nobody_measured_is_covered_by_whatever_it_was_promised() -> None:
    job = job_of("a")
    assert covers(device_with(job), job)


def test_a_job_without_a_lane_is_covered_only_by_one_sum() -> None:
    job = job_of("a", needs(10, 20))
    device = device_with(job, lane_bytes=50)
    job.lane = None
    ledger.promise(device, job, 10)
    assert not covers(device, job)
    ledger.promise(device, job, 30)
    assert covers(device, job)


def test_l1_broken_is_noticed() -> None:
    job = job_of("a")
    device = device_with(job, lane_bytes=41)
    ledger.promise(device, job, 59)
    check(device, job)
    ledger.promise(device, job, 60)
    with pytest.raises(InternalError, match="L1 broken on gpu0: 60 promised \\+ 41 in lanes > 100"):
        check(device, job)


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.FINISHED])
def test_l2_a_promise_to_a_job_that_is_not_resident_is_noticed(state: JobState) -> None:
    job = job_of("a", state=state)
    device = device_with(job)
    ledger.promise(device, job, 1)
    with pytest.raises(InternalError, match="L2 broken"):
        check(device, job)


def test_l2_a_negative_promise_is_noticed() -> None:
    job = job_of("a")
    device = device_with(job)
    ledger.promise(device, job, -1)
    with pytest.raises(InternalError, match="L2 broken"):
        check(device, job)


def test_l2_a_promise_that_the_job_knows_nothing_of_is_noticed() -> None:
    job = job_of("a")
    device = device_with(job)
    device.promised[job.id] = 7
    with pytest.raises(InternalError, match="L2 broken"):
        check(device, job)


def test_l2_a_promise_to_a_job_of_another_device_is_noticed() -> None:
    job = job_of("a")
    device = device_with(job)
    ledger.promise(device, job, 1)
    job.device = DeviceId("gpu1")
    with pytest.raises(InternalError, match="L2 broken"):
        check(device, job)
