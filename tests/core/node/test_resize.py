"""Z1 to Z4: a running job is given more or less."""

from __future__ import annotations

import pytest

from carpool.core.kernel.ids import JobId
from carpool.core.node.effects import GrantLease, ParkJob, RejectEvent, SetCap, StopJob, TrimJob, UnparkJob
from carpool.core.node.model import JobState, Needs
from carpool.core.node.settings import Settings
from carpool.units import GIB, SECOND
from tests.core.node.driver import CoreDriver, MakeCore, needs, only

A = JobId("a")
KNOWN = needs(4 * GIB, 2 * GIB)


def settled(core: CoreDriver, job: str = "a", cap_bytes: int = 8 * GIB) -> None:
    """A job with a cap, measured, that has its turn."""
    core.submit(job, cap_bytes=cap_bytes)
    core.ask(job)
    core.measure(job, KNOWN)


def caps(core: CoreDriver, job: str = "a") -> list[int]:
    return [cap.cap_bytes for cap in only(core.effects, SetCap) if cap.job == job]


def test_z1_a_larger_cap_is_told_at_once_and_nothing_else_happens(core: CoreDriver) -> None:
    settled(core)
    effects = core.resize("a", 12 * GIB)
    assert effects == [SetCap(job=A, cap_bytes=12 * GIB)]
    assert core.state("a") is JobState.RUNNING
    assert core.job("a").cap_bytes == 12 * GIB


def test_z1_a_job_that_is_not_measured_yet_is_promised_its_larger_cap_as_far_as_there_is_room(
    core: CoreDriver,
) -> None:
    core.submit("a", cap_bytes=4 * GIB)
    core.settle_in("b", needs(7 * GIB, GIB))
    core.resize("a", 14 * GIB)
    assert core.job("a").promised_bytes == 8 * GIB
    core.exit("b")
    assert core.job("a").promised_bytes == 14 * GIB


def test_z1_a_new_weight_counts_from_now_on(core: CoreDriver) -> None:
    core.settle_in("a", needs(GIB, GIB))
    core.settle_in("b", needs(GIB, GIB))
    core.run(10 * SECOND)
    core.resize("b", weight_milli=3000)
    before = {job: core.served_ns(job) for job in ("a", "b")}
    core.run(40 * SECOND)
    had = {job: core.served_ns(job) - before[job] for job in before}
    assert 2.7 <= had["b"] / had["a"] <= 3.3
    assert core.job("b").cap_bytes is None


def test_z2_a_smaller_cap_that_it_can_keep_is_told_at_once(core: CoreDriver) -> None:
    settled(core)
    assert core.resize("a", 6 * GIB) == [SetCap(job=A, cap_bytes=6 * GIB)]


def test_z2_a_holder_is_asked_for_its_turn_trims_and_goes_on_with_the_smaller_cap(core: CoreDriver) -> None:
    settled(core)
    core.resize("a", 5 * GIB)
    assert (core.recalled, caps(core)[-1]) == (["a"], 8 * GIB)
    assert core.reason("a").endswith("it was resized to 5.00 GiB and gives back what it can at its next boundary")
    assert [trim.job for trim in only(core.give_back("a"), TrimJob)] == ["a"]
    assert core.reason("a") == "gives back what it can spare: it was resized to 5.00 GiB"
    assert core.holders() == []
    effects = core.measure("a", needs(3 * GIB, 2 * GIB))
    assert only(effects, SetCap) == [SetCap(job=A, cap_bytes=5 * GIB)]
    assert [grant.job for grant in only(effects, GrantLease)] == ["a"]


@pytest.mark.parametrize("measured", [needs(104, 0), needs(4, 0, overhead_bytes=100)])
def test_z2_a_cap_below_what_was_just_measured_is_not_told(make_core: MakeCore, measured: Needs) -> None:
    core = make_core(settings=Settings(margin_percent=5), capacity_bytes=1000)
    core.submit("a", cap_bytes=200)
    core.ask("a")
    core.measure("a", needs(100, 0))
    core.measure("a", measured)
    core.resize("a", 103)
    assert caps(core)[-1] == 200
    assert core.recalled == ["a"], "it is to become smaller first"
    core.resize("a", 104)
    assert caps(core)[-1] == 104


def test_z2_what_a_job_brings_to_the_next_driver_has_no_margin(make_core: MakeCore) -> None:
    core = make_core(settings=Settings(margin_percent=5), capacity_bytes=1000)
    core.adopt("a", holding=False, known=needs(100, 4), live_bytes=100, cap_bytes=103)
    assert caps(core) == [104]


def too_large(core: CoreDriver, *, may_end: bool = False) -> None:
    settled(core)
    core.resize("a", 5 * GIB, may_end=may_end)
    core.give_back("a")
    core.measure("a", KNOWN)


def test_z3_a_job_that_cannot_do_with_less_is_parked_until_its_cap_is_raised(core: CoreDriver) -> None:
    too_large(core)
    assert [order.reason for order in only(core.effects, ParkJob)] == ["a was resized to 5.00 GiB"]
    core.parked("a", 4 * GIB)
    assert core.reason("a") == (
        "parked for 0 ns: it was resized to 5.00 GiB and needs 6.00 GiB; go on with: carpool resize a --memory SIZE"
    )
    assert core.device().promised_bytes == 0
    core.run(20 * SECOND)
    assert core.state("a") is JobState.PARKED
    assert only(core.resize("a", 5 * GIB + 1), UnparkJob) == [], "still too little"
    effects = core.resize("a", 6 * GIB)
    assert only(effects, UnparkJob) == [UnparkJob(job=A)]
    assert caps(core)[-1] == 6 * GIB
    assert only(core.unparked("a"), GrantLease)


def test_z3_it_is_ended_only_if_that_was_asked_for(core: CoreDriver) -> None:
    too_large(core, may_end=True)
    assert only(core.effects, StopJob) == [StopJob(job=A)]
    core.exit("a", code=-15)
    assert core.state("a") is JobState.CANCELLED
    assert core.reason("a").startswith("cancelled: it was resized to 5.00 GiB and needs 6.00 GiB")


def test_z4_what_can_never_be_is_refused_and_changes_nothing(core: CoreDriver) -> None:
    settled(core)
    [reject] = core.resize("a", 17 * GIB)
    assert isinstance(reject, RejectEvent)
    assert reject.reason == "job a cannot have 17.0 GiB: gpu0 has 16.0 GiB; ask for less"
    core.submit("b", cap_bytes=4 * GIB)
    [reject] = only(core.resize("b", 3 * GIB), RejectEvent)
    assert reject.reason.startswith("nobody knows yet what job b needs: it may hold 4.00 GiB now")
    assert (core.job("a").cap_bytes, core.job("b").cap_bytes) == (8 * GIB, 4 * GIB)


def test_a_job_outside_the_turns_keeps_what_it_holds(core: CoreDriver) -> None:
    core.submit("a", cap_bytes=8 * GIB)
    core.detach("a")
    core.report("a", live_bytes=3 * GIB)
    [reject] = only(core.resize("a", 2 * GIB), RejectEvent)
    assert "holds 3.00 GiB: it cannot be made to do with 2.00 GiB; end it with --or-kill" in reject.reason
    assert SetCap(job=A, cap_bytes=3 * GIB) in core.resize("a", 3 * GIB)
    assert only(core.resize("a", 2 * GIB, may_end=True), StopJob) == [StopJob(job=A)]


def test_a_queued_job_starts_when_it_asks_for_less(core: CoreDriver) -> None:
    core.settle_in("a", needs(10 * GIB, GIB))
    core.submit("b", cap_bytes=8 * GIB)
    assert core.state("b") is JobState.QUEUED
    core.resize("b", 4 * GIB)
    assert core.state("b") is JobState.STARTING


def test_one_that_lost_its_driver_or_its_connection_while_it_trimmed_is_told_again(core: CoreDriver) -> None:
    settled(core)
    core.resize("a", 5 * GIB)
    core.give_back("a")
    core.give_back("a", wants_more=False)
    assert [trim.job for trim in only(core.ask("a"), TrimJob)] == ["a"]
    core.adopt("b", holding=False, known=KNOWN, live_bytes=4 * GIB, cap_bytes=5 * GIB)
    assert caps(core, "b") == [6 * GIB], "not less than it needs"
    assert [trim.job for trim in only(core.ask("b"), TrimJob)] == ["b"]


def test_a_suspended_job_that_is_resized_comes_back_first_and_trims_then(core: CoreDriver) -> None:
    settled(core)
    core.suspend("a")
    core.give_back("a")
    core.parked("a", 4 * GIB)
    core.resize("a", 5 * GIB)
    core.resume("a")
    assert [trim.job for trim in only(core.unparked("a"), TrimJob)] == ["a"]
