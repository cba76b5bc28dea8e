"""Cordoned and drained nodes and cards: nobody new comes, those that are there stay or leave at a boundary."""

from __future__ import annotations

import pytest

from carpool.core.cluster.inventory import CardInventory
from carpool.core.cluster.model import ClusterSettings, State
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.placer import Placer
from carpool.core.cluster.placement.requests import CardSpec, NodeSpec, Request, node_of
from carpool.core.cluster.placement.rules import make_rule
from carpool.core.cluster.placer_inventory import PlacerInventory
from carpool.core.cluster.scheduler import ClusterScheduler
from carpool.core.policies.fifo import Fifo
from tests.core.cluster.desk import Desk

SLOW = ClusterSettings(parks_at_once=False)


@pytest.fixture(params=["counted", "placed"])
def desk(request: pytest.FixtureRequest) -> Desk:
    """Two nodes of two cards, in both kinds of inventories."""
    return make_desk(request.param, ClusterSettings())


def make_desk(kind: str, settings: ClusterSettings) -> Desk:
    nodes = [NodeSpec(name="n0", cards=2), NodeSpec(name="n1", cards=2)]
    desk = Desk("fifo")
    counted = CardInventory(nodes)
    placed = PlacerInventory(Placer(Fleet(nodes), make_rule("best_fit")))
    desk.scheduler = ClusterScheduler(counted if kind == "counted" else placed, Fifo(), settings)
    return desk


def test_f8_nobody_new_comes_to_a_cordoned_node_and_who_is_there_stays(desk: Desk) -> None:
    assert desk.come("a", 1) == ["place a 0:0"]
    assert desk.cordon("n0") == []
    assert desk.come("b", 1) == ["place b 1:0"]
    assert desk.come("c", 2) == []
    assert desk.state("a") is State.RUNNING
    assert desk.uncordon("n0") == ["park a for c", "place c 0:0,1", "place a 1:1"]


def test_f8_one_card_may_be_cordoned(desk: Desk) -> None:
    desk.cordon("n0", "n0/0")
    assert desk.come("a", 1) == ["place a 0:1"]
    assert desk.come("b", 2) == ["place b 1:0,1"]
    assert desk.come("c", 1) == []
    assert desk.uncordon("n0", "n0/0", at=1) == ["place c 0:0"]


def test_a_job_that_would_fit_but_for_a_cordon_waits_and_is_not_refused(desk: Desk) -> None:
    desk.cordon("n0")
    desk.cordon("n1")
    assert desk.come("a", 2, 2) == []
    assert desk.state("a") is State.WAITING
    desk.uncordon("n1")
    assert desk.uncordon("n0", at=1) == ["place a 0:0,1 1:0,1"]


def test_while_a_node_is_cordoned_the_order_holds_on_the_others(desk: Desk) -> None:
    """A wide job does not push out smaller ones that came before it, for cards it cannot have."""
    desk.come("a", 1)
    desk.come("b", 1)
    desk.cordon("n1")
    assert desk.come("wide", 2, at=1) == []
    assert desk.end("a", at=2) == []
    assert desk.end("b", at=3) == ["place wide 0:0,1"]


def test_drained_jobs_go_on_elsewhere_and_wait_if_there_is_no_room(desk: Desk) -> None:
    desk.come("a", 2)
    assert desk.drain("n0", at=1) == ["park a for node n0 is drained", "place a 1:0,1"]
    assert desk.drain("n1", at=2) == ["park a for node n1 is drained"]
    assert desk.uncordon("n1", at=3) == ["place a 1:0,1"]


def test_of_a_drained_card_only_its_jobs_leave(desk: Desk) -> None:
    desk.come("a", 1)
    desk.come("b", 1)
    assert desk.drain("n0", "n0/1", at=1) == ["park b for card n0/1 of node n0 is drained", "place b 1:0"]
    assert desk.come("c", 2, at=2) == []
    assert desk.end("a", at=3) == ["park b for c", "place c 1:0,1", "place b 0:0"]


@pytest.mark.parametrize("kind", ["counted", "placed"])
def test_a_drain_waits_for_the_boundary_and_has_a_deadline_if_one_is_asked_for(kind: str) -> None:
    desk = make_desk(kind, SLOW)
    desk.come("a", 2)
    assert desk.drain("n0", at=1) == ["park a for node n0 is drained"]
    assert desk.state("a") is State.LEAVING
    assert desk.scheduler.next_wakeup() is None
    assert desk.parked("a", at=900) == ["place a 1:0,1"]
    assert desk.drain("n1", by=1000, at=901) == ["park a for node n1 is drained"]
    assert desk.tick() == (1000, ["revoke a"])
    assert desk.uncordon("n0", at=1001) == ["place a 0:0,1"]


def test_a_drain_with_a_deadline_later_hurries_those_who_have_none() -> None:
    desk = make_desk("counted", SLOW)
    desk.come("a", 2)
    desk.drain("n0", at=1)
    assert desk.drain("n0", by=50, at=2) == []
    assert desk.tick() == (50, ["revoke a", "place a 1:0,1"])


def test_cards_that_are_uncordoned_while_a_drained_job_leaves_them_are_free_within_the_deadline() -> None:
    desk = make_desk("counted", SLOW)
    desk.come("a", 2)
    desk.come("b", 2)
    desk.drain("n0", at=1)
    said = desk.uncordon("n0", at=2)
    assert said == ["park a for its cards may be given to others again"]
    assert desk.scheduler.next_wakeup() == 62_000_000_000
    assert desk.come("c", 2, at=3) == []
    assert desk.state("c") is State.COMING
    assert desk.end("a", at=4) == ["lend c 0:0,1"]


def test_shares_count_for_their_part_while_a_node_is_cordoned(desk: Desk) -> None:
    """O7: what is cordoned and idle is not there for anybody; what is in use there counts."""
    desk.share("a", 2)
    desk.share("b", 2)
    desk.cordon("n1")
    desk.come("a1", 1, tenant="a", at=1)
    desk.come("a2", 1, tenant="a", at=1)
    assert desk.come("b1", 1, tenant="b", at=2) == ["park a2 for b1", "place b1 0:1"]
    assert desk.uncordon("n1", at=3) == ["place a2 1:0"]


def test_guests_leave_with_their_host() -> None:
    desk = Desk("pack", nodes=2, cards=1)
    desk.come("x", program="a")
    desk.come("y", program="b")
    desk.come("z", program="c", at=1)
    host = "x" if desk.state("z") is State.RIDING else ""
    assert host
    said = desk.drain("n0", at=2)
    assert "park x for node n0 is drained" in said
    assert all(desk.state(job) in (State.RUNNING, State.RIDING) for job in "xyz")


@pytest.mark.parametrize("card", [None, "n0/0"])
def test_what_is_cordoned_or_drained_already_is_rejected_in_words(desk: Desk, card: str | None) -> None:
    what = "node n0" if card is None else "card n0/0 of node n0"
    assert desk.uncordon("n0", card) == [f"reject NodeUncordoned: {what} is not cordoned"]
    desk.cordon("n0", card)
    assert desk.cordon("n0", card) == [f"reject NodeCordoned: {what} is cordoned already"]
    assert desk.drain("n0", card) == []
    assert desk.drain("n0", card) == [f"reject NodeDrained: {what} is drained already"]
    assert desk.cordon("n7") == ["reject NodeCordoned: there is no node n7"]
    assert desk.cordon("n0", "x") == ["reject NodeCordoned: node n0 has no card x; it has n0/0, n0/1"]


def test_a_node_that_goes_and_comes_back_is_not_cordoned_unless_it_says_so(desk: Desk) -> None:
    desk.cordon("n0")
    desk.lose_node("n0")
    desk.add_node("n0", 2)
    assert desk.come("a", 2) == ["place a 0:0,1"]


def test_requests_for_no_cards_keep_off_a_cordoned_node_too() -> None:
    fleet = Fleet([NodeSpec(name="n", cards=0, cpu_milli=4), NodeSpec(name="m", cards=1, cpu_milli=4)])
    placer = Placer(fleet, make_rule("best_fit"))
    request = Request(cards=0, card_milli=0, cpu_milli=1)
    fleet.close(0)
    place = placer.place(request)
    assert place is not None
    assert place.node == 1
    fleet.close(1)
    assert placer.place(request) is None
    fleet.check_invariants()


def test_cards_have_the_names_they_came_with() -> None:
    cards = (CardSpec(id="GPU-aa"), CardSpec(id="GPU-bb"))
    desk = Desk("fifo")
    desk.scheduler = ClusterScheduler(CardInventory([node_of("rack7", cards)]), Fifo())
    assert desk.come("a", 1) == ["place a rack7:GPU-aa"]
    assert desk.drain("rack7", "GPU-aa", at=1) == [
        "park a for card GPU-aa of node rack7 is drained",
        "place a rack7:GPU-bb",
    ]


def test_a_job_that_was_to_have_cards_of_a_drained_node_has_no_place_there_any_more() -> None:
    """A picture named cards of a node that was gone by then, and broke off."""
    desk = Desk("priority", nodes=1, cards=1, settings=SLOW)
    assert desk.come("first", 1) == ["place first 0:0"]
    assert desk.come("x", 1, priority=9) == ["park first for x"]
    assert desk.state("x") is State.COMING
    desk.drain("n0", at=2)
    desk.lose_node("n0", at=3)
    picture = desk.scheduler.picture(now=desk.now)
    assert [(str(job.id), job.state, job.places) for job in picture.jobs] == [
        ("first", State.WAITING, ()),
        ("x", State.WAITING, ()),
    ]
