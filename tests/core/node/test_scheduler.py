"""The walk of a lease and of a job's life: events in, the list of effects out."""

from __future__ import annotations

import pytest

from carpool.core.kernel.ids import DeviceId, JobId, LaneId
from carpool.core.node.effects import (
    CloseJob,
    GrantLease,
    RecallLease,
    RejectEvent,
    RememberJob,
    ResizeLane,
    SetCap,
    StartJob,
    StopJob,
)
from carpool.core.node.model import History, JobState
from carpool.core.node.settings import Settings
from carpool.errors import InternalError
from carpool.units import GIB, MS, SECOND
from tests.core.node.driver import CoreDriver, MakeCore, needs, only

A, B, C = JobId("a"), JobId("b"), JobId("c")
GPU0, LANE1 = DeviceId("gpu0"), LaneId("gpu0/1")


def resized(lane_bytes: int, *jobs: JobId) -> ResizeLane:
    return ResizeLane(device=GPU0, lane=LANE1, lane_bytes=lane_bytes, jobs=jobs)


def granted(job: JobId, lane_bytes: int, *, is_shared: bool) -> GrantLease:
    return GrantLease(job=job, lane=LANE1, lane_bytes=lane_bytes, is_shared=is_shared)


# --- a turn: asked, granted, recalled, returned -----------------------------------------------------------


def test_a_submitted_job_is_started_and_told_how_much_it_may_hold(core: CoreDriver) -> None:
    assert core.submit("a") == [
        StartJob(job=A, device=GPU0),
        SetCap(job=A, cap_bytes=16 * GIB),
        resized(0, A),
    ]
    assert core.state("a") is JobState.STARTING


def test_a_free_lane_is_granted_in_the_call_that_asks_for_it(core: CoreDriver) -> None:
    core.submit("a")
    assert core.ask("a") == [granted(A, 0, is_shared=False)]
    assert core.state("a") is JobState.PROFILING


def test_a_job_whose_needs_are_known_runs_without_being_profiled(core: CoreDriver) -> None:
    core.submit_known("a", needs(2 * GIB, 4 * GIB))
    assert core.ask("a") == [granted(A, 4 * GIB, is_shared=False)]
    assert core.state("a") is JobState.RUNNING


def test_second_job_waits_until_the_lane_is_returned(core: CoreDriver) -> None:
    core.settle_in("a", needs(2 * GIB, 4 * GIB))
    assert core.settle_in("b", needs(2 * GIB, 3 * GIB)) == []
    assert core.state("b") is JobState.WAITING
    core.wait(10 * MS)
    assert core.give_back("a", wants_more=False) == [granted(B, 4 * GIB, is_shared=True)]
    assert core.holders() == ["b"]


def test_a_turn_is_handed_over_in_one_call_when_both_want_more(core: CoreDriver) -> None:
    core.settle_in("a", needs(2 * GIB, 4 * GIB))
    core.settle_in("b", needs(2 * GIB, 4 * GIB))
    core.wait(100 * MS)
    assert core.give_back("a") == [granted(B, 4 * GIB, is_shared=True)]
    core.wait(200 * MS)
    assert core.give_back("b") == [granted(A, 4 * GIB, is_shared=True)]


def test_a_holder_is_recalled_when_its_quantum_is_over_and_not_before(core: CoreDriver) -> None:
    core.settle_in("a", needs(2 * GIB, 4 * GIB))
    core.settle_in("b", needs(2 * GIB, 4 * GIB))
    assert core.scheduler.next_wakeup() == 100 * MS
    assert core.tick(99 * MS) == []
    recall = RecallLease(job=A, reason="fair: b is behind its share by 100 ms")
    assert core.tick(1 * MS) == [recall]
    assert core.state("a") is JobState.RUNNING, "a recalled turn is still held"
    assert core.tick(1 * MS) == [], "a turn is recalled once"
    assert core.give_back("a") == [granted(B, 4 * GIB, is_shared=True)]


def test_the_quantum_of_the_settings_goes_before_the_policys_own(make_core: MakeCore) -> None:
    core = make_core("fair", settings=Settings(margin_percent=0, quantum_ns=30 * MS))
    core.settle_in("a", needs(GIB, GIB))
    core.settle_in("b", needs(GIB, GIB))
    assert core.scheduler.next_wakeup() == 30 * MS
    assert only(core.tick(30 * MS), RecallLease)


def test_a_job_alone_is_never_recalled_and_needs_no_wakeup(core: CoreDriver) -> None:
    core.settle_in("a", needs(2 * GIB, 4 * GIB))
    assert core.scheduler.next_wakeup() is None
    assert core.tick(3600 * SECOND) == []
    assert core.holders() == ["a"]


def test_a_job_that_wants_no_more_idles_and_asks_again(core: CoreDriver) -> None:
    core.settle_in("a", needs(2 * GIB, 4 * GIB))
    assert core.give_back("a", wants_more=False) == []
    assert core.state("a") is JobState.IDLE
    assert core.ask("a") == [granted(A, 4 * GIB, is_shared=False)]


def test_a_waiting_job_may_take_its_wish_back(core: CoreDriver) -> None:
    core.settle_in("a", needs(GIB, GIB))
    core.settle_in("b", needs(GIB, GIB))
    assert core.give_back("b", wants_more=False) == []
    assert core.state("b") is JobState.IDLE
    assert core.give_back("a") == [granted(A, GIB, is_shared=True)]


def test_a_return_that_comes_after_the_turn_lapsed_still_gets_a_grant(core: CoreDriver) -> None:
    """The return was on its way when the turn was revoked: the job now blocks until it is granted."""
    core.settle_in("a", needs(GIB, GIB))
    core.settle_in("b", needs(GIB, GIB))
    core.look_for(500 * MS)
    assert core.state("a") is JobState.IDLE
    assert core.holders() == ["b"]
    assert core.give_back("a", wants_more=True) == []
    assert core.state("a") is JobState.WAITING
    core.wait(600 * MS)
    assert only(core.give_back("b"), GrantLease) == [granted(A, GIB, is_shared=True)]


def test_a_late_return_of_a_job_that_wants_no_more_changes_nothing_but_its_steps(core: CoreDriver) -> None:
    core.settle_in("a", needs(GIB, GIB))
    core.settle_in("b", needs(GIB, GIB))
    core.look_for(500 * MS)
    assert core.give_back("a", wants_more=False, steps=7) == []
    assert core.state("a") is JobState.IDLE
    assert core.job("a").steps == 7


# --- the end of a job -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "state", "reason"),
    [
        (0, JobState.FINISHED, "exit code 0"),
        (1, JobState.FAILED, "exit code 1"),
        (-9, JobState.FAILED, "exit code -9"),
        (None, JobState.FAILED, "exit code unknown"),
    ],
)
def test_the_exit_code_decides_how_a_job_ended(
    core: CoreDriver, code: int | None, state: JobState, reason: str
) -> None:
    core.submit("a")
    closed = CloseJob(job=A, state=state, reason=reason)
    assert core.exit("a", code) == [closed, ResizeLane(device=GPU0, lane=LANE1, lane_bytes=0, jobs=())]
    assert core.state("a") is state


def test_the_drivers_words_about_an_exit_are_kept(core: CoreDriver) -> None:
    core.submit("a")
    core.exit("a", None, "killed by the kernel: out of memory")
    assert core.reason("a").startswith("failed: killed by the kernel: out of memory; had the device 0 ns")


def test_the_exit_of_a_holder_frees_its_lane_for_the_next_in_the_same_call(core: CoreDriver) -> None:
    core.settle_in("a", needs(2 * GIB, 4 * GIB))
    core.settle_in("b", needs(2 * GIB, 3 * GIB))
    assert core.exit("a", 1) == [
        CloseJob(job=A, state=JobState.FAILED, reason="exit code 1"),
        SetCap(job=B, cap_bytes=16 * GIB),
        granted(B, 3 * GIB, is_shared=False),
        resized(3 * GIB, B),
    ]
    assert core.device().free_bytes == 11 * GIB


def test_a_cancelled_job_in_the_queue_is_closed_at_once(core: CoreDriver) -> None:
    core.submit("a")
    core.submit("b")
    assert core.state("b") is JobState.QUEUED
    assert core.cancel("b") == [CloseJob(job=B, state=JobState.CANCELLED, reason="cancelled before it started")]


def test_a_cancelled_live_job_is_stopped_and_ends_cancelled_by_its_exit(core: CoreDriver) -> None:
    core.submit("a")
    core.ask("a")
    assert core.cancel("a") == [StopJob(job=A)]
    assert core.state("a") is JobState.PROFILING
    assert core.exit("a", -15)[0] == CloseJob(job=A, state=JobState.CANCELLED, reason="exit code -15")


def test_a_program_that_was_told_to_end_is_not_stopped_again_but_ends_cancelled(core: CoreDriver) -> None:
    core.submit("a")
    assert core.cancel("a", is_told=True) == []
    assert core.exit("a", 130)[0] == CloseJob(job=A, state=JobState.CANCELLED, reason="exit code 130")


def test_a_cancelled_job_that_ends_by_itself_first_has_finished(core: CoreDriver) -> None:
    core.submit("a")
    core.cancel("a")
    core.exit("a", 0)
    assert core.state("a") is JobState.FINISHED


def test_a_queued_job_whose_process_is_gone_leaves_the_queue(core: CoreDriver) -> None:
    core.submit("a")
    core.submit("b")
    assert core.exit("b", None, "its terminal was closed") == [
        CloseJob(job=B, state=JobState.FAILED, reason="its terminal was closed")
    ]
    assert only(core.exit("a"), StartJob) == []


def test_an_ended_job_can_be_forgotten_and_its_name_used_again(core: CoreDriver) -> None:
    core.submit("a")
    assert only(core.forget("a"), RejectEvent), "a live job is not forgotten"
    assert core.state("a") is JobState.STARTING
    core.exit("a")
    assert only(core.submit("a"), RejectEvent)
    assert core.forget("a") == []
    assert core.scheduler.picture_job(A, now=core.now) is None
    assert only(core.submit("a"), StartJob)


# --- what is remembered -----------------------------------------------------------------------------------


def test_a_finished_job_is_remembered_by_its_fingerprint(core: CoreDriver) -> None:
    core.submit("a", fingerprint="f")
    core.ask("a")
    core.wait(2 * SECOND)
    core.measure("a", needs(2 * GIB, 4 * GIB), step_ns=500 * MS)
    core.give_back("a", wants_more=False, steps=4)
    history = History(needs=needs(2 * GIB, 4 * GIB), steps=4, step_ns=500 * MS, served_ns=2 * SECOND)
    assert only(core.exit("a"), RememberJob) == [RememberJob(fingerprint="f", history=history)]


def test_a_remembered_program_starts_with_its_own_needs_and_leaves_room_for_others(core: CoreDriver) -> None:
    core.submit("a", fingerprint="f")
    core.ask("a")
    core.measure("a", needs(2 * GIB, 4 * GIB), step_ns=500 * MS)
    core.give_back("a", wants_more=False, steps=4)
    core.exit("a")
    assert only(core.submit("b", fingerprint="f"), StartJob) == [StartJob(job=B, device=GPU0)]
    assert (core.job("b").promised_bytes, core.lane_of("b").bytes) == (2 * GIB, 4 * GIB)
    assert only(core.submit("c", fingerprint="f"), StartJob) == [StartJob(job=C, device=GPU0)]
    core.ask("c")
    assert core.state("c") is JobState.RUNNING


@pytest.mark.parametrize(("code", "steps"), [(1, 5), (0, 0)])
def test_a_failed_job_or_one_without_a_step_teaches_nothing(core: CoreDriver, code: int, steps: int) -> None:
    core.submit("a", fingerprint="f")
    core.ask("a")
    core.give_back("a", wants_more=False, steps=steps)
    assert only(core.exit("a", code), RememberJob) == []


def test_a_job_that_was_not_measured_does_not_overwrite_what_is_known_of_its_memory(core: CoreDriver) -> None:
    known = needs(2 * GIB, 4 * GIB)
    core.remember("f", known, step_ns=MS)
    core.submit("a", fingerprint="f", cap_bytes=8 * GIB)
    core.ask("a")
    core.give_back("a", wants_more=False, steps=3)
    [remembered] = only(core.exit("a"), RememberJob)
    assert remembered.history.needs == known


def test_the_margin_is_added_to_what_was_measured_but_not_to_the_overhead(make_core: MakeCore) -> None:
    core = make_core(settings=Settings(margin_percent=10))
    core.submit("a")
    core.ask("a")
    core.measure("a", needs(1000, 2000, 500))
    assert core.job("a").needs == needs(1100, 2200, 500)
    assert (core.job("a").promised_bytes, core.lane_of("a").bytes) == (1600, 2200)


# --- the contract with the driver ------------------------------------------------------------------------


def test_events_of_an_unknown_job_are_rejected(core: CoreDriver) -> None:
    rejected = RejectEvent(job=A, event="LeaseAsked", reason="no such job")
    assert core.ask("a") == [rejected]


def test_a_second_job_of_the_same_name_is_rejected(core: CoreDriver) -> None:
    core.submit("a")
    before = core.scheduler.picture(now=core.now)
    rejected = RejectEvent(job=A, event="JobSubmitted", reason="a job with this id exists already")
    assert core.submit("a") == [rejected]
    assert core.scheduler.picture(now=core.now) == before


def test_time_never_goes_back(core: CoreDriver) -> None:
    core.tick(SECOND)
    core.now -= 1
    with pytest.raises(InternalError, match="time went back"):
        core.tick()
    core.now += 1


def test_a_device_is_added_once(core: CoreDriver) -> None:
    core.submit("a")
    with pytest.raises(InternalError, match="gpu0"):
        core.add_device("gpu0", GIB)
    assert core.device().capacity_bytes == 16 * GIB


def test_how_many_wait_for_a_job_counts_only_those_who_want_its_lane(core: CoreDriver) -> None:
    core.settle_in("a", needs(GIB, GIB))
    core.settle_in("b", needs(GIB, GIB))
    core.settle_in("c", needs(GIB, GIB))
    core.submit_known("d", needs(GIB, GIB))
    assert core.scheduler.waiters(A) == 2
    assert core.scheduler.waiters(B) == 1


def test_a_new_device_lets_the_queue_in(core: CoreDriver) -> None:
    core.submit("a")
    core.submit("b")
    assert StartJob(job=B, device=DeviceId("gpu1")) in core.add_device("gpu1", 8 * GIB)
