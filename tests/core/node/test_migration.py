"""A job goes on on another device: what is booked where meanwhile, and every way in which it can fail."""

from __future__ import annotations

import pytest

from carpool.core.node.effects import Effect, GrantLease, MoveJob, ParkJob, RejectEvent, UnparkJob
from carpool.core.node.model import JobState
from carpool.core.node.settings import Settings
from carpool.units import GIB, SECOND
from tests.core.node.driver import CoreDriver, MakeCore, needs, only

BIG = needs(10 * GIB, 2 * GIB, overhead_bytes=GIB)
SMALL = needs(GIB, GIB)


@pytest.fixture
def two(make_core: MakeCore) -> CoreDriver:
    """Job a runs on gpu0; gpu1 is empty."""
    core = make_core(devices=2)
    core.settle_in("a", BIG)
    assert core.job("a").device == "gpu0"
    return core


def under_way(core: CoreDriver) -> list[Effect]:
    """Asked to move, at its boundary, its bytes on the host."""
    core.migrate("a", "gpu1")
    core.give_back("a")
    return core.parked("a", 10 * GIB, GIB)


def free(core: CoreDriver) -> tuple[int, int]:
    return core.device("gpu0").free_bytes // GIB, core.device("gpu1").free_bytes // GIB


def test_it_is_parked_on_the_source_booked_on_the_target_and_unparked_there(two: CoreDriver) -> None:
    assert only(two.migrate("a", "gpu1"), ParkJob) == [], "a holder is asked for its turn first"
    assert two.recalled == ["a"]
    assert (
        two.reason("a") == "has had the device for 0 ns; its turn is recalled; it moves to gpu1 at its next boundary"
    )
    [order] = only(two.give_back("a"), ParkJob)
    assert order.reason == "a moves to gpu1"
    assert two.reason("a").endswith("on its way to gpu1: a moves to gpu1")
    effects = two.parked("a", 10 * GIB, GIB)
    assert [order.job for order in only(effects, UnparkJob)] == ["a"]
    assert only(effects, MoveJob) == [], "not before it has arrived"
    job = two.job("a")
    assert (job.device, job.kept_on, job.kept_bytes) == ("gpu1", "gpu0", 13 * GIB)
    assert free(two) == (3, 3), "V2: both sides are booked"
    assert job.reason.endswith("to gpu1 where it comes from gpu0")
    effects = two.unparked("a")
    assert [(moved.source, moved.device) for moved in only(effects, MoveJob)] == [("gpu0", "gpu1")]
    assert [grant.job for grant in only(effects, GrantLease)] == ["a"]
    assert free(two) == (16, 3)
    assert two.job("a").moving_to is None


def test_what_does_not_fit_or_makes_no_sense_is_refused_with_the_numbers(two: CoreDriver) -> None:
    two.settle_in("b", BIG)
    assert two.job("b").device == "gpu1"
    before = two.job("a")
    for device, reason in (
        ("gpu1", "it needs 13.0 GiB and 3.00 GiB of 16.0 GiB is unpromised on gpu1"),
        ("gpu9", "there is no such device; there are gpu0, gpu1"),
        ("gpu0", "job a is on gpu0 already"),
    ):
        [rejection] = two.migrate("a", device)
        assert isinstance(rejection, RejectEvent)
        assert reason in rejection.reason
    assert two.job("a") == before


def test_a_job_nobody_measured_is_not_moved(make_core: MakeCore) -> None:
    core = make_core(devices=2)
    core.submit("a")
    core.ask("a")
    [rejection] = core.migrate("a", "gpu1")
    assert isinstance(rejection, RejectEvent)
    assert "nobody knows what it needs" in rejection.reason


def test_a_target_that_filled_up_meanwhile_sends_it_back_to_where_it_was(two: CoreDriver) -> None:
    two.migrate("a", "gpu1")
    two.give_back("a")
    two.settle_in("b", BIG)
    effects = two.parked("a", 10 * GIB, GIB)
    assert [order.job for order in only(effects, UnparkJob)] == ["a"]
    assert (two.job("a").device, two.job("a").moving_to) == ("gpu0", None)
    effects = two.unparked("a")
    assert only(effects, MoveJob) == []
    assert "a" in two.holders()
    assert "it was not moved: job a does not fit on gpu1: it needs 13.0 GiB" in two.reason("a")


def test_a_copy_that_fails_on_the_target_brings_it_back_although_others_wanted_its_room(two: CoreDriver) -> None:
    under_way(two)
    two.submit_known("b", BIG)
    assert two.state("b") is JobState.QUEUED, "its room is kept"
    effects = two.move_failed("a", "cannot allocate")
    assert [order.job for order in only(effects, UnparkJob)] == ["a"]
    assert (two.job("a").device, two.job("a").promised_bytes) == ("gpu0", 11 * GIB)
    assert two.job("b").device == "gpu1"
    two.unparked("a")
    assert two.holders() == ["a"]
    assert two.job("a").move_refused == "cannot allocate"


def test_a_job_that_cannot_leave_runs_on(two: CoreDriver) -> None:
    two.migrate("a", "gpu1")
    two.give_back("a")
    effects = two.move_failed("a", "no space left on device")
    assert [grant.job for grant in only(effects, GrantLease)] == ["a"]
    assert two.reason("a").endswith("it was not moved: no space left on device")
    two.run(20 * SECOND)
    assert two.job("a").device == "gpu0", "it is not tried again"


def test_a_full_host_leaves_it_running(make_core: MakeCore) -> None:
    core = make_core(devices=2, settings=Settings(margin_percent=0, host_bytes_max=GIB))
    core.settle_in("a", BIG)
    core.migrate("a", "gpu1")
    core.give_back("a")
    assert core.holders() == ["a"]
    assert "11.0 GiB would have to move to the host" in core.job("a").move_refused


@pytest.mark.parametrize("moment", ["asked", "parking", "unparking"])
def test_a_job_that_dies_on_its_way_leaves_nothing_on_either_side(two: CoreDriver, moment: str) -> None:
    two.migrate("a", "gpu1")
    if moment != "asked":
        two.give_back("a")
    if moment == "unparking":
        two.parked("a", 10 * GIB, GIB)
    two.exit("a", -9)
    assert free(two) == (16, 16)
    assert two.scheduler.next_wakeup() is None


def test_v5_a_suspended_job_moves_with_what_stayed_of_it_and_comes_back_there(two: CoreDriver) -> None:
    two.suspend("a")
    two.give_back("a")
    two.parked("a", 10 * GIB, GIB)
    effects = two.migrate("a", "gpu1")
    assert [moved.device for moved in only(effects, MoveJob)] == ["gpu1"]
    assert two.state("a") is JobState.PARKED
    assert free(two) == (16, 15)
    two.resume("a")
    two.unparked("a")
    assert (two.holders(), two.job("a").device) == (["a"], "gpu1")


def test_an_interrupted_job_that_took_its_bytes_back_on_the_target_has_arrived(two: CoreDriver) -> None:
    under_way(two)
    effects = two.give_back("a", wants_more=False)
    assert [moved.device for moved in only(effects, MoveJob)] == ["gpu1"]
    assert free(two) == (16, 3)


def test_v4_a_job_that_had_much_on_the_source_does_not_starve_on_the_target(make_core: MakeCore) -> None:
    core = make_core(devices=2)
    core.settle_in("a", SMALL)
    core.run(20 * SECOND)
    core.settle_in("b", SMALL)
    assert core.job("b").device == "gpu1"
    core.migrate("a", "gpu1")
    core.give_back("a")
    core.parked("a", GIB)
    core.unparked("a")
    core.run(2 * SECOND)
    assert core.served_ns("a") - 20 * SECOND >= SECOND // 2


def test_v2_nobody_is_parked_for_room_that_is_kept_for_a_job_on_its_way(make_core: MakeCore) -> None:
    core = make_core("priority", devices=2)
    core.settle_in("a", needs(5 * GIB, GIB), device="gpu0")
    core.settle_in("c", needs(6 * GIB, GIB), device="gpu0")
    core.migrate("a", "gpu1")
    core.give_back("a")
    core.parked("a", 5 * GIB)
    core.submit_known("b", needs(11 * GIB, GIB), device="gpu0", priority=9)
    assert core.device("gpu0").claimant is core.job("c").leaving_for is None, "6 of the 16 GiB are kept"
    core.unparked("a")
    assert core.job("c").leaving_for == "b"


@pytest.fixture
def claimed(make_core: MakeCore) -> CoreDriver:
    """a runs on gpu0; on gpu1 c and d leave 4 GiB, and c would leave for b, if b were there."""
    core = make_core("priority", devices=2)
    core.settle_in("a", needs(2 * GIB, GIB), device="gpu0")
    core.settle_in("c", needs(8 * GIB, GIB), device="gpu1")
    core.settle_in("d", needs(3 * GIB, GIB), device="gpu1")
    return core


def claim(core: CoreDriver) -> None:
    core.submit_known("b", needs(12 * GIB, GIB), device="gpu1", priority=9)
    assert (core.device("gpu1").claimant, core.job("c").leaving_for) == ("b", "b")


def test_r3_nobody_moves_to_where_room_is_being_made_for_another(claimed: CoreDriver) -> None:
    claim(claimed)
    [rejection] = claimed.migrate("a", "gpu1")
    assert isinstance(rejection, RejectEvent)
    assert rejection.reason == (
        "job a cannot move to gpu1 now: others are being parked there so that b has room; try again when it has"
    )
    claimed.give_back("c")
    claimed.parked("c", 8 * GIB)
    assert claimed.state("b") is JobState.STARTING


def test_r3_a_job_on_its_way_to_where_room_is_made_for_another_goes_back(claimed: CoreDriver) -> None:
    claimed.migrate("a", "gpu1")
    claimed.give_back("a")
    claim(claimed)
    claimed.parked("a", 2 * GIB)
    assert (claimed.job("a").device, claimed.state("a")) == ("gpu0", JobState.UNPARKING)
    assert "so that b has room" in claimed.job("a").move_refused
