"""H1 to H4: a job that does not reach a boundary is warned, put last, sent away, and ended only if it chose that."""

from __future__ import annotations

import pytest

from carpool.core.node.effects import NameHog, ParkJob, RefuseJob, StopJob, UnparkJob
from carpool.core.node.model import HogStep, JobState
from carpool.core.node.settings import Settings
from carpool.units import GIB, MS, SECOND
from tests.core.node.driver import CoreDriver, MakeCore, needs, only

KNOWN = needs(GIB, GIB)
LARGE = needs(15 * GIB, GIB)
STEPS = {
    "warn": [HogStep.WARNED, HogStep.LAST],
    "suspend": [HogStep.WARNED, HogStep.LAST, HogStep.SENT_AWAY],
    "kill": [HogStep.WARNED, HogStep.LAST, HogStep.SENT_AWAY, HogStep.ENDED],
}
LATE = {HogStep.WARNED: 2, HogStep.LAST: 4, HogStep.SENT_AWAY: 20, HogStep.ENDED: 40}  # seconds


def hogging(core: CoreDriver, on_hog: str, span_ns: int, on: str = "gpu0") -> list[tuple[int, HogStep]]:
    """a is asked for its turn and computes on for so long; the steps, each with the seconds since it was asked."""
    core.settle_in("a", KNOWN, on_hog=on_hog, device=on)
    core.settle_in("b", KNOWN, device=on)
    core.tick(100 * MS)
    assert core.recalled == ["a"]
    return compute_on(core, span_ns)


def compute_on(core: CoreDriver, span_ns: int) -> list[tuple[int, HogStep]]:
    asked, found = core.now, list[tuple[int, HogStep]]()
    while core.now < asked + span_ns:
        core.now = min(asked + span_ns, core.scheduler.next_wakeup() or core.now + SECOND)
        core.report("a", cpu_ns=core.now)
        found += [((core.now - asked) // SECOND, hog.step) for hog in only(core.tick(), NameHog)]
    return found


@pytest.mark.parametrize("on_hog", STEPS)
def test_h1_h2_each_step_comes_once_in_its_order_and_no_further_than_chosen(core: CoreDriver, on_hog: str) -> None:
    assert hogging(core, on_hog, 100 * SECOND) == [(LATE[step], step) for step in STEPS[on_hog]]
    assert [stop.job for stop in only(core.effects, StopJob)] == (["a"] if on_hog == "kill" else [])


@pytest.mark.parametrize("tenant", ["ana", "ben"])
def test_h5_a_job_that_keeps_another_tenant_waiting_is_ended_whatever_it_chose(
    make_core: MakeCore, tenant: str
) -> None:
    core = make_core(settings=Settings(hog_end_ns=60 * SECOND))
    core.settle_in("a", KNOWN, on_hog="warn", tenant="ana")
    core.settle_in("b", KNOWN, tenant=tenant)
    core.tick(100 * MS)
    assert core.recalled == ["a"]
    compute_on(core, 59 * SECOND)
    assert not only(core.effects, StopJob)
    compute_on(core, 2 * SECOND)
    assert [stop.job for stop in only(core.effects, StopJob)] == (["a"] if tenant == "ben" else [])
    if tenant == "ben":
        core.exit("a")
        assert "kept jobs of other tenants waiting for 1 min" in core.reason("a")


@pytest.mark.parametrize("order", ["migrate", "suspend"])
def test_h1_while_nobody_waits_for_it_a_late_job_is_only_named(make_core: MakeCore, order: str) -> None:
    core = make_core(devices=2)
    core.settle_in("a", KNOWN, on_hog="kill", device="gpu0")
    core.settle_in("b", KNOWN, device="gpu1")
    core.settle_in("c", KNOWN, device="gpu1")  # waits for b, and not because of a
    core.migrate("a", "gpu1") if order == "migrate" else core.suspend("a")
    assert core.recalled == ["a"]
    assert compute_on(core, 100 * SECOND) == [(2, HogStep.WARNED)]
    assert "others" not in core.reason("a") and not only(core.effects, StopJob)
    core.settle_in("d", KNOWN, device="gpu0")
    assert compute_on(core, 100 * SECOND) == [(LATE[step], step) for step in STEPS["kill"][1:]], "from then on"


def test_h1_one_that_waits_in_the_queue_for_its_memory_counts(core: CoreDriver) -> None:
    core.settle_in("a", needs(10 * GIB, GIB), on_hog="kill")
    core.suspend("a")
    compute_on(core, 100 * SECOND)
    core.submit_known("b", needs(10 * GIB, GIB))
    assert core.state("b") is JobState.QUEUED
    assert compute_on(core, 100 * SECOND) == [(LATE[step], step) for step in STEPS["kill"][1:]]


def test_h3_a_hog_lets_others_go_first_for_as_long_as_they_waited(core: CoreDriver) -> None:
    hogging(core, "warn", 10 * SECOND)
    core.give_back("a")
    assert core.holders() == ["b"]
    core.run(9 * SECOND)
    assert core.longest_gap_ns("b", since_ns=core.now - 9 * SECOND) == 0, "b alone has it"
    core.run(20 * SECOND)
    assert core.longest_gap_ns("a", since_ns=core.now - 15 * SECOND) < 15 * SECOND, "then both"


def test_h3_what_it_was_late_while_nobody_waited_is_not_counted(make_core: MakeCore) -> None:
    core = make_core("priority")
    core.settle_in("a", KNOWN, priority=10)
    core.suspend("a")
    compute_on(core, 60 * SECOND)
    core.settle_in("b", KNOWN)
    assert compute_on(core, 5 * SECOND) == [(4, HogStep.LAST)]
    core.resume("a")
    core.give_back("a")
    core.run(4 * SECOND)
    assert core.holders() == ["b"]
    core.run(2 * SECOND)
    assert core.holders() == ["a"]


def test_h4_one_that_is_sent_away_leaves_at_its_boundary_and_comes_back_when_the_others_are_gone(
    core: CoreDriver,
) -> None:
    hogging(core, "suspend", 30 * SECOND)
    assert core.reason("a").endswith("; it leaves the device at its next boundary while others want it")
    [order] = only(core.give_back("a"), ParkJob)
    assert order.reason == "a kept others waiting too long"
    core.parked("a", GIB)
    assert "it comes back when nobody else is here, or with: carpool resume a" in core.reason("a")
    core.run(60 * SECOND)
    assert core.state("a") is JobState.PARKED
    assert [order.job for order in only(core.exit("b"), UnparkJob)] == ["a"]


def test_h4_it_can_be_resumed(core: CoreDriver) -> None:
    hogging(core, "suspend", 30 * SECOND)
    core.give_back("a")
    core.parked("a", GIB)
    assert [order.job for order in only(core.resume("a"), UnparkJob)] == ["a"]


@pytest.mark.parametrize("is_host_full", [False, True])
def test_h4_one_that_cannot_be_parked_goes_on_and_is_asked_for_its_turn_like_anybody(
    make_core: MakeCore, is_host_full: bool
) -> None:
    core = make_core(settings=Settings(margin_percent=0, host_bytes_max=GIB // 2 if is_host_full else None))
    hogging(core, "suspend", 30 * SECOND)
    core.give_back("a")
    if not is_host_full:
        core.move_failed("a", "it is no program of torch")
    assert core.state("a") is JobState.WAITING
    core.run(100 * SECOND)
    assert core.served_ns("a") > 60 * SECOND, "as long as b, after its rest"
    assert len(only(core.effects, ParkJob)) == (0 if is_host_full else 1)


def test_h4_one_that_was_sent_away_is_not_kept_out_by_those_who_want_nothing_here(make_core: MakeCore) -> None:
    core = make_core(devices=2)
    hogging(core, "suspend", 30 * SECOND, on="gpu0")
    core.give_back("a")
    core.parked("a", GIB)
    core.settle_in("large", LARGE, device="gpu1")
    core.submit_known("elsewhere", LARGE, device="gpu1")
    core.submit_known("later", LARGE, device="gpu0")
    core.suspend("later")
    assert core.state("elsewhere") is core.state("later") is JobState.QUEUED
    assert core.state("a") is JobState.PARKED, "b is here"
    assert [order.job for order in only(core.suspend("b"), UnparkJob)] == ["a"]


def test_one_that_is_ended_says_why(core: CoreDriver) -> None:
    hogging(core, "kill", 50 * SECOND)
    core.exit("a", code=-15)
    assert core.state("a") is JobState.CANCELLED
    assert "has not reached a boundary" in core.reason("a") and "--on-hog kill" in core.reason("a")
    assert not only(core.effects, RefuseJob)
