"""Ledger and lanes alone: whatever is placed, grown, merged, shrunk and removed, L1 and N1 to N4 hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from carpool.core.kernel.ids import DeviceId, JobId, LaneId
from carpool.core.node.memory import ledger
from carpool.core.node.model import Device, Job, JobSpec, JobState, Memory, Needs
from carpool.core.node.node import covers
from carpool.errors import InternalError

few_bytes = st.integers(0, 60)


class LanesMachine(RuleBasedStateMachine):
    """Does to one device what admission and packing do, in any order."""

    @initialize(capacity=st.integers(1, 200))
    def add_device(self, capacity: int) -> None:
        self.device = Device(id=DeviceId("gpu0"), capacity_bytes=capacity)
        self.jobs: dict[JobId, Job] = {}
        self.made = 0

    def pick(self, index: int) -> Job | None:
        names = sorted(self.jobs)
        return self.jobs[names[index % len(names)]] if names else None

    @rule(resident=few_bytes, ephemeral=few_bytes, lanes_max=st.integers(1, 4))
    def place(self, resident: int, ephemeral: int, lanes_max: int) -> None:
        free = ledger.free_bytes(self.device)
        sizes = [lane.bytes for lane in self.device.lanes.values()]
        fit = ledger.find_fit(self.device, resident_bytes=resident, ephemeral_bytes=ephemeral, lanes_max=lanes_max)
        if fit is None:
            # There really was no place: no lane could be opened, none is large enough, none can be grown.
            growths = [max(0, ephemeral - size) for size in sizes]
            if len(sizes) < lanes_max:
                growths.append(ephemeral)
            assert all(resident + growth > free for growth in growths)
            return
        self.made += 1
        needs = Needs(persistent_bytes=resident, ephemeral_bytes=ephemeral)
        name = JobId(f"job{self.made:03}")
        job = Job(id=name, spec=JobSpec(name=name), arrived_ns=0, state=JobState.WAITING, memory=Memory(needs=needs))
        job.device = self.device.id
        self.jobs[job.id] = job
        ledger.place(self.device, job, fit)
        ledger.promise(self.device, job, resident)
        assert covers(self.device, job)

    @rule(index=st.integers(0, 50))
    def leave(self, index: int) -> None:
        job = self.pick(index)
        if job is not None:
            self.take_away(job)
            del self.jobs[job.id]

    def take_away(self, job: Job) -> None:
        """A holder's turn ends first (N4)."""
        lane = self.device.lanes[job.lane] if job.lane is not None else None
        if lane is not None and lane.holder == job.id:
            with pytest.raises(InternalError, match="N4 broken"):
                ledger.remove(self.device, job)
            lane.holder = None
        ledger.remove(self.device, job)
        ledger.release(self.device, job)

    @rule(index=st.integers(0, 50))
    def hold_or_return(self, index: int) -> None:
        job = self.pick(index)
        if job is not None and job.lane is not None:
            lane = self.device.lanes[job.lane]
            lane.holder = None if lane.holder is not None else job.id

    @rule()
    def shrink(self) -> None:
        before = {lane.id: lane.bytes for lane in self.device.lanes.values()}
        ledger.shrink(self.device, self.jobs)
        for lane in self.device.lanes.values():
            largest = max(self.needs_of(job).ephemeral_bytes for job in lane.jobs)
            assert lane.bytes == min(before[lane.id], largest)

    @rule()
    def merge(self) -> None:
        free, count = ledger.free_bytes(self.device), len(self.device.lanes)
        holders = {lane.holder for lane in self.device.lanes.values()} - {None}
        unheld = any(lane.holder is None for lane in self.device.lanes.values())
        merged = ledger.merge_free(self.device, self.jobs)
        assert merged == (unheld and count > 1)
        assert len(self.device.lanes) == count - merged
        assert ledger.free_bytes(self.device) >= free, "merging never takes bytes"
        assert {lane.holder for lane in self.device.lanes.values()} - {None} == holders

    @rule(resident=few_bytes, ephemeral=few_bytes)
    def merging_keeps_its_word(self, resident: int, ephemeral: int) -> None:
        """If one lane for all is said to fit, then after merging everything there is a place."""
        if not ledger.merging_would_fit(self.device, resident_bytes=resident, ephemeral_bytes=ephemeral):
            return
        while ledger.merge_free(self.device, self.jobs):
            pass
        if len(self.device.lanes) == 1:
            fit = ledger.find_fit(self.device, resident_bytes=resident, ephemeral_bytes=ephemeral, lanes_max=1)
            assert fit is not None

    def needs_of(self, job: JobId) -> Needs:
        needs = self.jobs[job].memory.needs
        assert needs is not None
        return needs

    @invariant()
    def the_rules_hold(self) -> None:
        if not hasattr(self, "device"):
            return
        ledger.check_ledger(self.device, self.jobs)
        ledger.check_lanes(self.device, self.jobs)
        resident = sum(job.memory.promised_bytes for job in self.jobs.values())
        assert resident + sum(lane.bytes for lane in self.device.lanes.values()) <= self.device.capacity_bytes
        for job in self.jobs.values():
            assert job.lane is not None
            assert job.id in self.device.lanes[job.lane].jobs
            assert self.device.lanes[job.lane].bytes >= self.needs_of(job.id).ephemeral_bytes

    def teardown(self) -> None:
        for job in list(getattr(self, "jobs", {}).values()):
            self.take_away(job)
        if hasattr(self, "device"):
            assert not self.device.lanes
            assert ledger.free_bytes(self.device) == self.device.capacity_bytes


@pytest.mark.slow
def test_no_rule_of_the_ledger_or_the_lanes_is_ever_broken() -> None:
    run_state_machine_as_test(LanesMachine, settings=settings(max_examples=120, stateful_step_count=40))


@given(
    capacity=st.integers(1, 100),
    sizes=st.lists(st.integers(0, 40), max_size=4),
    resident=st.integers(0, 40),
    ephemeral=st.integers(0, 40),
    lanes_max=st.integers(1, 4),
)
@settings(max_examples=300)
def test_a_fit_is_the_first_that_works_in_the_order_of_the_paper(
    capacity: int, sizes: list[int], resident: int, ephemeral: int, lanes_max: int
) -> None:
    """Open a lane; else the smallest that is large enough; else grow the one that needs the least."""
    device = Device(id=DeviceId("gpu0"), capacity_bytes=capacity + sum(sizes))
    names = []
    for index, size in enumerate(sizes):
        job = Job(id=JobId(f"j{index}"), spec=JobSpec(name="j"), arrived_ns=0)
        names.append(ledger.place(device, job, ledger.Fit(lane=None, lane_bytes=size)).id)
    left = capacity - resident
    lane_sizes: dict[LaneId, int] = dict(zip(names, sizes, strict=True))
    fit = ledger.find_fit(device, resident_bytes=resident, ephemeral_bytes=ephemeral, lanes_max=lanes_max)
    roomy = [size for size in sizes if size >= ephemeral]
    if left < 0:
        assert fit is None
    elif len(sizes) < lanes_max and ephemeral <= left:
        assert fit == ledger.Fit(lane=None, lane_bytes=ephemeral)
    elif roomy:
        assert fit is not None and fit.lane is not None
        assert lane_sizes[fit.lane] == fit.lane_bytes == min(roomy)
    elif sizes and ephemeral - max(sizes) <= left:
        assert fit is not None and fit.lane is not None
        assert (lane_sizes[fit.lane], fit.lane_bytes) == (max(sizes), ephemeral)
    else:
        assert fit is None
