"""Departures: why a job leaves its device or may have no turn (the table in moves/departures.py)."""

from __future__ import annotations

import ast

import pytest

from carpool.core.kernel.ids import JobId
from carpool.core.node.effects import ParkJob, RecallLease
from carpool.core.node.model import ASKED_FOR, HELD_ONLY, Departure, Job, JobSpec, JobState, Why
from carpool.core.node.moves import departures
from carpool.core.node.moves.departures import TABLE, first
from carpool.testing.house.imports import PACKAGE
from carpool.units import GIB
from tests.core.node.driver import CoreDriver, MakeCore, needs, only

SMALL = needs(GIB, GIB)
NODE = PACKAGE / "core" / "node"


def set_in() -> dict[str, set[str]]:
    """The departures that are set by their names, with the modules that do."""
    found: dict[str, set[str]] = {}
    for path in sorted(NODE.rglob("*.py")):
        module = path.relative_to(NODE).with_suffix("").as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) in ("departures.add", "add", "_hold")
                and len(node.args) > 2
            ):
                if isinstance(node.args[2], ast.Name):
                    continue  # passed on: set by whoever named it
                found.setdefault(ast.unparse(node.args[2]).removeprefix("Why."), set()).add(module)
    return found


def test_every_reason_has_its_row_and_its_words() -> None:
    assert set(TABLE) == set(Why)
    assert [why for why, row in TABLE.items() if not row.comes_back or not row.set_by] == []


def test_e1_a_job_with_a_departure_gets_no_turn_and_leaves_at_its_boundary(core: CoreDriver) -> None:
    core.settle_in("a", SMALL)
    core.settle_in("b", SMALL)
    assert core.holders() == ["a"]
    assert [each.job for each in only(core.suspend("a"), RecallLease)] == ["a"]
    effects = core.give_back("a")
    assert [each.job for each in only(effects, ParkJob)] == ["a"]
    assert core.holders() == ["b"]


@pytest.mark.parametrize("why", sorted(set_in()))
def test_e2_a_departure_is_set_only_where_its_row_says(why: str) -> None:
    known = {each.name: row for each, row in TABLE.items()}
    if why in known:  # a name that is computed is looked at where it is computed
        assert set_in()[why] <= set(known[why].set_by), f"{why} is set in {set_in()[why]}"


def test_e2_is_looked_at_for_the_reasons_that_users_and_hogs_set() -> None:
    assert {"SUSPENDED", "SENT_AWAY", "GIVES_WAY"} <= set(set_in())


def test_e2_a_job_that_is_over_has_no_departure(core: CoreDriver) -> None:
    core.settle_in("a", SMALL)
    core.suspend("a")
    core.exit("a")
    assert core.state("a") is JobState.FINISHED
    core.scheduler.check_invariants()


def test_e3_of_several_departures_the_first_of_the_table_is_told() -> None:
    """Whichever came first: being suspended is told before all others, because its user can end it."""
    for order in ((Why.TOO_LARGE, Why.SUSPENDED), (Why.SUSPENDED, Why.TOO_LARGE)):
        job = Job(id=JobId("a"), spec=JobSpec(name="a"), arrived_ns=0)
        job.departures = {why: Departure(since_ns=0) for why in order}
        told = first(job)
        assert told is not None and told[0] is TABLE[Why.SUSPENDED]


def test_the_order_of_the_reasons_is_the_order_of_the_rows() -> None:
    assert list(TABLE) == list(Why)


def test_e1_reasons_for_which_a_queued_job_does_not_start_are_known_to_the_node() -> None:
    assert {why for why, row in TABLE.items() if row.queued is not None} == ASKED_FOR


@pytest.mark.parametrize("why", [why for why in TABLE if why not in HELD_ONLY | {Why.MIGRATES}])
def test_every_reason_to_leave_is_explained_and_ends_with_the_job(core: CoreDriver, why: Why) -> None:
    core.settle_in("a", SMALL)
    core.settle_in("b", SMALL)
    node = core.scheduler._node
    for name, ending in (("b", core.exit), ("a", core.detach)):
        job = node.jobs[JobId(name)]
        departures.add(node, job, why, Departure(whom=JobId("c")))
        assert core.job(name).reason, "it says something while it is to leave"
        assert TABLE[why].held(job, job.departures[why]).startswith(name)
        ending(name)
        assert not job.departures


@pytest.mark.parametrize("why", [Why.SUSPENDED, Why.TOO_LARGE])
def test_a_parked_job_that_stays_away_migrates_as_it_is(make_core: MakeCore, why: Why) -> None:
    """It was brought back to the other device first, and parked there again."""
    core = make_core(devices=2)
    core.settle_in("a", SMALL)
    node = core.scheduler._node
    departures.add(node, node.jobs[JobId("a")], why, Departure())
    core.give_back("a")
    core.parked("a", GIB)
    assert core.state("a") is JobState.PARKED
    effects = core.migrate("a", "gpu1")
    assert [type(effect).__name__ for effect in effects] == ["MoveJob"]
    assert core.state("a") is JobState.PARKED
