"""Side by side: who rides with whom, what measurements undo, and when a guest gets cards of its own."""

from __future__ import annotations

import pytest

from carpool.core.cluster.model import ClusterSettings, State
from tests.core.cluster.desk import Desk


def test_a_job_that_would_wait_rides_beside_one_that_runs() -> None:
    desk = Desk("pack", cards=1)
    assert desk.come("x", program="a") == ["place x 0:0"]
    assert desk.come("y", program="b", at=1) == ["join y x"]
    assert desk.state("y") is State.RIDING


def test_a_pair_that_is_slower_together_is_undone() -> None:
    desk = Desk("pack", cards=1)
    desk.come("x", program="a")
    desk.come("y", program="b", at=1)
    assert desk.measure(1, at=1, a=500, b=520) == ["leave y x"]
    assert desk.state("y") is State.WAITING
    assert desk.come("z", program="b", at=2) == []


def test_a_pair_that_is_faster_together_stays() -> None:
    desk = Desk("pack", cards=1)
    desk.come("x", program="a")
    desk.come("y", program="b", at=1)
    assert desk.measure(1, at=1, a=800, b=700) == []
    assert desk.state("y") is State.RIDING


def test_a_guest_joins_the_host_to_which_it_adds_most() -> None:
    desk = Desk("pack", cards=2)
    desk.come("x", program="a")
    desk.come("y", program="b")
    desk.measure(1, a=600, c=600)
    desk.measure(1, b=900, c=900)
    assert desk.come("z", program="c", at=1) == ["join z y"]


def test_only_jobs_that_want_the_same_ride_together() -> None:
    desk = Desk("pack", cards=2)
    desk.come("x", 2, program="a")
    assert desk.come("y", 1, program="b", at=1) == []


def test_a_guest_gets_cards_of_its_own_when_some_are_free() -> None:
    desk = Desk("pack", cards=2)
    desk.come("x", program="a")
    desk.come("y", program="b")
    desk.come("z", program="c", at=1)
    assert desk.end("y", at=2) == ["leave z x", "place z 0:1"]


def test_guests_wait_again_when_their_host_ends_and_one_of_them_gets_its_cards() -> None:
    desk = Desk("pack", cards=1)
    desk.come("x", program="a")
    desk.come("y", program="b", at=1)
    assert desk.end("x", at=2) == ["leave y x", "place y 0:0"]


def test_no_more_than_four_share_their_cards() -> None:
    desk = Desk("pack", cards=1)
    for name in "abcde":
        desk.come(name, program=name)
    assert [str(desk.state(name)) for name in "abcde"] == ["running", "riding", "riding", "riding", "waiting"]


def four_alike(settings: ClusterSettings | None = None) -> Desk:
    """Four jobs of one program, each alone on the card of its node."""
    desk = Desk("pack", nodes=4, cards=1, settings=settings)
    for name in "wxyz":
        desk.come(name, program="a")
    return desk


def test_groups_merge_where_that_frees_the_nodes_of_a_gang() -> None:
    desk = four_alike()
    desk.measure(1, a=800, a2=800)
    assert desk.come("gang", 1, 1, program="g", at=1) == [
        *("park w for gang", "park y for gang", "place gang 0:0 2:0"),
        *("join w x", "join y z"),
    ]


@pytest.mark.parametrize(("together", "is_closed"), [(700, False), (800, True)])
def test_groups_merge_only_where_less_is_lost_than_the_newcomer_gains(together: int, is_closed: bool) -> None:
    desk = Desk("pack", nodes=2, cards=2)
    desk.come("x", 2, program="a")
    desk.come("y", 2, program="a")
    desk.measure(2, a=together, a2=together)
    desk.come("small", 1, program="g", at=1)
    assert (desk.state("small") is State.RUNNING) == is_closed


def test_groups_do_not_merge_on_hope() -> None:
    assert four_alike().come("gang", 1, 1, program="g", at=1) == []


def test_a_whole_group_goes_on_beside_another_with_its_guests() -> None:
    desk = Desk("pack", nodes=2, cards=2)
    desk.measure(1, a=900, a2=900)
    desk.measure(1, a=850, a2=850, a3=850)
    desk.measure(1, a=800, a2=800, a3=800, a4=800)
    for name in "wxyz":
        desk.come(name, program="a")
    said = desk.come("wide", 2, program="g", at=1)
    assert "place wide 0:0,1" in said
    assert [str(desk.state(name)) for name in ("w", "x", "y", "z")] == ["riding", "riding", "running", "running"]


def test_the_cards_of_merged_groups_are_taken_when_those_who_had_them_have_left() -> None:
    desk = four_alike(ClusterSettings(parks_at_once=False))
    desk.measure(1, a=800, a2=800)
    assert desk.come("gang", 1, 1, program="g", at=1) == ["park w for gang", "park y for gang"]
    assert desk.parked("w", at=2) == ["join w x"]
    assert desk.parked("y", at=3) == ["place gang 0:0 2:0", "join y x"]  # three were not tried yet


def test_a_guest_that_cannot_promise_a_boundary_in_time_gets_no_loan() -> None:
    desk = Desk("pack", cards=2, settings=ClusterSettings(parks_at_once=False), a=1, b=1)
    desk.come("x", program="a", tenant="a", turn=61)
    desk.come("b1", program="b", tenant="b")
    assert desk.come("y", program="a", tenant="a", turn=61, at=1) == ["join y x"]
    assert desk.end("b1", at=2) == []
