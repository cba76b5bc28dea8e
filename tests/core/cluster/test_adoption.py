"""A restarted scheduler is told what runs where: facts, also where they do not fit, in any order."""

from __future__ import annotations

from itertools import permutations

import pytest

from carpool.core.cluster.events import JobFound
from carpool.core.cluster.inventory import CardInventory
from carpool.core.cluster.model import ClusterSettings, State
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.placer import Placer
from carpool.core.cluster.placement.requests import NodeSpec, Place, Request
from carpool.core.cluster.placement.rules import make_rule
from carpool.core.cluster.placer_inventory import PlacerInventory
from carpool.core.cluster.scheduler import ClusterScheduler
from carpool.core.kernel.ids import JobId
from carpool.core.policies.fifo import Fifo
from tests.core.cluster.desk import Desk


@pytest.fixture(params=["counted", "placed"])
def desk(request: pytest.FixtureRequest) -> Desk:
    """A cluster of which nothing is known yet, in both kinds of inventories."""
    desk = Desk("fifo")
    empty = PlacerInventory(Placer(Fleet([]), make_rule("best_fit")))
    inventory = CardInventory([]) if request.param == "counted" else empty
    desk.scheduler = ClusterScheduler(inventory, Fifo())
    desk.begin_sync()
    return desk


@pytest.mark.parametrize("order", [*permutations(("node", "found", "waiting"))])
def test_facts_may_come_in_any_order(order: tuple[str, ...], desk: Desk) -> None:
    for fact in order:
        if fact == "node":
            assert desk.add_node("n0", 2) == []
        elif fact == "found":
            assert desk.find("a", "n0:1") == []
        else:
            assert desk.come("b", 1) == []
    assert desk.end_sync() == ["place b 0:0"]
    assert desk.come("c", 1, at=1) == []
    assert desk.end("a", at=2) == ["place c 0:1"]


def test_nothing_is_decided_before_everything_was_told(desk: Desk) -> None:
    desk.add_node("n0", 2)
    assert desk.come("b", 2) == []
    assert desk.find("a", "n0:0,1") == []
    assert desk.end_sync() == []
    assert desk.state("a") is State.RUNNING
    assert desk.end("a", at=1) == ["place b 0:0,1"]


def test_a_job_that_waited_may_turn_out_to_run(desk: Desk) -> None:
    desk.come("a", 2)
    desk.add_node("n0", 2)
    assert desk.find("a", "n0:0,1") == []
    assert desk.state("a") is State.RUNNING
    assert desk.find("a", "n0:0,1") == ["reject JobFound: the job is running already"]
    assert desk.end_sync() == []


def test_f9_two_jobs_on_one_card_are_counted_as_they_are_and_nobody_comes_until_both_have_left(desk: Desk) -> None:
    desk.add_node("n0", 1)
    desk.find("a", "n0:0")
    desk.find("b", "n0:0")
    desk.come("c", 1)
    assert desk.end_sync() == []
    assert desk.end("a", at=1) == []
    assert desk.end("b", at=2) == ["place c 0:0"]


def test_found_jobs_of_a_tenant_above_its_share_run_on_as_loans(desk: Desk) -> None:
    """O1 holds from the start: what does not fit into the share is a loan, and gives way as any other."""
    desk.find("a1", "n0:0", tenant="a")
    desk.find("a2", "n0:1", tenant="a")
    desk.share("a", 1)
    desk.add_node("n0", 2)
    desk.share("b", 1)
    assert desk.end_sync() == []
    assert desk.come("b1", 1, tenant="b", at=1) == ["park a2 for b1", "place b1 0:1"]


def test_a_job_that_waited_before_a_restart_is_not_refused_for_what_is_missing_now(desk: Desk) -> None:
    """A node or a share may come back; a newcomer would be refused."""
    desk.add_node("n0", 2)
    desk.come("x", tenant="b")
    desk.come("y", tenant="c")
    desk.share("a", 1)
    desk.share("b", 1)
    said = desk.end_sync()
    assert said == ["place x 0:0", "lend y 0:1"]
    assert desk.come("z", tenant="c", at=1)[0].startswith("refuse job z can never run: tenant c has no share")


def test_the_cards_of_a_node_that_has_not_come_are_kept(desk: Desk) -> None:
    """A gang of which one node is known: its cards there are its own, and the other node gets nobody."""
    desk.add_node("n0", 2)
    desk.find("gang", "n0:0", "n1:0")
    desk.end_sync()
    assert desk.come("a", 1, at=1) == ["place a 0:1"]
    assert desk.come("b", 1, at=1) == []
    assert desk.add_node("n1", 2, at=2) == ["place b 1:1"]
    assert desk.lose_node("n1", at=3) == ["revoke gang", "revoke b", "park a for gang", "place gang 0:0 0:1"]


def test_a_card_that_its_node_does_not_name_is_nobody_elses(desk: Desk) -> None:
    desk.find("a", "n0:GPU-x")
    desk.find("b", "n0:1")
    desk.add_node("n0", 2)
    desk.end_sync()
    assert desk.come("c", 2, at=1) == []
    assert desk.end("a", at=2) == []
    assert desk.end("b", at=3) == ["place c 0:0,1"]


def test_a_node_that_never_comes_is_forgotten_with_its_jobs_when_it_is_removed(desk: Desk) -> None:
    desk.add_node("n0", 1)
    desk.find("a", "n1:0")
    desk.end_sync()
    assert desk.lose_node("n1", at=1) == ["revoke a", "place a 0:0"]
    assert desk.lose_node("n1", at=2) == ["reject NodeRemoved: there is no node n1"]


def test_a_job_that_was_told_to_leave_still_leaves() -> None:
    desk = Desk("priority", nodes=1, cards=1, settings=ClusterSettings(parks_at_once=False))
    desk.begin_sync()
    desk.find("a", "n0:0", is_leaving=True)
    desk.come("b", 1, priority=9)
    assert desk.end_sync() == []
    assert (desk.state("a"), desk.state("b")) == (State.LEAVING, State.COMING)
    assert desk.parked("a", at=1) == ["place b 0:0"]


def test_guests_are_found_on_the_cards_of_their_hosts() -> None:
    desk = Desk("pack", cards=1)
    desk.begin_sync()
    desk.find("x", "n0:0", program="a")
    desk.find("y", "n0:0", program="b", host="x")
    assert desk.end_sync() == []
    assert desk.state("y") is State.RIDING
    assert desk.end("x", at=1) == ["leave y x", "place y 0:0"]


def test_what_a_job_had_before_counts() -> None:
    desk = Desk("las", cards=1)
    desk.begin_sync()
    desk.find("old", "n0:0", had=100_000)
    desk.come("new", 1)
    assert desk.end_sync() == []
    when, said = desk.tick()
    assert (when, said) == (1, ["park old for new", "place new 0:0"])


def test_the_decision_after_a_sync_moves_nobody_and_the_next_one_may() -> None:
    desk = Desk("priority", nodes=1, cards=1)
    desk.begin_sync()
    desk.find("low", "n0:0")
    desk.come("high", priority=9)
    assert desk.end_sync(at=10) == []
    assert desk.tick() == (11, ["park low for high", "place high 0:0"])


def test_while_facts_are_told_no_tick_is_wanted() -> None:
    desk = Desk("las", cards=1)
    desk.come("a", 1)
    assert desk.scheduler.next_wakeup() is not None
    desk.begin_sync()
    assert desk.scheduler.next_wakeup() is None
    assert desk.begin_sync() == ["reject SyncStarted: a sync has begun already"]
    desk.end_sync()
    assert desk.end_sync() == ["reject SyncFinished: no sync has begun"]
    assert desk.scheduler.next_wakeup() is not None


def test_a_job_found_where_it_cannot_be_is_rejected_in_words() -> None:
    desk = Desk("fifo")
    one = Request(cards=1, card_milli=1000)
    for places, reason in (
        ((), "it has 1 members at 0 places: one place for each"),
        ((Place(node="n0", cards=("x", "y")),), "2 cards of n0 for a member that has 1 different ones"),
    ):
        found = JobFound(job=JobId("a"), members=(one,), places=places)
        assert desk.tell(found) == [f"reject JobFound: {reason}"]
    desk.come("a", 2)
    assert desk.state("a") is State.RUNNING
    assert desk.find("a", "n0:0") == ["reject JobFound: the job is running already"]


def test_f9_shares_cpu_and_memory_above_a_node_are_counted_and_checked() -> None:
    fleet = Fleet([NodeSpec(name="n", cards=1, cpu_milli=4, card_bytes=8)])
    desk = Desk("fifo")
    desk.scheduler = ClusterScheduler(PlacerInventory(Placer(fleet, make_rule("best_fit"))), Fifo())
    half = Request(cards=1, card_milli=600, cpu_milli=3, card_bytes=6)
    for name in "ab":
        desk.tell(JobFound(job=JobId(name), members=(half,), places=(Place(node="n", cards=("n/0",)),)))
        fleet.check_invariants()
    assert fleet.free_milli == [[-200]]
    assert fleet.free_cpu_milli == [-2]
    assert desk.come("c", 1, at=1) == []
    desk.end("a", at=2)
    fleet.check_invariants()
    assert desk.end("b", at=3) == ["place c 0:0"]
    fleet.check_invariants()
