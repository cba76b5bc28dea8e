"""The lanes of a device: open, best fit, grow, shrink, merge, close (N1 to N4)."""

from __future__ import annotations

import pytest

from carpool.core.kernel.ids import DeviceId, JobId, LaneId
from carpool.core.node.effects import ResizeLane, StartJob
from carpool.core.node.memory import ledger
from carpool.core.node.memory.ledger import Fit
from carpool.core.node.model import Device, Job, JobSpec, JobState, Needs
from carpool.errors import InternalError
from carpool.units import GIB
from tests.core.node.driver import CoreDriver, MakeCore, needs, only


class Rack:
    """A device with measured jobs in given lanes, outside any scheduler."""

    def __init__(self, capacity_bytes: int, *lane_jobs: dict[str, tuple[int, int]]) -> None:
        self.device = Device(id=DeviceId("gpu0"), capacity_bytes=capacity_bytes)
        self.jobs: dict[JobId, Job] = {}
        for members in lane_jobs:
            lane: LaneId | None = None
            for name, (resident, ephemeral) in members.items():
                job = self.add(name, needs(resident, ephemeral))
                lane = ledger.place(self.device, job, Fit(lane=lane, lane_bytes=ephemeral)).id
                ledger.promise(self.device, job, resident)

    def add(self, name: str, known: Needs | None) -> Job:
        job = Job(
            id=JobId(name), spec=JobSpec(name=name), arrived_ns=0, state=JobState.WAITING, device=self.device.id
        )
        job.memory.needs = known
        self.jobs[job.id] = job
        return job

    def hold(self, name: str) -> None:
        job = self.jobs[JobId(name)]
        assert job.lane is not None
        self.device.lanes[job.lane].holder = job.id

    def fit(self, resident: int, ephemeral: int, lanes_max: int = 4) -> Fit | None:
        return ledger.find_fit(self.device, resident_bytes=resident, ephemeral_bytes=ephemeral, lanes_max=lanes_max)

    def sizes(self) -> dict[str, int]:
        return {str(lane.id): lane.bytes for lane in self.device.lanes.values()}

    def members(self) -> list[list[str]]:
        return [[str(job) for job in lane.jobs] for lane in self.device.lanes.values()]

    def check(self) -> None:
        ledger.check_lanes(self.device, self.jobs)
        ledger.check_ledger(self.device, self.jobs)


# --- finding a place -----------------------------------------------------------------------------------------


def test_a_lane_is_opened_while_the_policy_allows_one_more_and_it_fits() -> None:
    rack = Rack(100, {"a": (10, 30)})
    assert rack.fit(10, 50) == Fit(lane=None, lane_bytes=50)
    assert rack.fit(10, 20, lanes_max=1) == Fit(lane=LaneId("gpu0/1"), lane_bytes=30)


def test_else_the_smallest_lane_that_is_large_enough_is_shared() -> None:
    rack = Rack(100, {"a": (5, 40)}, {"b": (5, 20)}, {"c": (5, 15)})
    assert rack.fit(5, 16) == Fit(lane=LaneId("gpu0/2"), lane_bytes=20)
    assert rack.fit(5, 15) == Fit(lane=LaneId("gpu0/3"), lane_bytes=15)
    assert rack.fit(5, 30) == Fit(lane=LaneId("gpu0/1"), lane_bytes=40)


def test_of_equal_lanes_the_one_with_fewer_jobs_is_shared() -> None:
    rack = Rack(60, {"a": (5, 20), "b": (5, 20)}, {"c": (5, 20)})
    assert rack.fit(5, 20) == Fit(lane=LaneId("gpu0/2"), lane_bytes=20)


def test_else_the_lane_that_needs_the_least_is_grown() -> None:
    rack = Rack(100, {"a": (5, 40)}, {"b": (5, 30)})
    assert rack.fit(5, 50, lanes_max=2) == Fit(lane=LaneId("gpu0/1"), lane_bytes=50)


def test_else_there_is_no_room() -> None:
    rack = Rack(100, {"a": (5, 40)}, {"b": (5, 30)})
    assert rack.fit(5, 56, lanes_max=2) is None
    assert rack.fit(21, 1, lanes_max=2) is None
    assert rack.fit(20, 40, lanes_max=2) is not None


def test_finding_a_place_changes_nothing() -> None:
    rack = Rack(100, {"a": (5, 40)}, {"b": (5, 30)})
    before = (rack.sizes(), rack.members(), ledger.free_bytes(rack.device))
    for resident in range(0, 40, 5):
        for ephemeral in range(0, 80, 5):
            rack.fit(resident, ephemeral)
    assert (rack.sizes(), rack.members(), ledger.free_bytes(rack.device)) == before


def test_a_job_placed_into_a_lane_grows_it_but_never_makes_it_smaller() -> None:
    rack = Rack(100, {"a": (5, 40)})
    lane = LaneId("gpu0/1")
    ledger.place(rack.device, rack.add("b", needs(5, 10)), Fit(lane=lane, lane_bytes=10))
    assert rack.sizes() == {lane: 40}
    ledger.place(rack.device, rack.add("c", needs(5, 60)), Fit(lane=lane, lane_bytes=60))
    assert rack.sizes() == {lane: 60}
    rack.check()


# --- leaving, shrinking, merging ---------------------------------------------------------------------------


def test_a_lane_closes_with_its_last_job_and_its_name_is_not_used_again() -> None:
    rack = Rack(100, {"a": (5, 40), "b": (5, 40)})
    rack.hold("a")
    with pytest.raises(InternalError, match="N4 broken: a leaves lane gpu0/1 while it holds it"):
        ledger.remove(rack.device, rack.jobs[JobId("a")])
    rack.device.lanes[LaneId("gpu0/1")].holder = None
    ledger.remove(rack.device, rack.jobs[JobId("a")])
    assert rack.members() == [["b"]]
    assert rack.device.lanes[LaneId("gpu0/1")].holder is None
    ledger.remove(rack.device, rack.jobs[JobId("b")])
    assert rack.members() == []
    ledger.remove(rack.device, rack.jobs[JobId("b")])
    ledger.place(rack.device, rack.jobs[JobId("b")], Fit(lane=None, lane_bytes=1))
    assert list(rack.sizes()) == ["gpu0/2"]


def test_l3_a_lane_shrinks_to_the_largest_need_of_its_jobs_and_not_below() -> None:
    rack = Rack(100, {"a": (5, 40), "b": (5, 20)})
    ledger.remove(rack.device, rack.jobs[JobId("a")])
    ledger.shrink(rack.device, rack.jobs)
    assert rack.sizes() == {"gpu0/1": 20}
    rack.jobs[JobId("b")].memory.needs = needs(5, 90)
    ledger.shrink(rack.device, rack.jobs)
    assert rack.sizes() == {"gpu0/1": 20}, "shrinking never grows a lane"


def test_a_lane_of_jobs_nobody_measured_has_no_bytes_of_its_own() -> None:
    rack = Rack(100, {"a": (5, 40)})
    rack.jobs[JobId("a")].memory.needs = None
    ledger.shrink(rack.device, rack.jobs)
    assert rack.sizes() == {"gpu0/1": 0}


def test_merging_frees_the_smaller_lane_and_keeps_every_job() -> None:
    rack = Rack(100, {"a": (5, 40)}, {"b": (5, 30), "c": (5, 10)})
    free_before = ledger.free_bytes(rack.device)
    ledger.merge(rack.device, rack.jobs, keep=LaneId("gpu0/1"), close=LaneId("gpu0/2"))
    assert rack.members() == [["a", "b", "c"]]
    assert ledger.free_bytes(rack.device) == free_before + 30
    rack.check()


def test_a_larger_lane_merged_into_a_smaller_one_makes_it_larger() -> None:
    rack = Rack(100, {"a": (5, 40)}, {"b": (5, 30)})
    ledger.merge(rack.device, rack.jobs, keep=LaneId("gpu0/2"), close=LaneId("gpu0/1"))
    assert rack.sizes() == {"gpu0/2": 40}
    rack.check()


def test_n4_a_lane_that_is_held_is_not_merged_away() -> None:
    rack = Rack(100, {"a": (5, 40)}, {"b": (5, 30)})
    rack.hold("b")
    with pytest.raises(InternalError, match="N4 broken"):
        ledger.merge(rack.device, rack.jobs, keep=LaneId("gpu0/1"), close=LaneId("gpu0/2"))
    ledger.merge(rack.device, rack.jobs, keep=LaneId("gpu0/2"), close=LaneId("gpu0/1"))
    assert rack.device.lanes[LaneId("gpu0/2")].holder == "b"


def test_merging_a_free_lane_takes_the_smallest_into_the_largest() -> None:
    rack = Rack(100, {"a": (5, 40)}, {"b": (5, 30)}, {"c": (5, 10)})
    rack.hold("a")
    assert ledger.merge_free(rack.device, rack.jobs)
    assert rack.members() == [["a", "c"], ["b"]]
    assert ledger.merge_free(rack.device, rack.jobs)
    assert rack.members() == [["a", "c", "b"]]
    assert not ledger.merge_free(rack.device, rack.jobs)


def test_nothing_is_merged_while_every_lane_is_held() -> None:
    rack = Rack(100, {"a": (5, 40)}, {"b": (5, 30)})
    rack.hold("a")
    rack.hold("b")
    assert not ledger.merge_free(rack.device, rack.jobs)


@pytest.mark.parametrize(("resident", "ephemeral", "is_enough"), [(50, 0, True), (50, 40, True), (51, 0, False)])
def test_whether_one_lane_for_all_would_leave_room(resident: int, ephemeral: int, is_enough: bool) -> None:
    rack = Rack(100, {"a": (5, 40)}, {"b": (5, 30)})
    assert is_enough is ledger.merging_would_fit(rack.device, resident_bytes=resident, ephemeral_bytes=ephemeral)


def test_one_lane_cannot_be_merged() -> None:
    rack = Rack(100, {"a": (5, 40)})
    assert not ledger.merging_would_fit(rack.device, resident_bytes=0, ephemeral_bytes=0)


# --- broken rules are noticed --------------------------------------------------------------------------------


def test_n1_a_job_in_two_lanes_is_noticed() -> None:
    rack = Rack(100, {"a": (5, 40)}, {"b": (5, 30)})
    rack.device.lanes[LaneId("gpu0/2")].jobs.append(JobId("a"))
    with pytest.raises(InternalError, match="N1 broken"):
        rack.check()


def test_n1_a_job_that_names_a_lane_it_is_not_in_is_noticed() -> None:
    rack = Rack(100, {"a": (5, 40), "b": (5, 30)})
    rack.device.lanes[LaneId("gpu0/1")].jobs.remove(JobId("b"))
    with pytest.raises(InternalError, match="N1 broken"):
        rack.check()


def test_n2_a_holder_outside_its_lane_is_noticed() -> None:
    rack = Rack(100, {"a": (5, 40)}, {"b": (5, 30)})
    rack.device.lanes[LaneId("gpu0/1")].holder = JobId("b")
    with pytest.raises(InternalError, match="N2 broken"):
        rack.check()


def test_n3_an_empty_lane_is_noticed() -> None:
    rack = Rack(100, {"a": (5, 40)})
    rack.device.lanes[LaneId("gpu0/1")].jobs.clear()
    with pytest.raises(InternalError, match="N3 broken"):
        rack.check()


# --- seen through the scheduler ------------------------------------------------------------------------------


def told(core: CoreDriver) -> dict[str, tuple[int, set[str]]]:
    """What a driver knows of the lanes from the effects alone."""
    known: dict[str, tuple[int, set[str]]] = {}
    for effect in only(core.effects, ResizeLane):
        known[effect.lane] = (effect.lane_bytes, {str(job) for job in effect.jobs})
    return {lane: facts for lane, facts in known.items() if facts[1]}


def seen(core: CoreDriver) -> dict[str, tuple[int, set[str]]]:
    return {str(lane.id): (lane.bytes, {str(job) for job in lane.jobs}) for lane in core.device().lanes}


@pytest.mark.parametrize("policy", ["fair", "pack"])
def test_the_effects_tell_a_driver_every_change_of_a_lane(make_core: MakeCore, policy: str) -> None:
    core = make_core(policy)
    core.settle_in("a", needs(2 * GIB, 4 * GIB))
    core.submit("b", cap_bytes=4 * GIB)
    assert told(core) == seen(core)
    core.ask("b")
    core.give_back("a")
    core.measure("b", needs(GIB, 6 * GIB))
    assert told(core) == seen(core)
    core.detach("a")
    assert told(core) == seen(core)
    core.exit("b")
    assert told(core) == seen(core)
    core.exit("a")
    assert told(core) == seen(core) == {}


def test_in_one_lane_the_largest_scratch_counts_once(core: CoreDriver) -> None:
    for job in "abcd":
        core.submit_known(job, needs(2 * GIB, 8 * GIB))
    assert core.lanes() == [{"a", "b", "c", "d"}]
    assert core.device().free_bytes == 0, "4 x 2 GiB and one lane of 8 GiB"


def test_a_lane_grows_for_a_larger_job_and_shrinks_when_it_leaves(core: CoreDriver) -> None:
    core.submit_known("a", needs(GIB, 2 * GIB))
    core.submit_known("b", needs(GIB, 6 * GIB))
    assert core.lane_of("a").bytes == 6 * GIB
    core.exit("b")
    assert core.lane_of("a").bytes == 2 * GIB


def test_lanes_are_merged_at_a_boundary_to_let_a_job_in(make_core: MakeCore) -> None:
    core = make_core("pack")
    core.settle_in("a", needs(GIB, 5 * GIB))
    core.settle_in("b", needs(GIB, 5 * GIB))
    assert core.lanes() == [{"a"}, {"b"}]
    effects = core.submit("c", cap_bytes=8 * GIB)
    assert core.state("c") is JobState.QUEUED, "both lanes are held"
    assert core.recalled == ["b"], "the younger holder is asked for its turn"
    assert not only(effects, StartJob)
    assert only(core.give_back("b"), StartJob) == [StartJob(job=JobId("c"), device=DeviceId("gpu0"))]
    assert {"a", "b"} in core.lanes()


def test_lanes_are_merged_for_a_known_job_by_its_own_split_of_bytes(make_core: MakeCore) -> None:
    """It brings scratch that fits into the merged lane, so only its persistent bytes have to be found."""
    core = make_core("pack")
    core.settle_in("a", needs(2 * GIB, 4 * GIB))
    core.settle_in("b", needs(2 * GIB, 4 * GIB))
    core.submit_known("c", needs(7 * GIB, 4 * GIB))
    assert core.recalled == ["b"]
    assert only(core.give_back("b"), StartJob)


def test_three_lanes_are_merged_one_boundary_after_the_other(make_core: MakeCore) -> None:
    """Jobs whose lane was merged are not spread again before the waiting job is in."""
    core = make_core("pack")
    for job in "abc":
        core.settle_in(job, needs(GIB, 4 * GIB))
    assert len(core.lanes()) == 3
    core.submit("large", cap_bytes=9 * GIB)
    for _ in range(3):
        if core.state("large") is JobState.QUEUED:
            core.wait(1)
            core.give_back(core.recalled[0])
    assert core.state("large") is JobState.STARTING
    assert {"a", "b", "c"} in core.lanes()


def test_lanes_are_merged_to_cover_a_job_that_outgrew_its_lane(make_core: MakeCore) -> None:
    core = make_core("pack")
    core.settle_in("a", needs(2 * GIB, 6 * GIB))
    core.settle_in("b", needs(2 * GIB, 6 * GIB))
    assert core.lanes() == [{"a"}, {"b"}]
    core.measure("b", needs(2 * GIB, 8 * GIB))
    core.give_back("b")
    assert core.lanes() == [{"a", "b"}]
    assert core.lane_of("b").bytes == 8 * GIB
    core.wait(10**9)
    core.give_back("a")
    assert core.holders() == ["b"]


def test_an_outgrown_job_moves_to_a_lane_that_is_large_enough(make_core: MakeCore) -> None:
    core = make_core("pack")
    core.settle_in("a", needs(GIB, 9 * GIB))
    core.settle_in("b", needs(GIB, 4 * GIB))
    core.measure("b", needs(GIB, 6 * GIB))
    core.give_back("b")
    assert core.lanes() == [{"a", "b"}]
