"""Gangs, loans and giving back: the contract of core/tenants.py rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from carpool.core.cluster.events import JobArrived, ShareGiven
from carpool.core.cluster.model import ClusterSettings, State
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.placer import Placer
from carpool.core.cluster.placement.requests import NodeSpec, Request
from carpool.core.cluster.placement.rules import make_rule
from carpool.core.cluster.placer_inventory import PlacerInventory
from carpool.core.cluster.scheduler import ClusterScheduler
from carpool.core.kernel.ids import JobId, TenantId
from carpool.policies import POLICIES
from carpool.units import SECOND
from tests.core.cluster.desk import Desk


def test_a_gang_gets_all_its_nodes_or_none() -> None:
    desk = Desk("fifo", nodes=3, cards=2)
    assert desk.come("a", 1) == ["place a 0:0"]
    assert desk.come("b", 2) == ["place b 1:0,1"]
    assert desk.come("gang", 2, 2, at=1) == []
    assert desk.state("gang") is State.WAITING
    assert desk.end("b", at=2) == ["place gang 1:0,1 2:0,1"]


def test_a_gang_moves_smaller_jobs_together_to_have_whole_nodes() -> None:
    desk = Desk("fifo", nodes=2, cards=2)
    desk.come("a", 1)
    desk.come("b", 1)
    desk.come("c", 1)
    desk.end("b", at=1)
    assert desk.come("pair", 2, at=2) == ["park a for pair", "place pair 0:0,1", "place a 1:1"]


def test_a_gang_that_waited_too_long_goes_before_all_others() -> None:
    desk = Desk("priority", nodes=2, cards=2, settings=ClusterSettings(gang_wait_ns=50 * SECOND))
    desk.come("a", 2, priority=5)
    desk.come("b", 2, priority=5)
    desk.come("gang", 2, 2, at=1)
    when, effects = desk.tick()
    assert when == 51
    assert effects[-1] == "place gang 1:0,1 0:0,1"
    assert {"park a for gang", "park b for gang"} <= set(effects)


def test_idle_shares_are_lent_and_given_back() -> None:
    desk = Desk("fifo", cards=4, a=2, b=2)
    assert desk.come("a1", 2, tenant="a") == ["place a1 0:0,1"]
    assert desk.come("a2", 2, tenant="a") == ["lend a2 0:2,3"]
    assert desk.come("b1", 1, tenant="b", at=5) == ["park a2 for b1", "place b1 0:2"]
    assert desk.end("b1", at=9) == ["lend a2 0:2,3"]


def test_a_loan_becomes_owned_where_it_stands_when_its_tenant_has_room() -> None:
    desk = Desk("fifo", cards=4, a=2, b=2)
    desk.come("a1", 2, tenant="a")
    desk.come("a2", 2, tenant="a")
    assert desk.end("a1", at=1) == []
    assert desk.come("b1", 2, tenant="b", at=2) == ["place b1 0:0,1"]


def test_o3_a_loan_never_evicts() -> None:
    desk = Desk("las", cards=4, a=2, b=2)
    desk.come("a1", 2, tenant="a")
    desk.come("a2", 2, tenant="a")
    assert desk.come("a3", 2, tenant="a", at=1) == []


def test_o4_the_tenant_furthest_above_its_share_gives_back_first() -> None:
    desk = Desk("fifo", cards=6, a=1, b=1, c=4)
    for name, tenant in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b"), ("b3", "b"), ("b4", "b")):
        desk.come(name, 1, tenant=tenant)
    assert desk.come("c1", 1, tenant="c", at=2) == ["park b4 for c1", "place c1 0:5"]
    assert desk.come("c2", 1, tenant="c", at=2) == ["park b3 for c2", "place c2 0:4"]


def test_o4_of_the_loans_of_one_tenant_the_one_that_had_least_goes_first() -> None:
    desk = Desk("fifo", cards=3, a=1, b=2)
    desk.come("a1", 1, tenant="a")
    desk.come("a2", 1, tenant="a", at=1)
    desk.come("a3", 1, tenant="a", at=2)
    assert desk.come("b1", 1, tenant="b", at=9) == ["park a3 for b1", "place b1 0:2"]


def test_o5_a_job_that_cannot_promise_a_boundary_in_time_gets_no_loan() -> None:
    settings = ClusterSettings(parks_at_once=False, deadline_ns=10 * SECOND)
    desk = Desk("fifo", cards=2, settings=settings, a=1, b=1)
    desk.come("a1", 1, tenant="a")
    assert desk.come("slow", 1, tenant="a", turn=11) == []
    assert desk.come("quick", 1, tenant="a", turn=10) == ["lend quick 0:1"]


def test_the_owner_begins_when_the_borrower_came_to_its_boundary() -> None:
    desk = Desk("fifo", cards=2, settings=ClusterSettings(parks_at_once=False), a=1, b=1)
    desk.come("a1", 1, tenant="a")
    desk.come("a2", 1, tenant="a", turn=8)
    assert desk.come("b1", 1, tenant="b", at=5) == ["park a2 for b1"]
    assert desk.state("b1") is State.COMING
    assert desk.parked("a2", at=9) == ["place b1 0:1"]


def test_a_coming_owner_that_ends_leaves_the_cards_to_the_borrower() -> None:
    desk = Desk("fifo", cards=2, settings=ClusterSettings(parks_at_once=False), a=1, b=1)
    desk.come("a1", 1, tenant="a")
    desk.come("a2", 1, tenant="a", turn=8)
    desk.come("b1", 1, tenant="b", at=5)
    assert desk.end("b1", at=6) == []
    assert desk.parked("a2", at=9) == ["lend a2 0:1"]


# --- room in CPU, memory and company ---------------------------------------------------------------------------


def desk_of(*nodes: NodeSpec, settings: ClusterSettings | None = None, **shares: int) -> Desk:
    """A desk where requests of all kinds are placed."""
    desk = Desk("fifo")
    inventory = PlacerInventory(Placer(Fleet(nodes), make_rule("best_fit")))
    desk.scheduler = ClusterScheduler(inventory, POLICIES["fifo"], settings)
    for tenant, share in shares.items():
        desk.tell(ShareGiven(tenant=TenantId(tenant), share_milli=1000 * share))
    return desk


def want(desk: Desk, job: str, tenant: str, at: float = 0, *, cards: int = 1, **wants: Any) -> list[str]:
    member = Request(cards=cards, card_milli=1000 if cards else 0, **wants)
    return desk.tell(JobArrived(job=JobId(job), members=(member,), tenant=TenantId(tenant)), at)


HOST = NodeSpec(name="n", cards=4, cpu_milli=8, memory_bytes=8)


@pytest.mark.parametrize("what", ["cpu_milli", "memory_bytes"])
def test_a_loan_gives_back_cpu_and_memory_too(what: str) -> None:
    desk = desk_of(HOST, a=2, b=2)
    want(desk, "a1", "a", cards=2, **{what: 2})
    assert want(desk, "a2", "a", **{what: 6}) == ["lend a2 0:2"]
    assert want(desk, "b1", "b", 1, **{what: 3}) == ["park a2 for b1", "place b1 0:2"]


def test_a_loan_without_cards_gives_back_its_cpu() -> None:
    desk = desk_of(NodeSpec(name="n", cards=1, cpu_milli=8), a=1)
    assert want(desk, "cpu", "a", cards=0, cpu_milli=8) == ["place cpu 0:"]
    assert want(desk, "card", "a", 1, cpu_milli=4) == ["park cpu for card", "place card 0:0"]


def test_a_loan_of_the_wrong_label_gives_way() -> None:
    desk = desk_of(HOST, a=1, b=3)
    want(desk, "a1", "a")
    assert want(desk, "a2", "a") == ["lend a2 0:1"]
    assert want(desk, "b1", "b", 1, exclusion="x") == []  # a1 is owned, and no smaller
    assert want(desk, "b2", "b", 2, cards=2, exclusion="x") == [
        *("park a1 for b2", "park a2 for b2", "place b2 0:0,1", "place b1 0:2"),
    ]


def test_an_owner_begins_only_when_the_cpu_it_takes_over_is_free() -> None:
    desk = desk_of(HOST, settings=ClusterSettings(parks_at_once=False), a=2, b=2)
    want(desk, "a1", "a", cards=2)
    want(desk, "a2", "a", cpu_milli=8)
    assert want(desk, "b1", "b", 1, cpu_milli=4) == ["park a2 for b1"]
    assert want(desk, "b2", "b", 2, cpu_milli=4) == []
    assert desk.parked("a2", at=3) == ["place b1 0:2", "place b2 0:3"]


def test_of_several_who_leave_one_card_the_last_counts() -> None:
    desk = desk_of(NodeSpec(name="n", cards=1), settings=ClusterSettings(parks_at_once=False), a=0, b=1)
    for name in "xy":
        half = JobArrived(job=JobId(name), members=(Request(cards=1, card_milli=500),), tenant=TenantId("a"))
        assert desk.tell(half) == [f"lend {name} 0:0"]
    assert want(desk, "b1", "b", 1) == ["park x for b1", "park y for b1"]
    assert desk.parked("y", at=2) == []
    assert desk.parked("x", at=3) == ["place b1 0:0"]
