"""Placement: whatever is taken and given back, F1 to F6 hold, and the caches choose what a fresh look would."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from carpool.core.cluster.placement.base import Outlook, Rule
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.placer import Placer
from carpool.core.cluster.placement.requests import NodeSpec, Placement, Request
from carpool.core.cluster.placement.rules import RULES, make_rule
from tests.properties.effort import share_of_profile

MODELS = ("", "", "", "A10", "T4")
labels = st.sampled_from(["", "", "a", "b"])
nodes = st.builds(
    NodeSpec,
    name=st.just("n"),
    cards=st.sampled_from([4, 3, 2, 1, 0]),
    model=st.sampled_from(MODELS),
    card_bytes=st.sampled_from([0, 16]),
    cpu_milli=st.sampled_from([40, 16, 8]),
    memory_bytes=st.just(40),
)
card_requests = st.builds(
    Request,
    cards=st.sampled_from([1, 1, 1, 2, 3]),
    card_milli=st.sampled_from([190, 320, 470, 500, 810, 1, 1000]),
    card_bytes=st.sampled_from([0, 0, 0, 5, 9, 17]),
    cpu_milli=st.sampled_from([0, 1, 3, 6]),
    memory_bytes=st.integers(0, 5),
    models=st.sampled_from([*[frozenset[str]()] * 5, frozenset({"A10", "T4"})]),
    affinity=labels,
    anti_affinity=labels,
    exclusion=labels,
)
cpu_requests = st.builds(Request, cards=st.just(0), card_milli=st.just(0), cpu_milli=st.sampled_from([1, 4, 9]))
requests = st.one_of(card_requests, card_requests, card_requests, cpu_requests)
demands = st.dictionaries(requests, st.integers(1, 9), max_size=4)


class PlacementMachine(RuleBasedStateMachine):
    """Fills and empties a fleet by one rule, and looks at every choice a second time without any cache."""

    name = "best_fit"

    @initialize(
        specs=st.lists(nodes, min_size=2, max_size=6),
        demand=demands,
        kinds=st.lists(requests, min_size=3, max_size=6),
        overcommit=st.sampled_from([0, 0, 5, 50]),
    )
    def build(self, specs: list[NodeSpec], demand: dict[Request, int], kinds: list[Request], overcommit: int) -> None:
        self.fleet = Fleet(specs, overcommit_percent=overcommit)
        self.outlook = Outlook(demand=demand)
        self.placer = Placer(self.fleet, make_rule(self.name, self.outlook))
        self.kinds = kinds  # few, so that the same request comes again and meets the cache of the last time
        self.members: list[tuple[Request, Placement]] = []

    @rule(index=st.integers(0, 5))
    def place(self, index: int) -> None:
        request = self.kinds[index % len(self.kinds)]
        expected = choose_afresh(self.fleet, make_rule(self.name, self.outlook), request)
        assert self.placer.find(request) == expected
        assert self.placer.place(request) == expected
        if expected is not None:
            self.members.append((request, expected))

    @rule(indices=st.lists(st.integers(0, 5), min_size=2, max_size=4))
    def place_gang(self, indices: list[int]) -> None:
        gang = [self.kinds[index % len(self.kinds)] for index in indices]
        before = dict(self.fleet.held)
        places = self.placer.place_gang(gang)
        if places is None:
            assert dict(self.fleet.held) == before, "all or nothing"
        else:
            self.members.extend(zip(gang, places, strict=True))

    @rule(index=st.integers(0, 50))
    def give_back(self, index: int) -> None:
        if self.members:
            self.fleet.give(*self.members.pop(index % len(self.members)))

    @rule(index=st.integers(0, 5), spec=nodes)
    def change_a_node(self, index: int, spec: NodeSpec) -> None:
        """A node without members goes, or comes back as another machine."""
        node = index % len(self.fleet.nodes)
        if not self.fleet.members[node]:
            self.fleet.refit(node, spec)

    @rule(spec=nodes)
    def add_a_node(self, spec: NodeSpec) -> None:
        if len(self.fleet.nodes) < 9:
            assert self.fleet.add(spec) == len(self.fleet.nodes) - 1

    @invariant()
    def the_rules_hold(self) -> None:
        if hasattr(self, "fleet"):
            self.fleet.check_invariants()
            assert self.fleet.held.total() == len(self.members)

    def teardown(self) -> None:
        for request, placement in getattr(self, "members", []):
            self.fleet.give(request, placement)
        if hasattr(self, "fleet"):
            empty = Fleet(self.fleet.nodes, overcommit_percent=self.fleet.overcommit_percent)
            assert (self.fleet.shapes, self.fleet.free_bytes) == (empty.shapes, empty.free_bytes)
            assert self.fleet.taken_milli == 0


def choose_afresh(fleet: Fleet, judge: Rule, request: Request) -> Placement | None:
    """The least cost over all nodes, with no cache and with another reading of what fits."""
    best: tuple[bool, int, int] | None = None
    cards: tuple[int, ...] = ()
    for node in range(len(fleet.nodes)):
        usable = [card for card in range(fleet.nodes[node].cards) if may_use(fleet, request, node, card)]
        if not node_has_room(fleet, request, node) or len(usable) < request.cards:
            assert not fleet.fits(request, node)
            continue
        homes = [card for card in usable if request.affinity in company_labels(fleet, request, node, card)]
        is_home = bool(request.affinity and request.cards) and len(homes) >= request.cards
        chosen = homes if is_home else usable if request.cards else []
        rank = (not is_home, judge.cost(fleet, request, node, chosen), node)
        if best is None or rank < best:
            best, cards = rank, judge.cards(fleet, request, node, chosen)
    return Placement(node=best[2], cards=cards) if best else None


def company_labels(fleet: Fleet, request: Request, node: int, card: int) -> set[str]:
    company = everybody(fleet, node) if request.is_whole else users(fleet, node, card)
    return {user.affinity for user in company}


def everybody(fleet: Fleet, node: int) -> list[Request]:
    """Those on the node who have cards."""
    held = ((each, place, count) for (each, place), count in fleet.held.items())
    return [each for each, place, count in held if place.node == node and place.cards for _ in range(count)]


def get_along(request: Request, company: list[Request]) -> bool:
    """Whether the request's own labels allow it beside this company."""
    if request.affinity and company and request.affinity not in {each.affinity for each in company}:
        return False
    if request.anti_affinity and request.anti_affinity in {each.anti_affinity for each in company}:
        return False
    return not company or {each.exclusion for each in company} == {request.exclusion}


def is_welcome(fleet: Fleet, request: Request, node: int) -> bool:
    """Whether labels of whole cards, its own or those of others, keep the request from the node."""
    company = everybody(fleet, node)
    for other in company:
        apart = other.anti_affinity and other.anti_affinity == request.anti_affinity
        if other.is_whole and (apart or (other.exclusion and other.exclusion != request.exclusion)):
            return False
    if not request.is_whole:
        return True
    return get_along(request, company if request.exclusion else [replace(each, exclusion="") for each in company])


def users(fleet: Fleet, node: int, card: int) -> list[Request]:
    found: list[Request] = []
    for (request, placement), count in fleet.held.items():
        if placement.node == node and card in placement.cards:
            found.extend([request] * count)
    return found


def node_has_room(fleet: Fleet, request: Request, node: int) -> bool:
    spec = fleet.nodes[node]
    held = [(each, count) for (each, place), count in fleet.held.items() if place.node == node]
    cpu_milli = sum(each.cpu_milli * count for each, count in held) + request.cpu_milli
    memory_bytes = sum(each.memory_bytes * count for each, count in held) + request.memory_bytes
    is_model = not request.cards or not request.models or spec.model in request.models
    has_room = is_model and cpu_milli <= spec.cpu_milli and memory_bytes <= spec.memory_bytes
    return has_room and (not request.cards or is_welcome(fleet, request, node))


def may_use(fleet: Fleet, request: Request, node: int, card: int) -> bool:
    company, total_bytes = users(fleet, node, card), fleet.nodes[node].card_bytes
    if total_bytes and sum(fleet.bytes_on_card(each, node) for each in [*company, request]) > total_bytes:
        return False
    if not company:
        return True
    if request.is_whole or any(each.is_whole for each in company):
        return False
    if sum(each.card_milli for each in [*company, request]) > fleet.limit_milli:
        return False
    return get_along(request, company)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(RULES) - {"random_fit"}))
def test_no_rule_of_placement_is_ever_broken_and_no_cache_ever_shows(name: str) -> None:
    machine = type(f"Machine_{name}", (PlacementMachine,), {"name": name})
    run_state_machine_as_test(machine, settings=settings(max_examples=share_of_profile(60), stateful_step_count=40))
