"""Turns that nobody uses: they are not charged (A6), and whoever gives them back early goes first again (D7)."""

from __future__ import annotations

import pytest

from carpool.core.kernel.ids import JobId
from carpool.core.node.effects import GrantLease, RecallLease
from carpool.core.node.events import ProgressSeen
from carpool.units import GIB, MS, SECOND
from tests.core.node.driver import CoreDriver, MakeCore, needs, only

KNOWN = needs(GIB, GIB)


def seen(core: CoreDriver, job: str, *, stall_held_ns: int = 0, pause_ns: int = 0) -> None:
    core.send(
        ProgressSeen(
            job=JobId(job),
            steps=core.steps.get(job, 0),
            cpu_ns=0,
            live_bytes=0,
            stall_ns=stall_held_ns,
            stall_held_ns=stall_held_ns,
            pause_ns=pause_ns,
        )
    )


def test_a6_time_with_a_turn_and_nothing_done_is_a_row_of_its_own_and_no_service(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    before = core.served_ns("a")
    core.now += 10 * SECOND
    seen(core, "a", pause_ns=7 * SECOND, stall_held_ns=2 * SECOND)
    seen(core, "a", pause_ns=7 * SECOND, stall_held_ns=2 * SECOND)  # totals: the same is not taken off twice
    assert core.served_ns("a") - before == SECOND
    spent = core.job("a").spent_ns
    assert (spent["unused"], spent["input"]) == (7 * SECOND, 2 * SECOND)
    assert sum(spent.values()) == core.now - core.job("a").arrived_ns


def test_a6_a_turn_that_was_taken_idle_is_charged_for_what_was_done_in_it(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    before = core.served_ns("a")
    core.now += SECOND
    core.give_back("a", wants_more=False, idle_ns=900 * MS)
    seen(core, "a", pause_ns=900 * MS)  # the page says the same later
    assert core.served_ns("a") - before == 100 * MS


def test_a6_a_newcomer_is_not_held_to_the_level_of_an_idle_turn(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.now += 10 * SECOND
    core.give_back("a", wants_more=False, idle_ns=10 * SECOND)
    core.settle_in("b", KNOWN)
    core.now += 50 * MS
    core.ask("a")
    assert core.recalled == ["b"], "b has had more than a"


@pytest.mark.parametrize("policy", ["fair", "priority", "las"])
def test_d7_who_gave_its_turn_back_early_does_not_wait_for_a_quantum(make_core: MakeCore, policy: str) -> None:
    core = make_core(policy=policy)
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    core.give_back("a", wants_more=False)
    assert core.holders() == ["b"]
    core.now += 20 * MS
    effects = core.ask("a")
    assert [each.job for each in only(effects, RecallLease)] == ["b"], "long before its 100 ms"
    assert [each.job for each in only(core.give_back("b"), GrantLease)] == ["a"]
    core.now += 20 * MS
    core.tick()
    assert core.holders() == ["a"], "b was recalled, and waits for a quantum as before"


def test_d7_who_wanted_more_waits_for_the_quantum(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    core.tick(100 * MS)
    core.give_back("a")
    core.tick(50 * MS)
    assert core.holders() == ["b"] and core.recalled == []


def test_d7_an_early_job_that_is_ahead_of_its_share_waits_until_it_is_not(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    core.now += 90 * MS
    core.give_back("a", wants_more=False)
    core.now += 10 * MS
    assert not only(core.ask("a"), RecallLease), "it has had 80 ms more"
    while not core.recalled:
        wake = core.scheduler.next_wakeup()
        assert wake is not None
        core.now = wake
        core.tick()
    assert 0 <= core.served_ns("b") - core.served_ns("a") < 40 * MS


def test_explain_says_why_an_early_job_goes_first(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    core.give_back("a", wants_more=False)
    core.now += 20 * MS
    recalls = only(core.ask("a"), RecallLease)
    assert "a gave its last turn back early" in recalls[0].reason or "behind its share" in recalls[0].reason
