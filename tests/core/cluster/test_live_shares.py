"""Shares that come, change and go while jobs are there (O8)."""

from __future__ import annotations

from carpool.core.cluster.model import State
from tests.core.cluster.desk import Desk


def test_o8_the_first_share_is_given_while_jobs_run_and_moves_nobody() -> None:
    desk = Desk("fifo", cards=4)
    desk.come("a1", 2, tenant="a")
    desk.come("b1", 2, tenant="b")
    assert desk.share("a", 1, at=1) == []
    assert desk.come("c1", tenant="c", at=2)[0].startswith("refuse job c1 can never run: tenant c has no share")
    assert desk.come("a2", 1, tenant="a", at=3) == ["park b1 for a2", "place a2 0:2"]
    assert desk.state("b1") is State.WAITING


def test_o8_a_share_that_grows_takes_its_cards_back_and_one_that_shrinks_lends_them() -> None:
    desk = Desk("fifo", cards=4, a=1, b=3)
    desk.come("b1", 1, tenant="b")
    desk.come("b2", 1, tenant="b")
    desk.come("b3", 1, tenant="b")
    desk.come("a1", 1, tenant="a")
    desk.come("a2", 1, tenant="a")
    assert desk.state("a2") is State.WAITING
    assert desk.share("b", 1, at=1) == []
    assert desk.share("a", 2, at=2) == ["park b3 for a2", "place a2 0:2"]


def test_o8_shares_above_the_cluster_are_rejected_with_the_numbers_and_smaller_ones_never() -> None:
    desk = Desk("fifo", nodes=2, cards=2, a=2, b=2)
    desk.come("a1", 1, tenant="a")
    assert desk.share("b", 3, at=1) == ["reject ShareGiven: the shares are 5 cards, the cluster has 4"]
    desk.lose_node("n1", at=2)
    assert desk.share("b", 1, at=3) == []
    assert desk.share("c", 1, at=4) == ["reject ShareGiven: the shares are 4 cards, the cluster has 2"]


def test_o8_a_tenant_that_goes_keeps_its_jobs_as_loans_and_gets_no_new_ones() -> None:
    desk = Desk("fifo", cards=2, a=1, b=1)
    desk.come("a1", 1, tenant="a")
    desk.come("a2", 1, tenant="a")
    assert desk.withdraw("a", at=1) == []
    assert desk.come("a3", 1, tenant="a", at=1)[0].startswith("refuse job a3")
    assert desk.come("b1", 1, tenant="b", at=2) == ["park a2 for b1", "place b1 0:1"]
    desk.end("a1", at=3)
    desk.end("a2", at=4)
    assert desk.withdraw("a", at=5) == ["reject ShareWithdrawn: tenant a has no share"]


def test_o8_when_the_last_share_goes_everybody_owns_everything_again() -> None:
    desk = Desk("fifo", cards=2, a=2)
    desk.come("a1", 2, tenant="a")
    assert desk.withdraw("a", at=1) == []
    assert desk.come("z1", 1, tenant="z", at=2) == []
    assert desk.end("a1", at=3) == ["place z1 0:0"]


def test_o8_jobs_that_leave_or_wait_keep_their_place_when_shares_come() -> None:
    desk = Desk("fifo", cards=2)
    desk.come("a1", 2, tenant="a")
    desk.come("b1", 1, tenant="b")
    desk.come("a2", 1, tenant="a")
    assert desk.share("a", 0.5, at=1) == []
    assert desk.share("b", 1, at=2) == ["park a1 for b1", "place b1 0:0", "lend a2 0:1"]


def test_weights_change_at_any_time() -> None:
    desk = Desk("fair", cards=4)
    for name in ("a1", "a2", "a3", "a4"):
        desk.come(name, 1, tenant="a")
    assert desk.come("b1", 1, tenant="b", at=1) == ["park a4 for b1", "place b1 0:3"]
    desk.come("b2", 1, tenant="b", at=1)
    desk.come("b3", 1, tenant="b", at=1)
    assert desk.state("b3") is State.WAITING
    assert desk.weigh("b", 3) == ["park a2 for b3", "place b3 0:1"]
