"""Side by side: who rides with whom, what measurements undo, and when a guest gets cards of its own."""

from __future__ import annotations

from carpool.core.cluster.model import State
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
