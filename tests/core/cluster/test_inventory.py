"""RunningJobs and counted cards: sorted while time passes, and never wrong about what is free."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from carpool.core.cluster.inventory import CardInventory
from carpool.core.cluster.model import ClusterJob
from carpool.core.cluster.placement.requests import NodeSpec, Placement, Request
from carpool.core.cluster.sorted_jobs import RunningJobs
from carpool.core.kernel.ids import JobId, TenantId


def whole(cards: int) -> Request:
    return Request(cards=cards, card_milli=1000)


def test_the_tightest_node_is_taken_first_and_its_first_cards() -> None:
    inventory = CardInventory([NodeSpec(name="a", cards=4), NodeSpec(name="b", cards=2)])
    assert inventory.place(whole(2)) == Placement(node=1, cards=(0, 1))
    assert inventory.place(whole(1)) == Placement(node=0, cards=(0,))
    assert inventory.place(whole(4)) is None


def test_only_whole_cards_and_nothing_else_can_be_counted() -> None:
    inventory = CardInventory([NodeSpec(name="a", cards=4)])
    assert inventory.could_ever_fit(whole(4))
    assert not inventory.could_ever_fit(whole(5))
    assert not inventory.could_ever_fit(Request(cards=1, card_milli=500))
    assert not inventory.could_ever_fit(Request(cards=1, card_milli=1000, cpu_milli=1))


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.integers(0, 2)), max_size=40))
def test_taking_and_giving_in_any_order_keeps_the_books_right(moves: list[tuple[int, bool, int]]) -> None:
    inventory = CardInventory([NodeSpec(name=f"n{number}", cards=4) for number in range(3)])
    held: list[tuple[Request, Placement]] = []
    for cards, gives, node in moves:
        if gives and held:
            inventory.give(*held.pop(node % len(held)))
        else:
            place = inventory.place(whole(cards)) or inventory.place_on(whole(cards), node)
            if place is not None:
                held.append((whole(cards), place))
        inventory.check_invariants()
    for member, place in held:
        assert not inventory.retake(member, place)
        inventory.give(member, place)
        assert inventory.retake(member, place)
        inventory.give(member, place)
    assert inventory.free_milli == inventory.capacity_milli


def make_job(number: int, size_milli: int, first: int) -> ClusterJob:
    job = ClusterJob(
        id=JobId(str(number)),
        number=number,
        members=(),
        size_milli=size_milli,
        tenant=TenantId("t"),
        priority=0,
        service_ns=None,
        program="",
        turn_ns=0,
    )
    job.key = (first, number)
    return job


@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from([1, 2, 4]), st.integers(0, 20)), max_size=30))
def test_what_is_before_a_key_is_what_sorting_everything_says(drawn: list[tuple[int, int, int]]) -> None:
    running = RunningJobs()
    jobs = []
    now = 0
    for number, (first, speed, wait) in enumerate(drawn):
        now += wait
        job = make_job(number, 1000 * speed, first)
        running.add(job, speed, now)
        jobs.append((job, now))
    for job, _ in jobs:
        key = job.key_at(now)
        before = [other for other, _ in jobs if other.key_at(now) < key]
        assert running.size_before(key, now) == sum(other.size_milli for other in before)
    if jobs:
        last = running.last(now)
        assert last is not None
        assert last[0] == max(job.key_at(now) for job, _ in jobs)
    for job, added in jobs:
        assert job.key_at(added) == job.key
        running.remove(job)
    assert running.size_milli == 0
    assert len(running) == 0
