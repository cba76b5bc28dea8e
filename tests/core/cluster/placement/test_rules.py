"""Each rule picks what its docstring says; ties are part of the specification."""

from __future__ import annotations

from pathlib import Path

import pytest

from carpool.core.cluster.placement.base import Outlook
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.fragmentation import Fragmentation, find_typical
from carpool.core.cluster.placement.requests import Request
from carpool.core.cluster.placement.rules import DEFAULT_RULE, RULES, make_rule
from carpool.errors import UsageError
from tests.core.cluster.placement.fleets import at, cpu_only, node, placer, share, whole

# --- all of them -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", sorted(set(RULES) - {"random_fit"}))
def test_of_equal_nodes_and_cards_the_first_is_taken(rule: str) -> None:
    fleet = Fleet([node(4), node(4), node(4)])
    assert placer(fleet, rule).find(share(300)) == at(0, 0)
    assert placer(fleet, rule).find(whole(2)) == at(0, 0, 1)
    assert placer(fleet, rule).find(cpu_only(2)) == at(0)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_what_fits_on_one_node_only_goes_there(rule: str) -> None:
    fleet = Fleet([node(2), node(1, model="A10"), node(2, cpus=2)])
    assert placer(fleet, rule).find(Request(cards=1, card_milli=200, models=frozenset({"A10"}))) == at(1, 0)
    fleet.take(share(100), at(0, 0))
    assert placer(fleet, rule).find(whole(2)) == at(2, 0, 1)
    assert placer(fleet, rule).find(whole(2, cpus=4)) is None


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_rule_bears_the_name_it_is_registered_under(rule: str) -> None:
    assert placer(Fleet([]), rule).rule.name == rule
    assert placer(Fleet([]), rule).find(share(1)) is None, "an empty fleet has no place"


def test_the_default_is_one_of_the_rules() -> None:
    assert DEFAULT_RULE in RULES


@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_rule_is_documented(rule: str) -> None:
    assert f"| `{rule}`" in (Path(__file__).parents[4] / "docs" / "placement.md").read_text()


def test_an_unknown_rule_is_told_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="no placement rule 'worst'; known are best_fit, "):
        make_rule("worst")


# --- best fit --------------------------------------------------------------------------------------------------


def test_best_fit_leaves_the_least_card_time() -> None:
    fleet = Fleet([node(4), node(1), node(2)])
    assert placer(fleet, "best_fit").find(whole()) == at(1, 0)


def test_best_fit_weighs_cpu_as_much_as_cards() -> None:
    fleet = Fleet([node(2, cpus=64), node(4, cpus=16), node(8, cpus=128)])
    assert placer(fleet, "best_fit").find(share(1)) == at(1, 0), "4/8 + 16/128 is less than 2/8 + 64/128"


def test_best_fit_takes_the_tightest_card() -> None:
    fleet = Fleet([node(3)])
    fleet.take(share(300), at(0, 1))
    fleet.take(share(600), at(0, 2))
    assert placer(fleet, "best_fit").find(share(400)) == at(0, 2)
    assert placer(fleet, "best_fit").find(share(500)) == at(0, 1)
    assert placer(fleet, "best_fit").find(share(200, cards=2)) == at(0, 1, 2)


# --- spread ----------------------------------------------------------------------------------------------------


def test_spread_takes_the_emptiest_node_and_card() -> None:
    fleet = Fleet([node(2), node(2)])
    fleet.take(share(500), at(0, 0))
    assert placer(fleet, "spread").find(share(100)) == at(1, 0)
    fleet.take(share(300), at(1, 0))
    fleet.take(share(300), at(1, 1))
    assert placer(fleet, "spread").find(share(100)) == at(0, 1), "half as much is used there"


def test_spread_goes_by_cpu_where_cards_are_equal() -> None:
    fleet = Fleet([node(2), node(2)])
    fleet.take(cpu_only(4), at(0))
    assert placer(fleet, "spread").find(share(100, cpus=1)) == at(1, 0)


# --- packing ---------------------------------------------------------------------------------------------------


def test_packing_fills_cards_in_use_then_nodes_in_use_then_the_smallest_idle_node() -> None:
    fleet = Fleet([node(4), node(2), node(2), node(2)])
    packing = placer(fleet, "packing")
    fleet.take(share(500), at(3, 1))
    assert packing.find(share(400)) == at(3, 1)
    assert packing.find(share(600)) == at(3, 0), "an untouched card, but of a node in use"
    assert packing.find(whole()) == at(3, 0)
    assert packing.find(whole(2)) == at(1, 0, 1), "the first of the smallest idle nodes"


def test_packing_tells_cards_in_use_apart_by_tenths() -> None:
    fleet = Fleet([node(1), node(1), node(1)])
    for where, milli in enumerate([300, 550, 599]):
        fleet.take(share(milli), at(where, 0))
    assert placer(fleet, "packing").find(share(100)) == at(1, 0), "450 m and 401 m left are equal, and it comes first"


# --- dot product -----------------------------------------------------------------------------------------------


def test_dot_product_avoids_nodes_with_much_of_what_is_asked_for() -> None:
    fleet = Fleet([node(8, cpus=32), node(2, cpus=128)])
    assert placer(fleet, "dot_product").find(whole(2)) == at(1, 0, 1)
    assert placer(fleet, "dot_product").find(cpu_only(32)) == at(0)


# --- clustering ------------------------------------------------------------------------------------------------


def test_clustering_prefers_pure_company_then_mixed_then_none_then_strangers() -> None:
    fleet = Fleet([node(8), node(8), node(8), node(8)])
    clustering = placer(fleet, "clustering")
    fleet.take(whole(2), at(0, 0, 1))
    assert clustering.find(share(500)) == at(1, 0), "rather an idle node than one of pairs"
    fleet.take(whole(2), at(2, 0, 1))
    fleet.take(share(500), at(2, 2))
    assert clustering.find(share(500)) == at(2, 2), "rather a mixed node than an idle one"
    fleet.take(share(100), at(3, 0))
    assert clustering.find(share(500)) == at(3, 0), "rather among shares only"
    assert clustering.find(whole(2)) == at(0, 2, 3)


def test_clustering_forgets_who_left() -> None:
    fleet = Fleet([node(2), node(2)])
    fleet.take(share(500), at(1, 0))
    assert placer(fleet, "clustering").find(share(600)) == at(1, 1)
    fleet.give(share(500), at(1, 0))
    assert placer(fleet, "clustering").find(share(600)) == at(0, 0)


# --- random ----------------------------------------------------------------------------------------------------


def test_random_fit_draws_every_node_and_card_that_fits_and_no_other() -> None:
    fleet = Fleet([node(2), node(2), node(1), node(2, cpus=0)])
    fleet.take(share(900), at(1, 0))
    random_fit = placer(fleet, "random_fit")
    found = [random_fit.find(share(200, cpus=1)) for _ in range(300)]
    counts = {place: found.count(place) for place in (at(0, 0), at(0, 1), at(1, 1), at(2, 0))}
    assert sum(counts.values()) == 300
    assert 75 < counts[at(1, 1)] < 125 and 75 < counts[at(2, 0)] < 125, "nodes are drawn, then cards"
    assert 25 < counts[at(0, 0)] < 75 and 25 < counts[at(0, 1)] < 75


def test_random_fit_is_the_same_for_one_seed() -> None:
    fleet = Fleet([node(4) for _ in range(20)])
    one, other = placer(fleet, "random_fit"), placer(fleet, "random_fit")
    assert [one.find(share(100)) for _ in range(20)] == [other.find(share(100)) for _ in range(20)]


def test_random_fit_wants_a_source() -> None:
    with pytest.raises(UsageError, match="seeded random source"):
        make_rule("random_fit", Outlook())


# --- fragmentation ---------------------------------------------------------------------------------------------

HALVES = {share(500): 3, whole(): 1}


def fragment(fleet: Fleet, demand: dict[Request, int]) -> float:
    return Fragmentation(demand).fragment_milli(fleet, 0)


def test_the_fragmentation_of_a_node_is_what_typical_requests_cannot_use() -> None:
    fleet = Fleet([node(2)])
    assert fragment(fleet, HALVES) == 0
    fleet.take(share(600), at(0, 0))
    assert fragment(fleet, HALVES) == 400, "neither can use the 400 m of the first card, both the second card"
    fleet.take(share(400), at(0, 1))
    assert fragment(fleet, HALVES) == 0.75 * 400 + 0.25 * 1000, "nothing left is of use to a whole card"


def test_all_that_is_idle_is_fragmented_for_a_request_that_cannot_use_the_node() -> None:
    fleet = Fleet([node(2, model="T4", cpus=4)])
    picky = Request(cards=1, card_milli=500, models=frozenset({"A10"}))
    assert fragment(fleet, {picky: 1}) == 2000
    assert fragment(fleet, {share(500, cpus=5): 1}) == 2000
    assert fragment(fleet, {whole(3): 1}) == 2000
    assert fragment(fleet, {cpu_only(1): 1}) == 2000
    assert fragment(fleet, {share(500, cpus=4): 1}) == 0


@pytest.mark.parametrize("rule", ["fragmentation", "tidy"])
def test_fragmentation_completes_a_card_rather_than_break_another(rule: str) -> None:
    fleet = Fleet([node(2), node(2)])
    fleet.take(share(500), at(1, 1))
    assert placer(fleet, rule, HALVES).find(share(500)) == at(1, 1)


@pytest.mark.parametrize("rule", ["fragmentation", "tidy"])
def test_fragmentation_leaves_room_of_a_usual_size(rule: str) -> None:
    """On the card with 900 m left a share of 400 m leaves the usual 500; best fit would take the tightest."""
    fleet = Fleet([node(2)])
    fleet.take(share(100), at(0, 0))
    fleet.take(share(400), at(0, 1))
    assert placer(fleet, rule, {share(500): 1}).find(share(400)) == at(0, 0)
    assert placer(fleet, "best_fit").find(share(400)) == at(0, 1)


@pytest.mark.parametrize("rule", ["fragmentation", "tidy"])
def test_fragmentation_uses_a_node_that_is_of_little_use_to_others(rule: str) -> None:
    fleet = Fleet([node(2, cpus=64), node(2, cpus=4)])
    demand = {whole(cpus=8): 9, share(500, cpus=1): 1}
    assert placer(fleet, rule, demand).find(share(500, cpus=1)) == at(1, 0)


def test_fragmentation_counts_what_overcommit_adds() -> None:
    fleet = Fleet([node(1)], overcommit_percent=20)
    fleet.take(share(700), at(0, 0))
    assert fragment(fleet, {share(500): 1}) == 0
    assert fragment(fleet, {share(501): 1}) == 500


def test_differences_smaller_than_a_bin_are_ties() -> None:
    """Exactly, the second node is better by 20 m; the published rule and ours call that equal."""
    fleet = Fleet([node(1), node(1)])
    fleet.take(share(480), at(0, 0))
    fleet.take(share(500), at(1, 0))
    for rule in ("fragmentation", "tidy"):
        assert placer(fleet, rule, {whole(): 1}).find(share(500)) == at(0, 0)


def test_of_equal_nodes_tidy_takes_one_in_use_and_fragmentation_the_first() -> None:
    fleet = Fleet([node(2), node(2)])
    fleet.take(whole(), at(1, 0))
    demand = {whole(): 1}
    assert placer(fleet, "fragmentation", demand).find(whole()) == at(0, 0)
    assert placer(fleet, "tidy", demand).find(whole()) == at(1, 1)


def test_typical_are_the_most_frequent_up_to_95_percent_without_regard_to_memory() -> None:
    demand = {
        Request(cards=1, card_milli=500, memory_bytes=1): 30,
        Request(cards=1, card_milli=500, memory_bytes=2): 30,
        share(100): 20,
        cpu_only(1): 15,
        share(200): 5,
    }
    assert find_typical(demand) == {share(500): 60, share(100): 20, cpu_only(1): 15}


def test_a_whole_card_is_typical_while_nothing_is_known() -> None:
    assert find_typical({}) == {whole(): 1}
    fleet = Fleet([node(2), node(2)])
    fleet.take(share(100), at(1, 0))
    assert placer(fleet, "fragmentation").find(share(100)) == at(1, 0)
