"""A fleet: what fits, what is taken, and that broken rules are noticed."""

from __future__ import annotations

import pytest

from carpool.core.cluster.placement.base import Outlook
from carpool.core.cluster.placement.fleet import CHANGES_KEPT, Fleet
from carpool.core.cluster.placement.placer import Placer
from carpool.core.cluster.placement.requests import CardSpec, NodeSpec, Request, node_of
from carpool.core.cluster.placement.rules import RULES, make_rule
from carpool.errors import InternalError, UsageError
from carpool.units import GIB
from tests.core.cluster.placement.fleets import at, cpu_only, memory, node, share, whole

# --- cards -----------------------------------------------------------------------------------------------------


def test_shares_of_one_card_add_up_to_the_whole_card_and_no_further() -> None:
    fleet = Fleet([node(1)])
    fleet.take(share(600), at(0, 0))
    assert fleet.fits(share(400), 0)
    assert not fleet.fits(share(401), 0)


def test_a_whole_card_is_an_untouched_one() -> None:
    fleet = Fleet([node(2)])
    fleet.take(share(1), at(0, 0))
    assert fleet.usable_cards(whole(), 0) == [1]
    assert fleet.usable_cards(whole(2), 0) is None


def test_nobody_joins_a_whole_card() -> None:
    fleet = Fleet([node(1, card_gib=16)])
    fleet.take(whole(), at(0, 0))
    assert not fleet.fits(share(1), 0)
    assert not fleet.fits(memory(1), 0)


def test_whole_cards_and_shares_live_on_one_node() -> None:
    fleet = Fleet([node(4)])
    fleet.take(whole(2), at(0, 0, 1))
    fleet.take(share(300), at(0, 2))
    assert fleet.usable_cards(share(800), 0) == [3]
    assert fleet.untouched_cards(0) == [3]
    fleet.check_invariants()


def test_a_request_for_two_shares_needs_two_cards() -> None:
    fleet = Fleet([node(2)])
    fleet.take(share(700), at(0, 0))
    assert not fleet.fits(share(500, cards=2), 0)
    assert fleet.usable_cards(share(300, cards=2), 0) == [0, 1]


def test_only_the_allowed_card_models_are_used() -> None:
    fleet = Fleet([node(model="T4"), node(model="A10"), node(model="")])
    picky = Request(cards=1, card_milli=500, models=frozenset({"A10", "V100"}))
    assert [fleet.fits(picky, where) for where in range(3)] == [False, True, False]
    assert all(fleet.fits(share(500), where) for where in range(3)), "no models named: any"


def test_what_wants_no_cards_may_go_to_any_model() -> None:
    assert Fleet([node(0)]).usable_cards(cpu_only(4), 0) == []


# --- memory of cards -------------------------------------------------------------------------------------------


def test_memory_slices_of_a_card_add_up_to_its_bytes() -> None:
    fleet = Fleet([node(1, card_gib=16)])
    fleet.take(memory(10), at(0, 0))
    assert fleet.fits(memory(6), 0)
    assert not fleet.fits(memory(7), 0)


def test_a_share_that_names_no_bytes_takes_as_much_of_the_memory_as_of_the_time() -> None:
    fleet = Fleet([node(1, card_gib=16)])
    fleet.take(share(250), at(0, 0))
    assert fleet.free_bytes[0] == [12 * GIB]
    assert not fleet.fits(memory(13), 0)


def test_a_whole_card_too_small_for_its_bytes_is_not_used() -> None:
    fleet = Fleet([node(1, card_gib=16), node(1, card_gib=32)])
    large = Request(cards=1, card_milli=1000, card_bytes=24 * GIB)
    assert [fleet.fits(large, where) for where in range(2)] == [False, True]


def test_a_card_of_unknown_size_counts_no_bytes() -> None:
    fleet = Fleet([node(1)])
    fleet.take(memory(80), at(0, 0))
    assert fleet.fits(memory(80), 0)
    fleet.check_invariants()


# --- the node --------------------------------------------------------------------------------------------------


def test_cpu_and_memory_of_the_node_count_too() -> None:
    fleet = Fleet([node(8, cpus=16, memory_gib=8)])
    fleet.take(share(10, cpus=10), at(0, 0))
    assert fleet.fits(share(10, cpus=6), 0)
    assert not fleet.fits(share(10, cpus=7), 0)
    assert not fleet.fits(Request(cards=1, card_milli=10, memory_bytes=9 * GIB), 0)


def test_what_could_never_fit_is_told_from_what_does_not_fit_now() -> None:
    fleet = Fleet([node(2), node(4)])
    fleet.take(whole(4), at(1, 0, 1, 2, 3))
    assert not fleet.fits(whole(3), 1)
    assert fleet.could_ever_fit(whole(3))
    assert not fleet.could_ever_fit(whole(5))


# --- overcommit ------------------------------------------------------------------------------------------------


def test_overcommit_lets_shared_cards_go_beyond_their_time_by_so_many_percent() -> None:
    fleet = Fleet([node(1)], overcommit_percent=5)
    fleet.take(share(810), at(0, 0))
    assert fleet.fits(share(240), 0)
    assert not fleet.fits(share(241), 0)


def test_overcommit_leaves_whole_cards_alone() -> None:
    fleet = Fleet([node(1)], overcommit_percent=50)
    fleet.take(whole(), at(0, 0))
    assert not fleet.fits(share(1), 0)
    fleet.give(whole(), at(0, 0))
    fleet.take(share(1), at(0, 0))
    assert not fleet.fits(whole(), 0), "a touched card is no whole card, however much time is left"
    assert fleet.taken_milli == 1


def test_overcommit_never_promises_more_bytes_than_the_card_has() -> None:
    fleet = Fleet([node(1, card_gib=16)], overcommit_percent=100)
    for _ in range(4):
        fleet.take(share(500), at(0, 0))
    assert fleet.free_bytes[0] == [0]
    fleet.check_invariants()


# --- labels ----------------------------------------------------------------------------------------------------


def test_affinity_joins_its_own_kind_or_an_untouched_card() -> None:
    fleet = Fleet([node(3)])
    fleet.take(share(100, affinity="a"), at(0, 0))
    fleet.take(share(100), at(0, 1))
    assert fleet.usable_cards(share(100, affinity="a"), 0) == [0, 2]
    assert fleet.usable_cards(share(100, affinity="b"), 0) == [2]
    assert fleet.usable_cards(share(100), 0) == [0, 1, 2], "affinity keeps nobody else away"


def test_anti_affinity_never_shares_a_card_with_its_own_kind() -> None:
    fleet = Fleet([node(2)])
    fleet.take(share(100, anti_affinity="a"), at(0, 0))
    assert fleet.usable_cards(share(100, anti_affinity="a"), 0) == [1]
    assert fleet.usable_cards(share(100, anti_affinity="b"), 0) == [0, 1]


def test_exclusion_keeps_every_other_label_and_the_unlabelled_away() -> None:
    fleet = Fleet([node(3)])
    fleet.take(share(100, exclusion="a"), at(0, 0))
    fleet.take(share(100), at(0, 1))
    assert fleet.usable_cards(share(100, exclusion="a"), 0) == [0, 2]
    assert fleet.usable_cards(share(100, exclusion="b"), 0) == [2]
    assert fleet.usable_cards(share(100), 0) == [1, 2]


def whole_with(**labels: str) -> Request:
    return share(1000, cpus=0, cards=1, **labels)


def test_affinity_of_whole_cards_goes_to_the_node_of_its_own_kind_or_to_an_idle_one() -> None:
    fleet = Fleet([node(3), node(3), node(3)])
    fleet.take(whole_with(affinity="a"), at(0, 0))
    fleet.take(whole(), at(1, 0))
    assert [fleet.fits(whole_with(affinity="a"), number) for number in range(3)] == [True, False, True]
    assert [fleet.fits(whole_with(affinity="b"), number) for number in range(3)] == [False, False, True]
    assert all(fleet.fits(whole(), number) for number in range(3)), "affinity keeps nobody else away"


def test_anti_affinity_of_whole_cards_keeps_its_own_kind_from_the_node_shared_cards_too() -> None:
    fleet = Fleet([node(3), node(3)])
    fleet.take(whole_with(anti_affinity="a"), at(0, 0))
    assert not fleet.fits(whole_with(anti_affinity="a"), 0)
    assert not fleet.fits(share(100, anti_affinity="a"), 0)
    assert fleet.fits(whole_with(anti_affinity="b"), 0)
    fleet.take(share(100, anti_affinity="a"), at(1, 2))
    assert not fleet.fits(whole_with(anti_affinity="a"), 1)


def test_exclusion_of_whole_cards_keeps_all_others_from_the_node() -> None:
    fleet = Fleet([node(4), node(4)])
    fleet.take(whole_with(exclusion="a"), at(0, 0))
    fleet.take(whole(), at(1, 0))
    assert fleet.fits(whole_with(exclusion="a"), 0)
    assert fleet.fits(share(100, exclusion="a"), 0)
    for other in (whole(), whole_with(exclusion="b"), share(100), share(100, exclusion="b")):
        assert not fleet.fits(other, 0)
    assert not fleet.fits(whole_with(exclusion="a"), 1), "somebody without a label is there"
    fleet.give(whole_with(exclusion="a"), at(0, 0))
    assert fleet.fits(whole(), 0)


def test_labels_of_shares_bind_only_their_card() -> None:
    fleet = Fleet([node(2)])
    fleet.take(share(100, exclusion="a", anti_affinity="a"), at(0, 0))
    assert fleet.usable_cards(whole(), 0) == [1]


@pytest.mark.parametrize("labels", [{"exclusion": "a"}, {"anti_affinity": "a"}])
def test_f5_broken_on_a_node_of_whole_cards_is_noticed(labels: dict[str, str]) -> None:
    fleet = Fleet([node(2)])
    enter_unchecked(fleet, whole_with(**labels), 1)
    other = share(100, anti_affinity=labels.get("anti_affinity", ""))
    fleet.held[other, at(0, 1)] = 1
    fleet._move(other, at(0, 1), sign=1)
    with pytest.raises(InternalError, match="F5 broken on n:"):
        fleet.check_invariants()


# --- nodes come and go -----------------------------------------------------------------------------------------


def test_a_node_that_is_gone_has_nothing_and_may_come_back() -> None:
    fleet = Fleet([node(2), node(4)])
    fleet.refit(1, NodeSpec(name="n", cards=0))
    assert fleet.capacity_milli == 2000
    assert not fleet.could_ever_fit(whole(4))
    assert not fleet.fits(cpu_only(1), 1)
    fleet.refit(1, node(4))
    assert fleet.fits(whole(4), 1)
    assert fleet.add(node(1)) == 2
    assert fleet.capacity_milli == 7000


def test_f7_a_node_with_members_stays() -> None:
    fleet = Fleet([node(2)])
    fleet.take(share(100), at(0, 0))
    with pytest.raises(InternalError, match="F7 broken"):
        fleet.refit(0, NodeSpec(name="n", cards=0))


def test_a_label_leaves_with_its_member() -> None:
    fleet = Fleet([node(1)])
    for _ in range(2):
        fleet.take(share(100, exclusion="a"), at(0, 0))
    fleet.give(share(100, exclusion="a"), at(0, 0))
    assert not fleet.fits(share(100), 0)
    fleet.give(share(100, exclusion="a"), at(0, 0))
    assert fleet.fits(share(100), 0)


# --- what changed ----------------------------------------------------------------------------------------------


def test_a_cache_is_told_which_nodes_changed_since() -> None:
    fleet = Fleet([node(2), node(2), node(2)])
    fleet.take(share(1), at(0, 0))
    before = fleet.change_count
    fleet.take(share(1), at(2, 0))
    fleet.give(share(1), at(2, 0))
    assert set(fleet.changed_since(before)) == {2}


def test_a_cache_too_far_behind_is_told_every_node() -> None:
    fleet = Fleet([node(2), node(2)])
    for _ in range(CHANGES_KEPT // 2 + 1):
        fleet.take(share(1), at(0, 0))
        fleet.give(share(1), at(0, 0))
    assert set(fleet.changed_since(0)) == {0, 1}
    before = fleet.change_count
    fleet.take(share(1), at(1, 0))
    assert set(fleet.changed_since(before)) == {1}


# --- misuse and broken rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"cards": -1, "card_milli": 0},
        {"cards": 1, "card_milli": 0},
        {"cards": 1, "card_milli": 1001},
        {"cards": 0, "card_milli": 5},
        {"cards": 1, "card_milli": 5, "cpu_milli": -1},
    ],
)
def test_a_request_that_makes_no_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        Request(**wrong)  # type: ignore[arg-type] # plain numbers


def test_a_negative_overcommit_is_refused() -> None:
    with pytest.raises(UsageError, match="zero or more"):
        Fleet([node()], overcommit_percent=-1)


def test_two_cards_are_two_different_cards() -> None:
    fleet = Fleet([node(2)])
    with pytest.raises(InternalError, match="does not fit"):
        fleet.take(share(200, cards=2), at(0, 1, 1))


@pytest.mark.parametrize("where", [at(0, 0), at(0), at(0, 1, 2), at(0, 7)])
def test_taking_what_does_not_fit_is_a_bug_and_changes_nothing(where: object) -> None:
    fleet = Fleet([node(3)])
    fleet.take(share(900), at(0, 0))
    with pytest.raises(InternalError, match="does not fit"):
        fleet.take(share(200), where)  # type: ignore[arg-type] # made by at()
    fleet.check_invariants()
    assert fleet.taken_milli == 900


def test_f6_giving_back_what_was_never_taken_is_noticed() -> None:
    fleet = Fleet([node()])
    fleet.take(share(100), at(0, 0))
    with pytest.raises(InternalError, match="F6 broken"):
        fleet.give(share(100), at(0, 1))
    fleet.give(share(100), at(0, 0))
    with pytest.raises(InternalError, match="F6 broken"):
        fleet.give(share(100), at(0, 0))


def test_f6_books_that_do_not_add_up_are_noticed() -> None:
    fleet = Fleet([node()])
    fleet.take(share(100), at(0, 0))
    fleet.free_milli[0][1] -= 1
    with pytest.raises(InternalError, match="F6 broken: free_milli"):
        fleet.check_invariants()


def enter_unchecked(fleet: Fleet, request: Request, times: int) -> None:
    """Put members on the first card without asking whether they fit."""
    fleet.held[request, at(0, 0)] = times
    for _ in range(times):
        fleet._move(request, at(0, 0), sign=1)


@pytest.mark.parametrize(
    ("request_", "rule"),
    [
        (share(600), "F1"),
        (whole(), "F2"),
        (memory(10), "F3"),
        (share(1, cpus=10), "F4"),
        (share(1, anti_affinity="a"), "F5"),
    ],
)
def test_a_broken_rule_is_noticed(request_: Request, rule: str) -> None:
    fleet = Fleet([node(1, card_gib=16, cpus=16)])
    enter_unchecked(fleet, request_, 2)
    with pytest.raises(InternalError, match=f"{rule} broken"):
        fleet.check_invariants()


@pytest.mark.parametrize("other", ["b", ""])
def test_f5_two_exclusion_labels_on_a_card_are_noticed(other: str) -> None:
    fleet = Fleet([node(1)])
    enter_unchecked(fleet, share(1, exclusion="a"), 1)
    enter_unchecked(fleet, share(1, exclusion=other), 1)
    with pytest.raises(InternalError, match="F5 broken"):
        fleet.check_invariants()


# --- cards of one node that differ -------------------------------------------------------------------------------

MIXED = node_of(
    "m",
    (
        CardSpec(id="GPU-a", model="T4", card_bytes=16 * GIB),
        CardSpec(id="GPU-b", model="A100", card_bytes=80 * GIB),
        CardSpec(id="GPU-c", model="A100", card_bytes=40 * GIB),
        CardSpec(id="GPU-d", model="K80"),
    ),
    cpu_milli=64_000,
)


@pytest.mark.parametrize("rule", [name for name in RULES if name != "random_fit"])
def test_models_and_bytes_are_asked_of_each_card_of_a_mixed_node(rule: str) -> None:
    fleet = Fleet([MIXED])
    placer = Placer(fleet, make_rule(rule))
    assert placer.place(Request(cards=2, card_milli=1000, models=frozenset({"A100"}))) == at(0, 1, 2)
    assert placer.place(Request(cards=1, card_milli=500, card_bytes=20 * GIB)) == at(0, 3), "its size is unknown"
    assert placer.place(Request(cards=1, card_milli=500, models=frozenset({"T4"}), card_bytes=17 * GIB)) is None
    assert placer.place(Request(cards=1, card_milli=500, models=frozenset({"T4"}), card_bytes=16 * GIB)) == at(0, 0)
    fleet.check_invariants()
    assert fleet.free_bytes == [[0, 0, 0, 0]]
    assert not fleet.could_ever_fit(Request(cards=3, card_milli=1000, models=frozenset({"A100"})))
    assert fleet.could_ever_fit(Request(cards=4, card_milli=1000))


@pytest.mark.parametrize("rule", ["fragmentation", "tidy"])
def test_a_mixed_node_whose_cards_are_alike_after_all_is_rated_as_a_plain_one(rule: str) -> None:
    """Fragmentation of cards that differ is computed another way; where they hardly differ both must agree."""
    nearly = tuple(CardSpec(id=f"c{number}", card_bytes=0 if number else 1 << 60) for number in range(4))
    demand = {share(300): 5, whole(1): 3, whole(2): 1, share(500, cpus=2): 2}
    plain, mixed = Fleet([node(4, cpus=8, card_gib=0)]), Fleet([node_of("n", nearly, cpu_milli=8000)])
    assert mixed.mixed[0]
    assert not plain.mixed[0]
    placers = [Placer(fleet, make_rule(rule, Outlook(demand=demand))) for fleet in (plain, mixed)]
    for request in (share(300), share(500, cpus=2), whole(1), share(300), share(600), whole(1), share(300)):
        first, second = (each.place(request) for each in placers)
        assert first == second


def test_ids_of_cards_are_made_of_the_name_unless_they_are_given() -> None:
    assert [card.id for card in NodeSpec(name="n7", cards=2).card_specs] == ["n7/0", "n7/1"]
    assert [card.id for card in MIXED.card_specs] == ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
    with pytest.raises(UsageError, match="node n: 2 cards need as many different ids"):
        node_of("n", (CardSpec(id="x"), CardSpec(id="x")))
    with pytest.raises(UsageError, match="node n with less than nothing"):
        NodeSpec(name="n", cards=-1)


def test_f8_a_closed_card_counts_for_what_is_taken_of_it() -> None:
    fleet = Fleet([node(2)])
    fleet.take(share(300), at(0, 0))
    fleet.close(0, [0])
    assert fleet.capacity_milli == 1300
    assert fleet.usable_cards(share(300), 0) == [1]
    fleet.check_invariants()
    fleet.give(share(300), at(0, 0))
    assert fleet.capacity_milli == 1000
    fleet.check_invariants()
    fleet.open(0, [0])
    assert fleet.capacity_milli == 2000
    assert fleet.shapes == [(1000, 1000)]
    fleet.check_invariants()


def test_a_request_keeps_off_the_nodes_it_avoids() -> None:
    fleet = Fleet([node(2, name="x"), node(2, name="y")])
    request = Request(cards=1, card_milli=1000, avoids=frozenset({"x"}))
    assert Placer(fleet, make_rule("best_fit")).place(request) == at(1, 0)
    assert fleet.could_ever_fit(request)
    assert not fleet.could_ever_fit(Request(cards=1, card_milli=1000, avoids=frozenset({"x", "y"})))
