"""Nodes that come and go: who waits again, what becomes of shares, and that nothing is lost on the way."""

from __future__ import annotations

import pytest

from carpool.core.cluster.model import ClusterSettings, State
from tests.core.cluster.desk import Desk


def test_a_job_on_a_node_that_goes_is_revoked_and_runs_elsewhere_at_once() -> None:
    desk = Desk("fifo", nodes=2, cards=2)
    desk.come("a", 2)
    assert desk.lose_node("n0", at=1) == ["revoke a", "place a 1:0,1"]


def test_a_gang_with_one_member_on_the_node_waits_with_all_of_them() -> None:
    desk = Desk("fifo", nodes=2, cards=2)
    desk.come("gang", 2, 2)
    assert desk.lose_node("n1", at=1) == ["revoke gang"]
    assert desk.state("gang") is State.WAITING
    assert desk.come("small", 2, at=2) == ["place small 0:0,1"]
    assert desk.add_node("n1", 2, at=3) == ["park small for gang", "place gang 1:0,1 0:0,1"]


def test_a_new_node_is_used_at_once_and_makes_room_for_what_was_refused() -> None:
    desk = Desk("fifo", nodes=1, cards=2)
    desk.come("a", 2)
    desk.come("b", 2, at=1)
    assert desk.come("wide", 4, at=1)[0].startswith("refuse job wide can never run")
    assert desk.add_node("n1", 4, at=2) == ["place b 1:0,1"]
    assert desk.come("wide", 4, at=3) == []
    assert desk.end("b", at=4) == ["place wide 1:0,1,2,3"]


def test_a_node_comes_back_with_its_old_number_and_perhaps_other_cards() -> None:
    desk = Desk("fifo", nodes=2, cards=2)
    desk.lose_node("n0")
    assert desk.come("a", 2) == ["place a 1:0,1"]
    assert desk.add_node("n0", 3) == []
    assert desk.come("b", 3, at=1) == ["place b 0:0,1,2"]


def test_while_nodes_are_missing_shares_count_in_proportion() -> None:
    desk = Desk("fifo", nodes=2, cards=2, a=3, b=1)
    desk.come("a1", 1, tenant="a")
    desk.come("a2", 1, tenant="a")
    desk.come("a3", 1, tenant="a")
    desk.come("b1", 1, tenant="b")
    said = desk.lose_node("n0", at=1)
    assert [word for word in said if word.startswith("revoke")] == ["revoke a1", "revoke a2"]
    assert desk.state("a1") is State.RUNNING  # 1.5 of the two cards are a's, 0.5 are b's: a loan gives way
    assert "park b1 for a1" in said
    desk.add_node("n0", 2, at=2)
    assert all(desk.state(job) is State.RUNNING for job in ("a1", "a2", "a3", "b1"))


def test_guests_of_a_lost_host_wait_again() -> None:
    desk = Desk("pack", cards=1)
    desk.come("x", program="a")
    desk.come("y", program="b", at=1)
    assert desk.lose_node("n0", at=2) == ["leave y x", "revoke x"]
    assert desk.add_node("n0", 1, at=3)[0] in ("place x 0:0", "place y 0:0")


def test_a_job_that_was_leaving_a_lost_node_is_revoked_and_the_next_one_waits() -> None:
    desk = Desk("priority", nodes=1, cards=1, settings=ClusterSettings(parks_at_once=False))
    desk.come("low")
    assert desk.come("high", priority=1, at=1) == ["park low for high"]
    assert desk.lose_node("n0", at=2) == ["revoke low"]
    assert desk.add_node("n0", 1, at=3) == ["place high 0:0"]


def test_a_node_cannot_come_twice_or_go_twice() -> None:
    desk = Desk("fifo", nodes=1)
    said = ["reject NodeAdded: node n0 is here already; if it changed, remove it first"]
    assert desk.add_node("n0", 2) == said
    assert desk.add_node("n0", 4) == said
    desk.lose_node("n0")
    assert desk.lose_node("n0") == ["reject NodeRemoved: there is no node n0"]
    assert desk.lose_node("never") == ["reject NodeRemoved: there is no node never"]


@pytest.mark.parametrize("order", ["fair", "las"])
def test_a_cluster_may_lose_all_nodes_and_go_on_later(order: str) -> None:
    desk = Desk(order, nodes=2, cards=2)
    for name in "abc":
        desk.come(name, 2, tenant=name)
    desk.lose_node("n0", at=1)
    desk.lose_node("n1", at=2)
    assert {str(desk.state(name)) for name in "abc"} == {"waiting"}
    desk.add_node("n0", 2, at=3)
    desk.add_node("n9", 4, at=4)
    assert {str(desk.state(name)) for name in "abc"} == {"running"}
