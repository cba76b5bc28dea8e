"""Why a job waits: one true sentence with numbers, said when the reason changes; and pictures of everything."""

from __future__ import annotations

import pytest

from carpool.core.cluster.events import JobArrived
from carpool.core.cluster.model import ClusterSettings, State
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.placer import Placer
from carpool.core.cluster.placement.requests import NodeSpec, Request
from carpool.core.cluster.placement.rules import make_rule
from carpool.core.cluster.placer_inventory import PlacerInventory
from carpool.core.cluster.scheduler import ClusterScheduler
from carpool.core.kernel.ids import JobId
from carpool.core.policies.fifo import Fifo
from carpool.units import GIB
from tests.core.cluster.desk import Desk

EXPLAINS = ClusterSettings(explains=True)


def test_cards_that_are_missing_are_counted_node_by_node() -> None:
    desk = Desk("fifo", nodes=3, cards=2, settings=EXPLAINS)
    desk.come("a", 2)
    desk.come("b", 1)
    desk.cordon("n2")
    assert desk.come("c", 2) == [
        "c waits: it wants 2 whole cards of one node; of 3 nodes 1 is cordoned, "
        "2 have too few free cards (at most 1, on n1); 3 of 4 cards are in use"
    ]


def test_a_reason_is_said_again_only_when_it_changes_not_when_its_numbers_do() -> None:
    desk = Desk("fifo", nodes=1, cards=3, settings=EXPLAINS)
    for name in "ab":
        desk.come(name, 1)
    assert len(desk.come("wide", 3)) == 1
    assert desk.end("a", at=1) == []
    assert desk.cordon("n0", "n0/0", at=2) == []
    said = desk.end("b", at=3)
    assert len(said) == 1
    assert "of 1 node 1 is cordoned" in said[0]


def test_who_stands_behind_others_that_want_the_same_is_told_so() -> None:
    desk = Desk("fifo", nodes=1, cards=1, settings=EXPLAINS)
    desk.come("a")
    desk.come("b")
    assert desk.come("c")[0].startswith("c waits: job b goes before it and wants the same; of the first: it wants 1")
    assert desk.come("d")[0].startswith("d waits: 2 jobs go before it and want the same; of the first: it wants 1")
    said = desk.end("a", at=1)
    assert said[:1] == ["place b 0:0"]
    assert said[1].startswith("c waits: it wants 1 whole card of one node")
    assert len(said) == 2, "the others wait for the same as before"


def test_shares_are_named_with_what_is_used_of_them() -> None:
    desk = Desk("fifo", nodes=1, cards=2, settings=EXPLAINS, a=1, b=1)
    desk.come("a1", 1, tenant="a")
    desk.come("b1", 1, tenant="b")
    assert desk.come("a2", 1, tenant="a")[0].endswith("tenant a has 1 of its 1 cards in use")
    assert desk.come("a3", 2, tenant="a")[0].endswith("its 2 cards are more than the 1 that tenant a owns")


def test_a_job_that_gets_no_loan_is_told_why() -> None:
    desk = Desk("fifo", nodes=1, cards=2, settings=EXPLAINS, a=1)
    desk.come("a1", 1, tenant="a")
    assert desk.come("a2", 1, tenant="a", turn=90) == [
        "a2 waits: there is room; tenant a has 1 of its 1 cards in use; "
        "it gets no loan: it may go 1 min 30 s without a boundary, and 1 min 0 s is the most"
    ]


def test_a_gang_is_told_which_member_finds_no_room() -> None:
    desk = Desk("fifo", nodes=2, cards=2, settings=EXPLAINS)
    desk.come("a", 1)
    desk.come("b", 2)
    assert desk.come("g", 1, 2)[0].startswith("g waits: its 2 members start together; member 2 wants 2 whole cards")


def test_it_is_said_for_whom_room_is_made() -> None:
    settings = ClusterSettings(explains=True, parks_at_once=False)
    desk = Desk("priority", nodes=1, cards=1, settings=settings)
    desk.come("x")
    desk.come("y", priority=9)
    assert desk.come("z")[0].endswith("room is being made for job y on n0/0 of n0")
    said = {str(job.id): job.reason for job in desk.scheduler.picture(now=0).jobs}
    assert said["x"] == "it leaves n0/0 of n0 at its next boundary, in 1 min 0 s at most"
    assert said["y"] == "it gets n0/0 of n0 as soon as x has left"


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        (Request(cards=1, card_milli=1000, models=frozenset({"H100"})), "has no card of an allowed model"),
        (Request(cards=1, card_milli=600), "has too few free cards"),
        (Request(cards=1, card_milli=1, card_bytes=9 * GIB), "has too little memory left on its cards"),
        (Request(cards=1, card_milli=1, card_bytes=1, cpu_milli=7), "has too little CPU left"),
        (Request(cards=1, card_milli=1, card_bytes=1, memory_bytes=9), "has too little host memory left"),
        (Request(cards=1, card_milli=1, card_bytes=1, exclusion="x"), "has company that its labels forbid"),
        (Request(cards=0, card_milli=0, cpu_milli=7), "has too little CPU left"),
        (Request(cards=1, card_milli=1, avoids=frozenset({"n"})), "refused it"),
    ],
)
def test_every_lack_has_its_words(request_: Request, word: str) -> None:
    nodes = [NodeSpec(name="n", cards=1, model="T4", card_bytes=16 * GIB, cpu_milli=8, memory_bytes=16)]
    large = NodeSpec(name="m", cards=1, model="H100", card_bytes=99 * GIB, cpu_milli=99, memory_bytes=99)
    desk = Desk("fifo")
    inventory = PlacerInventory(Placer(Fleet([*nodes, large]), make_rule("best_fit")))
    desk.scheduler = ClusterScheduler(inventory, Fifo(), EXPLAINS)
    desk.cordon("m")
    half = Request(cards=1, card_milli=500, card_bytes=8 * GIB, cpu_milli=4, memory_bytes=8)
    desk.tell(JobArrived(job=JobId("first"), members=(half,)))
    said = desk.tell(JobArrived(job=JobId("x"), members=(request_,)))
    assert len(said) == 1
    assert word in said[0]
    assert "1 is cordoned" in said[0]


def test_nothing_is_explained_unless_that_was_asked_for_but_a_picture_always_says() -> None:
    desk = Desk("fifo", cards=1)
    desk.come("a")
    assert desk.come("b") == []
    picture = desk.scheduler.picture_job(JobId("b"), now=0)
    assert picture is not None
    assert picture.reason.startswith("it wants 1 whole card of one node; of 1 node 1 has too few free cards")
    assert desk.scheduler.picture_job(JobId("c"), now=0) is None


def test_while_facts_are_told_jobs_wait_for_that() -> None:
    desk = Desk("fifo", cards=1)
    desk.begin_sync()
    desk.come("a")
    picture = desk.scheduler.picture_job(JobId("a"), now=0)
    assert picture is not None
    assert picture.reason == "nothing is decided until all that runs has been told"


def test_a_picture_shows_nodes_cards_tenants_and_jobs_by_name() -> None:
    desk = Desk("fifo", nodes=2, cards=2, a=1, b=2)
    desk.come("a1", 1, tenant="a")
    desk.come("a2", 1, tenant="a")
    desk.drain("n1", "n1/1")
    desk.find("b1", "n9:GPU-x", tenant="b")
    picture = desk.scheduler.picture(now=5_000_000_000)
    assert [(node.name, node.is_expected) for node in picture.nodes] == [("n0", False), ("n1", False), ("n9", True)]
    shown = [(card.id, card.is_cordoned, card.is_drained, card.jobs) for node in picture.nodes for card in node.cards]
    assert shown == [
        ("n0/0", False, False, ("a1",)),
        ("n0/1", False, False, ("a2",)),
        ("n1/0", False, False, ()),
        ("n1/1", True, True, ()),
        ("GPU-x", True, False, ("b1",)),
    ]
    tenants = {each.tenant: (each.given_milli, each.owned_milli, each.loans_milli) for each in picture.tenants}
    assert tenants == {"a": (1000, 1000, 1000), "b": (2000, 1000, 0)}
    jobs = {str(job.id): (job.state, job.is_loan, job.attained_ns, job.places[0].cards) for job in picture.jobs}
    assert jobs["a1"] == (State.RUNNING, False, 5_000_000_000, ("n0/0",))
    assert jobs["a2"] == (State.RUNNING, True, 5_000_000_000, ("n0/1",))
    assert {job.reason for job in picture.jobs if job.id == "a2"} == {
        "it runs on n0/1 of n0, as a loan: who owns the cards may want them back"
    }


def test_looking_changes_nothing() -> None:
    desks = [Desk("fifo", nodes=2, cards=2) for _ in range(2)]
    for number in range(12):
        said = [desk.come(f"j{number}", 1 + number % 3 % 2, at=number) for desk in desks]
        assert said[0] == said[1]
        desks[0].scheduler.picture(now=desks[0].now)
