"""Suspended and resumed: who leaves, what is promised meanwhile, and what becomes of a move that fails."""

from __future__ import annotations

import pytest

from carpool.core.kernel.ids import JobId
from carpool.core.node.effects import GrantLease, ParkJob, RejectEvent, StartJob, UnparkJob
from carpool.core.node.model import JobState
from carpool.core.node.moves import departures
from carpool.core.node.settings import Settings
from carpool.errors import InternalError
from carpool.units import GIB, MS, SECOND
from tests.core.node.driver import CoreDriver, MakeCore, needs, only

BIG = needs(10 * GIB, 2 * GIB, overhead_bytes=GIB)
SMALL = needs(GIB, GIB)


def suspended(core: CoreDriver, job: str = "a") -> None:
    """A job that ran alone, was suspended and is parked but for 1 GiB."""
    core.settle_in(job, BIG)
    core.suspend(job)
    core.give_back(job)
    core.parked(job, 10 * GIB, GIB)
    assert core.state(job) is JobState.PARKED


def test_a_running_job_is_recalled_first_and_told_to_park_at_its_boundary(core: CoreDriver) -> None:
    core.settle_in("a", BIG)
    assert only(core.suspend("a"), ParkJob) == []
    assert core.recalled == ["a"]
    [order] = only(core.give_back("a"), ParkJob)
    assert (order.job, order.limit_bytes, order.reason) == ("a", 11 * GIB, "a was suspended")
    assert core.state("a") is JobState.PARKING
    assert core.job("a").promised_bytes == 11 * GIB, "L6: still counted on the device"


def test_p2_the_bytes_leave_the_promise_with_the_report_and_others_get_them(core: CoreDriver) -> None:
    core.settle_in("a", BIG)
    core.submit_known("b", BIG)
    assert core.state("b") is JobState.QUEUED
    core.suspend("a")
    assert only(core.give_back("a"), StartJob) == []
    effects = core.parked("a", 10 * GIB, GIB)
    assert [start.job for start in only(effects, StartJob)] == ["b"]
    assert (core.job("a").promised_bytes, core.job("a").lane) == (GIB, None)
    assert core.reason("a") == (
        "suspended for 0 ns: 10.0 GiB is on the host, 1.00 GiB stays on gpu0; go on with: carpool resume a"
    )


def test_suspending_twice_does_not_begin_the_suspension_again(core: CoreDriver) -> None:
    suspended(core)
    core.run(28 * SECOND)
    core.suspend("a")
    assert core.reason("a").startswith("suspended for 28.0 s: ")
    core.resume("a")
    core.unparked("a")
    core.run(SECOND)
    core.suspend("a")
    core.give_back("a")
    core.parked("a", 10 * GIB, GIB)
    assert core.reason("a").startswith("suspended for 0 ns: ")


def test_a_suspended_job_never_comes_back_by_itself_and_a_resumed_one_as_soon_as_it_fits(core: CoreDriver) -> None:
    suspended(core)
    core.settle_in("b", BIG)
    core.run(SECOND)
    assert only(core.resume("a"), UnparkJob) == []
    assert "it needs 13.0 GiB to come back and 2.00 GiB of 16.0 GiB is unpromised" in core.reason("a")
    assert [order.job for order in only(core.exit("b"), UnparkJob)] == ["a"]
    assert core.job("a").promised_bytes == 11 * GIB, "L6: promised before it is told"
    [grant] = only(core.unparked("a"), GrantLease)
    assert grant.job == "a"
    assert core.job("a").parked_bytes == 0


def test_a_job_that_cannot_be_parked_stays_stopped_and_is_tried_again(core: CoreDriver) -> None:
    core.settle_in("a", BIG)
    core.settle_in("b", SMALL)
    core.suspend("a")
    core.give_back("a")
    core.move_failed("a", "no space left on device")
    assert core.state("a") is JobState.WAITING
    assert core.reason("a") == "suspended with 11.0 GiB still on gpu0: no space left on device"
    assert core.holders() == ["b"]
    core.run(9 * SECOND)
    assert core.state("a") is JobState.WAITING
    core.run(2 * SECOND)
    assert core.state("a") is JobState.PARKED


def test_p5_a_job_that_cannot_come_back_stays_parked_and_frees_what_it_was_promised(core: CoreDriver) -> None:
    suspended(core)
    core.resume("a")
    core.move_failed("a", "cannot allocate")
    assert core.state("a") is JobState.PARKED
    assert core.job("a").promised_bytes == GIB
    assert core.reason("a").endswith(
        "comes back when it is tried again, in 10.0 s; the last try failed: cannot allocate"
    ), "there is room, and nobody has to end for it"
    core.run(9 * SECOND)
    assert core.state("a") is JobState.PARKED
    core.run(2 * SECOND)
    assert core.state("a") is JobState.RUNNING


def test_l5_nobody_is_parked_beyond_the_host_budget(make_core: MakeCore) -> None:
    core = make_core(settings=Settings(margin_percent=0, host_bytes_max=12 * GIB))
    suspended(core)
    core.settle_in("b", SMALL)
    core.settle_in("c", needs(3 * GIB, GIB))
    core.suspend("c")
    core.suspend("b")
    core.give_back("b")
    assert core.state("c") is JobState.WAITING
    assert (
        "3.00 GiB would have to move to the host, where parked jobs hold 11.0 GiB of 12.0 GiB; restart the daemon"
        in core.reason("c")
    )
    assert core.state("b") is JobState.PARKING
    core.exit("a")
    assert core.state("c") is JobState.PARKING, "the budget is free again"


def test_the_time_in_which_a_job_is_parked_is_a_wait(make_core: MakeCore) -> None:
    core = make_core(settings=Settings(margin_percent=0, move_percent=0))
    suspended(core)
    core.settle_in("b", BIG)
    core.resume("a")
    core.run(5 * SECOND)
    assert core.reason("a").endswith("comes back when others end")
    picture = core.scheduler.picture_job(JobId("a"), now=core.now)
    assert picture is not None
    assert picture.waited_ns >= 5 * SECOND


def test_a_process_that_follows_is_counted_once_and_how_fast_moving_is_comes_out_right(core: CoreDriver) -> None:
    core.settle_in("a", BIG)
    core.suspend("a")
    core.give_back("a")
    core.parked("a", 8 * GIB, 2 * GIB, move_ns=SECOND)
    core.parked("a", 10 * GIB, GIB, move_ns=SECOND // 4)
    assert core.job("a").parked_bytes == 10 * GIB
    core.settle_in("b", BIG)
    core.resume("a")
    assert "b has had its 52.2 s on the device" in core.reason("a"), "nineteen times there and back at 8 GiB/s"


def test_a_suspended_job_in_the_queue_is_passed_until_it_is_resumed(core: CoreDriver) -> None:
    core.settle_in("a", BIG)
    core.submit_known("b", BIG)
    core.suspend("b")
    assert core.reason("b").startswith("suspended before it started")
    core.exit("a")
    assert core.state("b") is JobState.QUEUED
    core.resume("b")
    assert core.state("b") is JobState.STARTING


def test_a_job_without_a_turn_is_parked_when_it_next_asks(core: CoreDriver) -> None:
    core.submit_known("a", SMALL)
    core.suspend("a")
    assert core.state("a") is JobState.STARTING
    assert core.reason("a").endswith("; it is suspended at its next boundary")
    core.ask("a")
    assert core.state("a") is JobState.PARKING


def test_a_job_suspended_and_resumed_before_its_boundary_keeps_its_memory(core: CoreDriver) -> None:
    core.settle_in("a", BIG)
    core.suspend("a")
    core.resume("a")
    assert [grant.job for grant in only(core.give_back("a"), GrantLease)] == ["a"]


def test_an_interrupted_job_that_took_its_bytes_back_is_counted_as_far_as_there_is_room(core: CoreDriver) -> None:
    suspended(core)
    core.settle_in("b", BIG)
    core.give_back("a", wants_more=False)
    assert core.state("a") is JobState.IDLE
    assert core.job("a").promised_bytes == 3 * GIB
    core.exit("b")
    assert core.job("a").promised_bytes == 11 * GIB


def test_a_restarted_daemon_takes_a_parked_job_back_as_parked(core: CoreDriver) -> None:
    core.adopt("a", holding=False, known=BIG, live_bytes=GIB, parked_bytes=10 * GIB, is_suspended=True)
    assert core.state("a") is JobState.PARKED
    assert core.device().promised_bytes == GIB
    core.run(SECOND)
    core.resume("a")
    assert core.state("a") is JobState.UNPARKING
    core.adopt("b", holding=False, known=SMALL, live_bytes=MS, parked_bytes=GIB)
    assert core.state("b") is JobState.UNPARKING, "nobody suspended it"


def test_a_return_that_fails_takes_nothing_that_others_were_promised_meanwhile(core: CoreDriver) -> None:
    core.settle_in("a", needs(4 * GIB, GIB))
    core.suspend("a")
    core.give_back("a")
    core.parked("a", GIB, 8 * GIB)
    core.resume("a")
    assert (core.state("a"), core.job("a").promised_bytes) == (JobState.UNPARKING, 4 * GIB)
    core.settle_in("b", needs(10 * GIB, GIB))
    core.move_failed("a")
    assert core.job("a").promised_bytes == 5 * GIB, "of the 8 GiB that stayed: what L1 leaves"
    core.exit("b")
    core.tick(10 * SECOND)
    assert core.state("a") is JobState.UNPARKING


def test_p6_a_job_that_must_not_be_parked_stops_with_its_memory_and_goes_on_when_resumed(core: CoreDriver) -> None:
    core.settle_in("a", BIG, may_park=False)
    core.suspend("a")
    assert core.recalled == ["a"]
    assert only(core.give_back("a"), ParkJob) == []
    assert core.reason("a") == (
        "suspended with 11.0 GiB still on gpu0: it was started with --no-park and keeps its memory on the device"
    )
    core.run(30 * SECOND)
    assert (core.state("a"), core.job("a").promised_bytes) == (JobState.WAITING, 11 * GIB)
    assert [grant.job for grant in only(core.resume("a"), GrantLease)] == ["a"]
    assert only(core.effects, ParkJob) == []


def test_p6_nobody_is_let_in_at_the_cost_of_a_job_that_must_not_be_parked(core: CoreDriver) -> None:
    core.settle_in("a", BIG, may_park=False)
    core.submit_known("b", BIG)
    core.run(60 * SECOND)
    assert (core.state("b"), only(core.effects, ParkJob)) == (JobState.QUEUED, [])
    assert core.reason("b").endswith(
        "starts when a ends, which cannot be parked: it was started with --no-park and keeps its memory on the device"
    )


def test_p6_a_job_that_must_not_be_parked_does_not_move_to_another_device(core: CoreDriver) -> None:
    core.add_device("gpu1", 16 * GIB)
    core.settle_in("a", BIG, may_park=False)
    [refused] = only(core.migrate("a", "gpu1"), RejectEvent)
    assert refused.reason == (
        "job a cannot move to another device: it was started with --no-park and keeps its memory on the device"
    )


def test_l5_bytes_on_the_host_are_of_a_job_that_is_away(make_core: MakeCore) -> None:
    """Else the budget would be used up by nobody."""
    core = make_core()
    suspended(core)
    core.scheduler.check_invariants()
    job = core.scheduler._node.jobs[JobId("a")]
    assert job.memory.parked_bytes
    job.state = JobState.IDLE
    with pytest.raises(InternalError, match="L5 broken: idle job a has"):
        departures.check_departures(core.scheduler._node)
    job.state = JobState.PARKED
