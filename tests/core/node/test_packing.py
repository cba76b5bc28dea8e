"""Pack: jobs side by side while that is faster than taking turns."""

from __future__ import annotations

import pytest

from carpool.core.kernel.ids import JobId
from carpool.core.node.effects import GrantLease, RecallLease
from carpool.core.node.model import JobState
from carpool.units import GIB, MS, SECOND
from tests.core.node.driver import STEP, CoreDriver, MakeCore, needs, only

SMALL = needs(GIB, GIB)


@pytest.fixture
def core(make_core: MakeCore) -> CoreDriver:
    return make_core("pack")


def measured(core: CoreDriver, job: str, *, step_ns: int = STEP) -> None:
    """Let a newcomer have its first turns alone, so that its step time alone is known."""
    core.submit(job, cap_bytes=2 * GIB)
    core.ask(job)
    while core.holders() != [job]:
        core.give_back(core.holders()[0])
    core.wait(step_ns)
    core.measure(job, SMALL, step_ns=step_ns)


def run_at(core: CoreDriver, steps_ns: dict[str, int], rounds: int) -> None:
    """Holders make steps at these times each; nobody but them is recalled."""
    for _ in range(rounds):
        core.wait(100 * MS)
        for job in core.holders():
            core.report(job, steps=core.steps.get(job, 0) + 100 * MS // steps_ns[job], cpu_ns=core.now)
        core.tick()
        for job in list(core.recalled):
            core.give_back(job)


def test_jobs_run_side_by_side_each_in_a_lane_of_its_own(core: CoreDriver) -> None:
    for job in "abc":
        core.settle_in(job, SMALL)
    assert core.lanes() == [{"a"}, {"b"}, {"c"}]
    assert core.holders() == ["a", "b", "c"]
    assert core.scheduler.next_wakeup() is None


def test_no_more_than_four_run_at_a_time_and_the_fifth_shares_a_lane(core: CoreDriver) -> None:
    for job in "abcde":
        core.settle_in(job, SMALL)
    assert len(core.lanes()) == 4
    assert len(core.holders()) == 4
    assert core.state("e") is JobState.WAITING
    core.run(10 * SECOND)
    assert core.served_ns("e") > SECOND


def test_jobs_that_do_not_fit_side_by_side_share_a_lane(core: CoreDriver) -> None:
    core.settle_in("a", needs(GIB, 8 * GIB))
    core.settle_in("b", needs(GIB, 8 * GIB))
    assert core.lanes() == [{"a", "b"}]
    core.run(10 * SECOND)
    assert core.served_ns("a") == pytest.approx(core.served_ns("b"), rel=0.1)


def test_a_job_that_shares_a_lane_gets_its_own_when_there_is_room(core: CoreDriver) -> None:
    core.settle_in("a", needs(GIB, 5 * GIB))
    core.settle_in("b", needs(GIB, 5 * GIB))
    core.settle_in("c", needs(GIB, 5 * GIB))
    assert len(core.lanes()) == 2
    assert only(core.exit("a"), GrantLease)
    assert sorted(core.holders()) == ["b", "c"]
    assert len(core.lanes()) == 2


def test_a_pair_that_does_not_disturb_each_other_stays_packed(core: CoreDriver) -> None:
    measured(core, "a")
    measured(core, "b")
    assert sorted(core.holders()) == ["a", "b"]
    run_at(core, {"a": 11 * MS, "b": 11 * MS}, rounds=50)
    assert core.lanes() == [{"a"}, {"b"}]
    assert only(core.effects, RecallLease)[1:] == [], "but for the first turns nobody was recalled"


def test_a_pair_that_is_slower_together_is_merged_and_takes_turns(core: CoreDriver) -> None:
    measured(core, "a")
    measured(core, "b")
    run_at(core, {"a": 25 * MS, "b": 25 * MS}, rounds=3)
    recall = RecallLease(job=JobId("b"), reason="it is slower beside its neighbour than in turns")
    assert core.effects.count(recall) == 1
    assert core.lanes() == [{"a", "b"}]
    assert len(core.holders()) == 1


def test_a_pair_that_was_merged_is_not_packed_again(core: CoreDriver) -> None:
    measured(core, "a")
    measured(core, "b")
    run_at(core, {"a": 25 * MS, "b": 25 * MS}, rounds=3)
    turns_before = len(core.turns)
    for _ in range(20):
        run_at(core, {"a": 10 * MS, "b": 10 * MS}, rounds=3)
        assert core.lanes() == [{"a", "b"}]
        assert len(core.holders()) == 1
    assert len(core.turns) > turns_before + 5, "they take turns"


def test_a_job_that_comes_back_to_its_turns_is_still_kept_apart(core: CoreDriver) -> None:
    measured(core, "a")
    measured(core, "b")
    run_at(core, {"a": 25 * MS, "b": 25 * MS}, rounds=3)
    core.detach("b")
    core.ask("b")
    assert core.lanes() == [{"a", "b"}]


def test_a_third_job_may_run_beside_a_pair_that_takes_turns(core: CoreDriver) -> None:
    measured(core, "a")
    measured(core, "b")
    run_at(core, {"a": 25 * MS, "b": 25 * MS}, rounds=3)
    measured(core, "c")
    assert {"c"} in core.lanes()
    assert {"a", "b"} in core.lanes()
    assert len(core.holders()) == 2


def test_a_pair_whose_bad_side_is_one_sided_is_judged_by_the_sum(core: CoreDriver) -> None:
    """One job at full speed and the other at a third: 133 % of taking turns, so they stay."""
    measured(core, "a")
    measured(core, "b")
    run_at(core, {"a": 10 * MS, "b": 30 * MS}, rounds=20)
    assert core.lanes() == [{"a"}, {"b"}]


def test_a_pair_is_not_judged_before_both_were_seen_alone(core: CoreDriver) -> None:
    core.settle_in("a", SMALL)
    core.settle_in("b", SMALL)
    run_at(core, {"a": 50 * MS, "b": 50 * MS}, rounds=10)
    assert core.lanes() == [{"a"}, {"b"}], "nothing says that they would be faster in turns"
