"""The search over nodes: caches that never show, affinity, gangs."""

from __future__ import annotations

import pytest

from carpool.core.cluster.placement import placer as placer_module
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.rules import RULES
from tests.core.cluster.placement.fleets import at, memory, node, placer, share, whole


def test_finding_changes_nothing_and_placing_takes() -> None:
    fleet = Fleet([node(1)])
    some = placer(fleet)
    assert some.find(whole()) == some.find(whole()) == at(0, 0)
    assert some.place(whole()) == at(0, 0)
    assert some.find(whole()) is None
    assert fleet.taken_milli == 1000


def test_a_place_given_back_is_found_again() -> None:
    fleet = Fleet([node(1), node(1)])
    some = placer(fleet)
    assert [some.place(whole()), some.place(whole()), some.place(whole())] == [at(0, 0), at(1, 0), None]
    fleet.give(whole(), at(1, 0))
    assert some.find(whole()) == at(1, 0)
    fleet.give(whole(), at(0, 0))
    assert some.find(whole()) == at(0, 0)


def test_idle_nodes_that_differ_in_nothing_but_card_memory_are_told_apart() -> None:
    fleet = Fleet([node(1, card_gib=16), node(1, card_gib=32)])
    assert placer(fleet).find(memory(24)) == at(1, 0)
    assert fleet.could_ever_fit(memory(32))
    assert not fleet.could_ever_fit(memory(33))


@pytest.mark.parametrize("rule", sorted(RULES))
def test_affinity_comes_before_what_the_rule_likes_best(rule: str) -> None:
    fleet = Fleet([node(1), node(4), node(2)])
    fleet.take(share(100, affinity="a"), at(1, 2))
    some = placer(fleet, rule)
    assert some.place(share(300, affinity="a")) == at(1, 2)
    found = some.place(share(700, affinity="a"))
    assert found is not None and found != at(1, 2), "there is no room beside its own kind: it starts another card"
    assert some.find(share(50, affinity="a")) in (at(1, 2), found)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_anti_affinity_spreads_over_cards_until_there_are_none(rule: str) -> None:
    fleet = Fleet([node(1), node(2)])
    some = placer(fleet, rule)
    found = {some.place(share(10, anti_affinity="a")) for _ in range(3)}
    assert found == {at(0, 0), at(1, 0), at(1, 1)}
    assert some.place(share(10, anti_affinity="a")) is None


# --- gangs -----------------------------------------------------------------------------------------------------


def test_a_gang_gets_a_place_for_every_member() -> None:
    fleet = Fleet([node(2), node(2)])
    assert placer(fleet).place_gang([whole(2), whole(), share(500)]) == [at(0, 0, 1), at(1, 0), at(1, 1)]
    assert fleet.taken_milli == 3500


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_gang_that_does_not_fit_as_a_whole_takes_nothing(rule: str) -> None:
    fleet = Fleet([node(2), node(2)])
    some = placer(fleet, rule)
    assert some.place_gang([whole()] * 5) is None
    assert fleet.taken_milli == 0
    assert not fleet.held
    fleet.check_invariants()
    assert some.place_gang([whole()] * 4) is not None


def test_a_gang_of_nobody_has_its_places() -> None:
    assert placer(Fleet([])).place_gang([]) == []


# --- bounds of memory never show -------------------------------------------------------------------------------


def test_more_kinds_of_requests_than_boards_change_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placer_module, "BOARDS_MAX", 2)
    fleet, other = Fleet([node(4) for _ in range(5)]), Fleet([node(4) for _ in range(5)])
    forgetful, fresh = placer(fleet), placer(other)
    for step in range(40):
        request = share(100 + 50 * (step % 7))
        assert forgetful.place(request) == fresh.place(request)
        fresh = placer(other)


def test_outdated_entries_of_a_heap_do_not_pile_up() -> None:
    fleet = Fleet([node(4) for _ in range(5)])
    some = placer(fleet)
    for _ in range(300):
        found = some.place(share(100))
        assert found is not None
        some.find(share(100))
        fleet.give(share(100), found)
    assert len(some._boards[share(100)].heap) <= placer_module.HEAP_FACTOR * 5
