"""Each order by hand-made cases: who goes first, who is parked for whom, and when the order wants to be woken."""

from __future__ import annotations

import pytest

from carpool.core.cluster.model import ClusterSettings, State
from carpool.policies import names_for
from carpool.units import SECOND
from tests.core.cluster.desk import Desk


def test_fifo_runs_the_first_and_lets_a_later_small_job_use_the_hole() -> None:
    desk = Desk("fifo", cards=4)
    assert desk.come("a", 3) == ["place a 0:0,1,2"]
    assert desk.come("b", 4, at=1) == []
    assert desk.come("c", 1, at=2) == ["place c 0:3"]
    assert desk.end("a", at=3) == ["park c for b", "place b 0:0,1,2,3"]
    assert desk.end("b", at=4) == ["place c 0:0"]


def test_srtf_parks_the_job_with_more_left() -> None:
    desk = Desk("srtf", cards=1)
    assert desk.come("long", run=100) == ["place long 0:0"]
    assert desk.come("short", run=50, at=10) == ["park long for short", "place short 0:0"]
    assert desk.end("short", at=60) == ["place long 0:0"]


def test_srtf_counts_what_a_running_job_has_left_now() -> None:
    desk = Desk("srtf", cards=1)
    desk.come("long", run=100)
    assert desk.come("short", run=50, at=60) == []


def test_srsf_counts_cards_too() -> None:
    desk = Desk("srsf", cards=4)
    assert desk.come("wide", 4, run=100) == ["place wide 0:0,1,2,3"]
    assert desk.come("thin", 1, run=300, at=1) == ["park wide for thin", "place thin 0:0"]


def test_srtf_takes_a_job_of_unknown_length_by_what_it_had() -> None:
    desk = Desk("srtf", cards=1)
    assert desk.come("unknown") == ["place unknown 0:0"]
    assert desk.come("longer", run=700, at=1) == []
    when, effects = desk.tick()
    assert (when, effects) == (600, ["park unknown for longer", "place longer 0:0"])


def test_las_lets_a_newcomer_pass_a_job_that_outlived_its_level() -> None:
    desk = Desk("las", cards=2)
    assert desk.come("old", 2) == ["place old 0:0,1"]
    assert desk.come("new", 1, at=10) == []
    assert desk.tick() == (300, ["park old for new", "place new 0:0"])


def test_las_runs_equals_of_a_level_one_after_the_other() -> None:
    desk = Desk("las", cards=1)
    desk.come("a")
    desk.come("b", at=1)
    assert desk.tick() == (600, ["park a for b", "place b 0:0"])
    assert desk.tick() == (1200, ["park b for a", "place a 0:0"])
    assert desk.tick() == (1200 + 1800, ["park a for b", "place b 0:0"])


def test_tiresias_runs_those_that_ran_before_those_that_wait_in_a_queue() -> None:
    desk = Desk("tiresias", cards=1)
    desk.come("a")
    desk.come("b", at=1)
    assert desk.tick() == (3250, ["park a for b", "place b 0:0"])
    assert desk.tick() == (6500, ["park b for a", "place a 0:0"])
    assert desk.tick()[0] == 6500 + 3950


def test_priority_parks_the_lower_one() -> None:
    desk = Desk("priority", cards=1)
    desk.come("low", priority=1)
    assert desk.come("high", priority=2, at=1) == ["park low for high", "place high 0:0"]
    assert desk.come("also high", priority=2, at=2) == []


def test_a_job_that_waits_too_long_goes_first_and_stays_there() -> None:
    desk = Desk("priority", cards=1, settings=ClusterSettings(wait_ns=100 * SECOND))
    desk.come("high", priority=2)
    desk.come("low", priority=1, at=5)
    assert desk.tick() == (105, ["park high for low", "place low 0:0"])
    assert desk.come("higher", priority=3, at=110) == []


def test_fair_gives_each_tenant_its_part_and_takes_it_back() -> None:
    desk = Desk("fair", cards=4)
    assert desk.come("a1", 3, tenant="a") == ["place a1 0:0,1,2"]
    assert desk.come("a2", 1, tenant="a", at=1) == ["place a2 0:3"]
    assert desk.come("b1", 2, tenant="b", at=2) == ["park a1 for b1", "place b1 0:0,1"]
    assert desk.end("b1", at=3) == ["place a1 0:0,1,2"]


def test_fair_gives_tenants_cards_by_their_weights_and_the_rest_to_whom_it_was_cut_most() -> None:
    desk = Desk("fair", cards=8)
    desk.weigh("a", 2)
    desk.come("a1", 8, tenant="a")
    assert desk.come("b1", 3, tenant="b", at=1) == ["park a1 for b1", "place b1 0:0,1,2"]  # 5.33 and 2.67 of 8
    assert desk.come("a2", 5, tenant="a", at=2) == ["place a2 0:3,4,5,6,7"]
    desk.weigh("b", 4)
    assert desk.come("b2", 2, tenant="b", at=4) == ["park a2 for b2", "place b2 0:3,4"]  # 2.67 and 5.33


@pytest.mark.parametrize("weight", [1, 3])
def test_fair_serves_the_jobs_of_a_tenant_by_their_weights(weight: int) -> None:
    desk = Desk("fair", cards=1)
    desk.come("heavy", weight=weight)
    desk.come("light")
    served = {"heavy": 0.0, "light": 0.0}
    now = 0.0
    while now < 400_000:
        running = next(job for job in served if desk.state(job) is State.RUNNING)
        then, _ = desk.tick()
        served[running] += then - now
        now = then
    assert served["heavy"] / served["light"] == pytest.approx(weight, rel=0.3)


def test_a_newcomer_under_fair_does_not_have_everything_until_it_has_caught_up() -> None:
    desk = Desk("fair", cards=1)
    desk.come("old")
    desk.come("older", at=1)
    now = 0.0
    while now < 100_000:
        now, _ = desk.tick()
    desk.come("new", at=now)
    until, had = now + 30_000, 0.0
    while now < until:
        is_new = desk.state("new") is State.RUNNING
        then, _ = desk.tick()
        had += then - now if is_new else 0
        now = then
    assert 0 < had < 20_000  # a third is its part; to catch up it would need all of it


def test_weights_are_for_fair_and_above_zero() -> None:
    assert Desk("fifo").weigh("a", 2) == ["reject WeightGiven: the order fifo knows no weights of tenants; fair does"]
    assert Desk("fair").weigh("a", 0) == ["reject WeightGiven: tenant a: a weight of 0 is not above 0"]


@pytest.mark.parametrize("order", names_for("cluster"))
def test_every_order_runs_every_job_to_its_end(order: str) -> None:
    desk = Desk(order, nodes=2, cards=4)
    sizes = {"a": (1,), "b": (4, 4), "c": (2,), "d": (4,), "e": (3,), "f": (4, 2)}
    for number, (job, cards) in enumerate(sizes.items()):
        desk.come(job, *cards, at=number, run=50, program="p")
    left = dict.fromkeys(sizes)
    for step in range(len(sizes)):
        running = [job for job in left if str(desk.state(job)) in ("running", "riding")]
        assert running, left
        desk.end(running[0], at=100 + step)
        del left[running[0]]
    assert all(desk.state(job) is None for job in sizes)


@pytest.mark.parametrize("order", names_for("cluster"))
def test_the_same_events_give_the_same_effects(order: str) -> None:
    def play() -> list[list[str]]:
        desk = Desk(order, nodes=3, cards=4)
        said = [desk.come(f"j{n}", 1 + n % 4, at=n, run=5 + n * 7 % 11, tenant=f"t{n % 3}") for n in range(20)]
        while desk.scheduler.next_wakeup() is not None and len(said) < 60:
            said.append(desk.tick()[1])
        return said

    assert play() == play()
