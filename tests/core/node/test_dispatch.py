"""Who has the device now (D1 to D5): first turns, lapses, hogs, wakeups, successors."""

from __future__ import annotations

import re

from carpool.core.kernel.ids import JobId
from carpool.core.node.effects import GrantLease, NameHog, RecallLease, RevokeLease, StartJob
from carpool.core.node.model import HogStep, JobState
from carpool.core.node.settings import Settings
from carpool.units import GIB, MS, SECOND
from tests.core.node.driver import EXACT, CoreDriver, MakeCore, needs, only

KNOWN = needs(GIB, GIB)


# --- first turns (D3) ---------------------------------------------------------------------------------------


def test_a_job_being_measured_keeps_its_turn_for_two_seconds(core: CoreDriver) -> None:
    core.submit_known("known", KNOWN)
    core.submit("new")
    core.ask("new")
    core.ask("known")
    assert core.scheduler.next_wakeup() == 250 * MS
    for _ in range(7):
        core.wait(250 * MS)
        core.report("new", cpu_ns=core.now)
        assert only(core.tick(), RecallLease) == []
    core.report("new", cpu_ns=core.now)
    assert core.scheduler.next_wakeup() == 2 * SECOND
    assert only(core.tick(250 * MS), RecallLease)[0].job == "new"


def test_d4_a_job_that_was_measured_has_the_usual_quantum_from_its_grant(core: CoreDriver) -> None:
    core.submit_known("known", KNOWN)
    core.submit("new")
    core.ask("new")
    core.ask("known")
    core.wait(100 * MS)
    assert only(core.measure("new", KNOWN), RecallLease)[0].job == "new"


def test_nobody_runs_beside_a_job_that_is_being_measured(make_core: MakeCore) -> None:
    core = make_core("pack")
    core.settle_in("a", KNOWN)
    core.submit("new")
    assert core.holders() == ["a"]
    [recall] = only(core.ask("new"), RecallLease)
    assert (recall.job, recall.reason) == ("a", "new is to be measured alone")
    assert only(core.give_back("a"), GrantLease)[0].job == "new"
    core.tick(10 * MS)
    assert core.holders() == ["new"]
    assert core.state("a") is JobState.WAITING
    assert only(core.measure("new", KNOWN), GrantLease)[0].job == "a", "side by side again in the same call"
    assert sorted(core.holders()) == ["a", "new"]


def test_two_newcomers_are_measured_one_after_the_other_the_older_first(make_core: MakeCore) -> None:
    core = make_core("pack")
    core.submit("a", cap_bytes=GIB)
    core.submit("b", cap_bytes=GIB)
    core.ask("b")
    assert core.holders() == ["b"]
    core.ask("a")
    assert core.holders() == ["b"]
    assert only(core.measure("b", needs(GIB // 4, GIB // 4)), RecallLease)[0].job == "b"
    assert only(core.give_back("b"), GrantLease)[0].job == "a"
    assert only(core.measure("a", needs(GIB // 4, GIB // 4)), GrantLease)[0].job == "b"


# --- lapses -------------------------------------------------------------------------------------------------


def test_a_holder_that_neither_steps_nor_computes_loses_its_turn_to_those_who_wait(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    assert only(core.look_for(250 * MS) + core.tick(249 * MS), RevokeLease) == []
    effects = core.tick(1 * MS)
    reason = "a neither made a step nor computed for 500 ms while others waited"
    assert effects[0] == RevokeLease(job=JobId("a"), reason=reason)
    assert only(effects, GrantLease)[0].job == "b", "in the same call"
    assert core.state("a") is JobState.IDLE


def test_a_holder_that_uses_its_processor_keeps_its_turn(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    for _ in range(8):
        core.wait(250 * MS)
        core.report("a", cpu_ns=core.now // 10)
        assert only(core.tick(), RevokeLease) == []


def test_a_holder_that_makes_steps_keeps_its_turn(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    for steps in range(1, 9):
        core.wait(400 * MS)
        core.report("a", steps=steps)
        assert only(core.tick(), RevokeLease) == []


def test_a_holder_that_barely_uses_its_processor_is_not_computing(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    core.wait(250 * MS)
    core.report("a", cpu_ns=core.now // 100)
    core.tick()
    core.wait(250 * MS)
    core.report("a", cpu_ns=core.now // 100)
    assert only(core.tick(), RevokeLease)[0].job == "a"


def test_a_holder_is_judged_by_what_it_does_in_its_turn_not_by_how_long_it_waited(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    core.wait(20 * SECOND)
    core.give_back("a")
    assert core.holders() == ["b"]
    for busy_ns in (250 * MS, 500 * MS, 750 * MS):
        core.wait(250 * MS)
        core.report("b", cpu_ns=busy_ns)
        assert only(core.tick(), RevokeLease) == []


def test_a_holder_alone_may_sleep_as_long_as_it_likes(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    assert core.tick(3600 * SECOND) == []
    core.settle_in("b", KNOWN)
    core.look_for(500 * MS)
    assert core.holders() == ["b"], "but somebody waits now, and it goes on sleeping"


def test_a_holder_inside_a_long_step_is_not_idle(core: CoreDriver) -> None:
    core.submit("a")
    core.ask("a")
    core.measure("a", KNOWN, step_ns=10 * SECOND)
    core.settle_in("b", KNOWN)
    assert only(core.look_for(29 * SECOND), RevokeLease) == []
    assert only(core.look_for(1 * SECOND), RevokeLease)[0].job == "a"


def test_d6_a_machine_that_stood_still_costs_nobody_his_turn(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    core.tick()
    assert only(core.tick(60 * SECOND), RevokeLease) == []  # nobody looked meanwhile
    assert only(core.tick(), RevokeLease) == []
    core.wait(100 * MS)
    core.report("a", cpu_ns=core.now)
    assert only(core.look_for(250 * MS), RevokeLease) == []
    assert only(core.look_for(250 * MS), RevokeLease)[0].job == "a"


def test_a_turn_recalled_for_the_queue_lapses_though_nobody_waits_for_the_lane(make_core: MakeCore) -> None:
    core = make_core("pack")
    core.settle_in("a", needs(GIB, 5 * GIB))
    core.settle_in("b", needs(GIB, 5 * GIB))
    core.submit("c", cap_bytes=8 * GIB)
    assert core.recalled == ["b"]
    assert core.scheduler.next_wakeup() is not None
    core.look_for(250 * MS)
    core.wait(250 * MS)
    core.report("a", steps=5)
    assert only(core.tick(), RevokeLease)[0].job == "b"
    core.tick()
    core.give_back("a", wants_more=True)
    assert core.state("c") is JobState.STARTING


# --- hogs ---------------------------------------------------------------------------------------------------


def busy(core: CoreDriver, job: str, span_ns: int) -> list[NameHog]:
    """Let a holder compute without reaching a boundary, with the ticks a driver would send."""
    named: list[NameHog] = []
    end = core.now + span_ns
    while core.now < end:
        core.now = min(end, core.scheduler.next_wakeup() or end)
        core.report(job, cpu_ns=core.now)
        named += only(core.tick(), NameHog)
    return named


def test_a_recalled_holder_that_reaches_no_boundary_is_named_once(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    core.tick(100 * MS)
    assert core.recalled == ["a"]
    assert busy(core, "a", 2 * SECOND - MS) == []
    assert not core.job("a").is_hog
    hog, last = busy(core, "a", 10 * SECOND)
    assert (hog.step, last.step) == (HogStep.WARNED, HogStep.LAST)
    assert re.fullmatch(
        r"a was asked for its turn 2\.\d s ago and has not reached a boundary; its step time is not known yet",
        hog.reason,
    )
    assert core.job("a").is_hog
    assert core.reason("a").startswith("a was asked for its turn 12.0 s ago")
    core.give_back("a")
    assert not core.job("a").is_hog


def test_a_job_of_long_steps_is_a_hog_only_after_ten_of_them(core: CoreDriver) -> None:
    core.submit("a")
    core.ask("a")
    core.measure("a", KNOWN, step_ns=SECOND)
    core.settle_in("b", KNOWN)
    core.tick(100 * MS)
    assert core.recalled == ["a"]
    assert busy(core, "a", 10 * SECOND - MS) == []
    [hog] = busy(core, "a", 5 * SECOND)
    assert "its usual step takes 1.0 s" in hog.reason


def test_a_holder_that_was_not_recalled_is_no_hog(make_core: MakeCore) -> None:
    core = make_core("fifo")
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    assert busy(core, "a", 100 * SECOND) == []
    assert not core.job("a").is_hog


def test_a_hog_is_named_again_in_its_next_turn(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    assert [hog.step for hog in busy(core, "a", 3 * SECOND)] == [HogStep.WARNED]
    core.give_back("a", steps=0)
    core.wait(10 * SECOND)
    core.give_back("b")
    assert core.holders() == ["a"]
    assert [hog.step for hog in busy(core, "a", 15 * SECOND)] == [HogStep.WARNED, HogStep.LAST]


# --- wakeups ------------------------------------------------------------------------------------------------


def test_nobody_is_woken_while_nobody_waits(core: CoreDriver) -> None:
    assert core.scheduler.next_wakeup() is None
    core.submit_known("a", KNOWN)
    assert core.scheduler.next_wakeup() is None
    core.ask("a")
    core.submit_known("b", KNOWN)
    assert core.scheduler.next_wakeup() is None


def test_the_earliest_wakeup_of_all_devices_counts(make_core: MakeCore) -> None:
    core = make_core(devices=2, settings=Settings(margin_percent=0, watch_ns=10 * SECOND, quantum_ns=SECOND))
    core.settle_in("a", KNOWN, device="gpu0")
    core.settle_in("b", KNOWN, device="gpu0")
    core.wait(500 * MS)
    core.settle_in("c", KNOWN, device="gpu1")
    core.settle_in("d", KNOWN, device="gpu1")
    assert core.scheduler.next_wakeup() == SECOND
    core.give_back("a", wants_more=False)
    core.give_back("b", wants_more=False)
    assert core.scheduler.next_wakeup() == 1500 * MS


def test_a_wakeup_is_never_in_the_past_or_now(make_core: MakeCore) -> None:
    for policy in ("fifo", "fair", "srtf", "las", "priority", "pack"):
        core = make_core(policy)
        for job in "abc":
            core.settle_in(job, KNOWN)
        core.submit("new")
        core.submit("queued")
        for _ in range(50):
            wakeup = core.scheduler.next_wakeup()
            assert wakeup is None or wakeup > core.now
            core.now = wakeup or core.now + SECOND
            core.tick()


def test_a_grant_says_whether_scratch_memory_must_be_given_back(make_core: MakeCore) -> None:
    core = make_core(settings=EXACT)
    core.submit_known("a", KNOWN)
    assert only(core.ask("a"), GrantLease)[0].is_shared is False
    core.give_back("a", wants_more=False)
    core.submit("queued", cap_bytes=16 * GIB)
    assert only(core.ask("a"), GrantLease)[0].is_shared is True, "somebody queues for memory"
    core.give_back("a", wants_more=False)
    core.cancel("queued")
    core.submit_known("b", KNOWN)
    assert only(core.ask("a"), GrantLease)[0].is_shared is True, "the lane has two jobs"


def test_effects_come_in_the_order_in_which_they_must_be_done(core: CoreDriver) -> None:
    core.settle_in("a", needs(10 * GIB, 4 * GIB))
    core.submit("b", cap_bytes=8 * GIB)
    kinds = [type(effect).__name__ for effect in core.exit("a")]
    assert kinds == ["CloseJob", "StartJob", "SetCap", "ResizeLane", "ResizeLane"]
    assert only(core.effects, StartJob)


def test_who_comes_while_an_old_turn_goes_on_is_looked_at_soon(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.tick(60 * SECOND)
    core.settle_in("b", KNOWN)
    waited = 0
    while core.holders() == ["a"] and not only(core.tick(), RecallLease):
        step = (core.scheduler.next_wakeup() or 0) - core.now
        core.wait(step)
        waited += step
        assert waited <= 30 * MS, "the quantum of a is long over"


# --- the successor (D5) --------------------------------------------------------------------------------------


def test_the_successor_is_known_while_a_turn_is_recalled_and_gets_it(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    assert core.scheduler.successor(JobId("a")) is None, "nobody is to run instead of it yet"
    core.tick(100 * MS)
    successor = core.scheduler.successor(JobId("a"))
    assert successor is not None and successor.job == "b"
    assert core.give_back("a") == [successor]
    assert core.scheduler.successor(JobId("a")) is None
    assert core.scheduler.successor(JobId("b")) is None


def test_a_successor_that_ends_is_replaced_and_a_better_one_goes_before_it(make_core: MakeCore) -> None:
    core = make_core("priority")
    core.settle_in("low", KNOWN)
    core.submit_known("middle", KNOWN, priority=1)
    core.ask("middle")
    core.submit_known("high", KNOWN, priority=2)
    core.ask("high")
    successor = core.scheduler.successor(JobId("low"))
    assert successor is not None and successor.job == "high"
    core.exit("high")
    successor = core.scheduler.successor(JobId("low"))
    assert successor is not None and successor.job == "middle"
    core.exit("middle")
    assert core.scheduler.successor(JobId("low")) is None
    assert only(core.give_back("low"), GrantLease)[0].job == "low", "there is nobody else left"


def test_with_several_lanes_nobody_is_promised_a_turn_beforehand(make_core: MakeCore) -> None:
    core = make_core("pack")
    core.settle_in("a", KNOWN)
    core.submit("new")
    core.ask("new")
    assert core.scheduler.successor(JobId("a")) is None
