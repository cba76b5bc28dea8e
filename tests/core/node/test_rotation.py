"""More jobs than memory: who is parked for whom, when, and who is left alone."""

from __future__ import annotations

import pytest

from carpool.core.node.effects import ParkJob, RefuseJob, StartJob, UnparkJob
from carpool.core.node.model import JobState
from carpool.core.node.settings import Settings
from carpool.units import GIB, MS, SECOND
from tests.core.node.driver import CoreDriver, MakeCore, needs, only

BIG = needs(9 * GIB, GIB, overhead_bytes=GIB // 4)
HALF = needs(6 * GIB, GIB)


def begin(core: CoreDriver, *jobs: str) -> None:
    """Known jobs of 10.25 GiB each; whoever is started asks for a turn at once, as often as it takes."""
    for job in jobs:
        core.submit_known(job, BIG)
    start_all(core)


def start_all(core: CoreDriver) -> None:
    for job in core.scheduler.picture(now=core.now).jobs:
        if job.state is JobState.STARTING:
            core.ask(job.id)


def run(core: CoreDriver, span_ns: int) -> None:
    for _ in range(span_ns // (100 * MS)):
        core.run(100 * MS)
        start_all(core)


def test_jobs_of_four_times_the_device_all_run_and_moving_takes_a_twentieth_at_most(core: CoreDriver) -> None:
    jobs = "abcdef"
    core.move_ns = 200 * MS
    begin(core, *jobs)
    run(core, 120 * SECOND)
    served = [core.served_ns(job) for job in jobs]
    assert sum(served) >= 0.93 * 120 * SECOND
    assert max(served) - min(served) <= 16 * SECOND, "fair, give or take two stays"
    moving = sum(core.job(job).spent_ns.get("move", 0) for job in jobs)
    assert moving <= 0.055 * 120 * SECOND
    moves = only(core.effects, ParkJob)
    assert 10 <= len(moves) <= 18, "no thrash, and everybody's turn comes"


def test_weights_hold_across_rotations(core: CoreDriver) -> None:
    core.submit_known("heavy", BIG, weight_milli=3000)
    core.submit_known("light", BIG)
    start_all(core)
    run(core, 120 * SECOND)
    assert core.served_ns("heavy") == pytest.approx(3 * core.served_ns("light"), rel=0.15)


def test_r4_nobody_is_moved_again_before_it_was_there_for_long_enough(core: CoreDriver) -> None:
    core.move_ns = SECOND
    begin(core, "a", "b")
    run(core, SECOND)
    assert core.reason("b").endswith(
        "starts when a has had its 2.0 s on the device and is parked for it: moving takes at most 5 % of the time"
    )
    run(core, 4 * SECOND)
    assert (core.state("a"), core.holders()) == (JobState.PARKED, ["b"])
    assert core.reason("a").startswith(
        "waits parked for 2.9 s: it needs 10.2 GiB to come back and 5.50 GiB of 16.0 GiB is unpromised on gpu0"
        " (9.50 GiB to jobs, 1.00 GiB in lanes); comes back when b has had its 39.1 s on the device and is parked"
    )
    run(core, 35 * SECOND)
    assert core.holders() == ["b"]
    run(core, 6 * SECOND)
    assert core.holders() == ["a"]


def test_only_as_many_leave_as_are_needed_and_those_the_policy_puts_last(make_core: MakeCore) -> None:
    core = make_core("priority")
    for job, rank in (("low", 1), ("lower", 0), ("middle", 2)):
        core.settle_in(job, needs(4 * GIB, GIB), priority=rank)
    core.submit_known("high", needs(4 * GIB, GIB), priority=3)
    assert core.job("lower").leaving_for == "high"
    assert core.job("low").leaving_for is core.job("middle").leaving_for is None
    assert core.device().claimant == "high"
    run(core, SECOND)
    assert core.state("lower") is JobState.PARKED
    assert core.holders() == ["high"]


def test_a_job_of_high_priority_gets_time_and_memory_and_the_others_come_back_when_it_leaves(
    make_core: MakeCore,
) -> None:
    core = make_core("priority")
    core.settle_in("a", HALF, priority=0)
    core.settle_in("b", HALF, priority=0)
    core.submit_known("high", needs(12 * GIB, 2 * GIB), priority=9)
    run(core, SECOND)
    assert core.holders() == ["high"]
    assert core.state("a") is core.state("b") is JobState.PARKED
    assert "policy priority puts it before high" in core.reason("a")
    core.exit("high")
    run(core, SECOND)
    assert {core.state("a"), core.state("b")} == {JobState.RUNNING, JobState.WAITING}


def test_a_newcomer_of_high_priority_need_not_wait_for_the_quiet(make_core: MakeCore) -> None:
    core = make_core("priority")
    core.move_ns = SECOND
    core.settle_in("a", BIG, priority=0)
    for rank, job in enumerate(("b", "c"), start=1):
        core.submit_known(job, BIG, priority=rank)
        run(core, 3 * SECOND)
        assert core.holders() == [job]


def test_first_come_first_served_parks_nobody_who_came_earlier(make_core: MakeCore) -> None:
    core = make_core("fifo")
    begin(core, "a", "b")
    run(core, 20 * SECOND)
    assert only(core.effects, ParkJob) == []
    assert core.reason("b").endswith("; starts when policy fifo puts it before a")
    core.exit("a")
    start_all(core)
    assert core.holders() == ["b"]


def test_a_job_suspended_by_its_user_does_not_come_back_when_there_is_room(core: CoreDriver) -> None:
    begin(core, "a", "b")
    run(core, 3 * SECOND)
    away, here = ("a", "b") if core.state("a") is JobState.PARKED else ("b", "a")
    core.suspend(away)
    core.exit(here)
    run(core, 20 * SECOND)
    assert core.state(away) is JobState.PARKED
    core.resume(away)
    run(core, SECOND)
    assert core.state(away) is JobState.RUNNING


def test_suspending_the_claimant_lets_those_that_were_to_leave_stay(core: CoreDriver) -> None:
    begin(core, "a", "b")
    core.tick(2 * SECOND)
    assert core.device().claimant == "b"
    assert core.job("a").leaving_for == "b"
    assert core.recalled == ["a"]
    core.suspend("b")
    assert core.device().claimant is core.job("a").leaving_for is None
    core.give_back("a")
    assert core.holders() == ["a"]


def test_the_host_budget_is_a_limit_and_the_queue_says_so(make_core: MakeCore) -> None:
    core = make_core(settings=Settings(margin_percent=0, host_bytes_max=20 * GIB))
    begin(core, "a", "b", "c")
    run(core, 60 * SECOND)
    states = sorted(core.state(job) for job in "abc")
    assert states == [JobState.PARKED, JobState.QUEUED, JobState.RUNNING]
    queued = next(job for job in "abc" if core.state(job) is JobState.QUEUED)
    assert core.reason(queued).endswith(
        "starts when others end, or the host has room: in turns with them 18.5 GiB would have to move to the host,"
        " where parked jobs hold 9.00 GiB of 20.0 GiB; restart the daemon with a larger --host-memory"
    )
    others = [job for job in "abc" if job != queued]
    assert min(core.served_ns(job) for job in others) > 20 * SECOND, "those that rotate get on"
    core.exit(others[0])
    run(core, 30 * SECOND)
    assert core.state(queued) is not JobState.QUEUED


def test_r2_the_host_must_have_room_for_those_who_leave_not_for_others_who_could(make_core: MakeCore) -> None:
    core = make_core("priority", settings=Settings(margin_percent=0, host_bytes_max=10 * GIB))
    core.settle_in("small", needs(4 * GIB, GIB), priority=0)
    core.settle_in("big", needs(8 * GIB, GIB), priority=5)
    core.submit_known("high", needs(5 * GIB, GIB), priority=9)
    assert (core.job("small").leaving_for, core.job("big").leaving_for) == ("high", None)


def test_what_can_never_fit_is_refused_and_not_made_room_for(core: CoreDriver) -> None:
    begin(core, "a")
    [refused] = only(core.submit_known("huge", needs(20 * GIB, GIB)), RefuseJob)
    assert "can never fit" in refused.reason
    run(core, 5 * SECOND)
    assert only(core.effects, ParkJob) == []


def test_a_job_that_cannot_be_parked_goes_on_and_is_asked_ever_more_rarely(core: CoreDriver) -> None:
    begin(core, "a", "b")
    core.trouble["a"] = "its thread watcher might touch its tensors meanwhile"
    run(core, 300 * SECOND)
    assert core.served_ns("a") >= 0.99 * 300 * SECOND
    assert 3 <= len(only(core.effects, ParkJob)) <= 6
    assert core.reason("b").endswith(
        "starts when a ends, which cannot be parked: its thread watcher might touch its tensors meanwhile"
    )


def test_r5_a_host_that_filled_up_meanwhile_ends_the_claim_and_the_leaver_goes_on(make_core: MakeCore) -> None:
    core = make_core(settings=Settings(margin_percent=0, host_bytes_max=20 * GIB), devices=2)
    core.settle_in("a", BIG, device="gpu0")
    core.settle_in("x", needs(12 * GIB, GIB), device="gpu1")
    core.submit_known("b", BIG, device="gpu0")
    core.tick(2 * SECOND)
    assert (core.job("a").leaving_for, core.recalled) == ("b", ["a"])
    core.suspend("x")
    core.give_back("x")
    core.give_back("a")
    assert (core.state("x"), core.job("a").leaving_for) == (JobState.PARKING, None)
    assert core.holders() == ["a"], "the 12 GiB of x and its own 9.25 GiB are more than the host may take"
    run(core, SECOND)
    assert core.device().claimant is None, "R3: others are let in again"
    assert core.reason("b").endswith(
        "a ends, which cannot be parked: 9.25 GiB would have to move to the host, where parked jobs hold 12.0 GiB of"
        " 20.0 GiB; restart the daemon with a larger --host-memory"
    )
    core.exit("x")
    run(core, 15 * SECOND)
    assert core.served_ns("b") > 0, "and it is asked again"


def test_r5_when_one_of_several_cannot_be_parked_the_others_do_not_leave_in_vain(make_core: MakeCore) -> None:
    core = make_core("priority")
    for job in "ab":
        core.settle_in(job, HALF)
    core.submit_known("high", needs(12 * GIB, 2 * GIB), priority=9)
    assert (core.state("b"), core.recalled) == (JobState.PARKING, ["a"])
    core.move_failed("b")
    assert core.device().claimant is core.job("a").leaving_for is None
    core.give_back("a")
    assert core.state("a") is not JobState.PARKING


def test_r5_a_leaver_that_is_suspended_too_and_cannot_be_parked_ends_the_claim(core: CoreDriver) -> None:
    begin(core, "a", "b")
    core.tick(2 * SECOND)
    assert core.job("a").leaving_for == "b"
    core.suspend("a")
    core.give_back("a")
    core.move_failed("a")
    assert (core.job("a").leaving_for, core.device().claimant) == (None, None)
    assert core.state("a") is JobState.WAITING
    assert core.holders() == [], "P4: it is suspended all the same"


def test_r6_nobody_is_parked_who_could_not_come_back_beside_what_stays(core: CoreDriver) -> None:
    stays = needs(10 * GIB, GIB, overhead_bytes=3 * GIB)
    core.settle_in("a", stays)
    core.submit_known("b", stays)
    run(core, 30 * SECOND)
    assert core.state("b") is JobState.QUEUED, "14 GiB and the 3 GiB that stay are more than 16 GiB"
    assert only(core.effects, ParkJob) == []


def test_a_job_that_outgrew_its_promise_gets_the_room_of_another(core: CoreDriver) -> None:
    core.settle_in("a", HALF)
    core.settle_in("b", HALF)
    run(core, SECOND)
    core.measure("a", needs(12 * GIB, GIB))
    run(core, 60 * SECOND)
    assert core.served_ns("a") == pytest.approx(core.served_ns("b"), rel=0.2)
    assert only(core.effects, UnparkJob)


def test_an_unknown_newcomer_gets_room_for_its_first_turn_before_it_has_it(make_core: MakeCore) -> None:
    core = make_core(settings=Settings(margin_percent=0))
    core.settle_in("a", needs(9 * GIB, GIB))
    run(core, 200 * MS)
    core.submit("new")
    core.report("new", live_bytes=2 * GIB)
    core.ask("new")
    run(core, 300 * MS)
    assert core.state("a") is JobState.PARKED
    assert core.state("new") is JobState.PROFILING
    assert core.job("new").promised_bytes == 10 * GIB, "four times what it holds, and an eighth of the device"
    core.measure("new", needs(2 * GIB, GIB))
    run(core, SECOND)
    assert {core.state("a"), core.state("new")} == {JobState.RUNNING, JobState.WAITING}, "both fit after all"


def test_an_unknown_newcomer_that_has_room_parks_nobody(make_core: MakeCore) -> None:
    core = make_core(settings=Settings(margin_percent=0))
    core.settle_in("a", needs(9 * GIB, GIB))
    core.submit("new")
    core.report("new", live_bytes=GIB // 4)
    core.ask("new")
    run(core, SECOND)
    assert only(core.effects, ParkJob) == []


def test_a_full_device_makes_room_for_an_unknown_newcomers_start(make_core: MakeCore) -> None:
    core = make_core(settings=Settings(margin_percent=0))
    for job in "abc":
        core.settle_in(job, needs(5 * GIB, GIB))
    core.submit("new")
    run(core, 4 * SECOND)
    assert [start.job for start in only(core.effects, StartJob)][-1] == "new"


def test_nobody_is_moved_for_another_when_that_is_switched_off(make_core: MakeCore) -> None:
    core = make_core(settings=Settings(margin_percent=0, move_percent=0))
    begin(core, "a", "b")
    run(core, 30 * SECOND)
    assert only(core.effects, ParkJob) == []
    assert core.scheduler.next_wakeup() is None


def test_a_lane_policy_rotates_too(make_core: MakeCore) -> None:
    core = make_core("pack")
    for job in "abcd":
        core.submit_known(job, HALF)
    run(core, 60 * SECOND)
    assert all(core.served_ns(job) > 10 * SECOND for job in "abcd")
