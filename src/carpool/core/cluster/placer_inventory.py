"""The inventory for requests of every kind: by the rules of a placer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from carpool.core.cluster.inventory import gone
from carpool.core.cluster.placement.placer import Placer
from carpool.core.cluster.placement.requests import NodeSpec, Place, Placement, Request


class PlacerInventory:
    """Requests of every kind: shares of cards, CPU, memory, models, labels."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._fleet = placer.fleet
        self._numbers = {spec.name: number for number, spec in reversed([*enumerate(self._fleet.nodes)])}

    @property
    def total_milli(self) -> int:
        return self._fleet.total_milli

    @property
    def capacity_milli(self) -> int:
        return self._fleet.capacity_milli

    @property
    def nodes(self) -> int:
        return len(self._fleet.nodes)

    def find_node(self, name: str) -> int | None:
        return self._numbers.get(name)

    def set_node(self, node: int | None, spec: NodeSpec) -> None:
        if node is None:
            self._numbers[spec.name] = self._fleet.add(spec)
        else:
            self._fleet.refit(node, spec)

    def has_node(self, node: int) -> bool:
        return self._fleet.nodes[node] != gone(self._fleet.nodes[node].name)

    def spec_of(self, node: int) -> NodeSpec:
        return self._fleet.nodes[node]

    def named(self, place: Placement) -> Place:
        spec = self._fleet.nodes[place.node]
        ids = spec.card_specs
        return Place(node=spec.name, cards=tuple([ids[card].id for card in place.cards]))

    def close(self, node: int, cards: Iterable[int] | None = None) -> None:
        self._fleet.close(node, cards)

    def open(self, node: int, cards: Iterable[int] | None = None) -> None:
        self._fleet.open(node, cards)

    def is_closed(self, node: int, card: int) -> bool:
        return self._fleet.is_closed(node, card)

    @property
    def free_milli(self) -> int:
        return self.capacity_milli - self._fleet.taken_milli

    def could_ever_fit(self, member: Request) -> bool:
        return self._fleet.could_ever_fit(member)

    def place(self, member: Request) -> Placement | None:
        return self._placer.place(member)

    def counts_cards_only(self, node: int) -> bool:
        return False

    def fits_on(self, member: Request, node: int) -> bool:
        return self._fleet.fits(member, node)

    def lack_of(self, member: Request, node: int) -> str:
        return self._fleet.lack_of(member, node)

    def place_on(self, member: Request, node: int) -> Placement | None:
        usable = self._fleet.usable_cards(member, node)
        if usable is None:
            return None
        place = Placement(node=node, cards=self._placer.rule.cards(self._fleet, member, node, usable))
        self._fleet.take(member, place)
        return place

    def retake(self, member: Request, place: Placement) -> bool:
        if not self._fleet.could_hold(member, place):
            return False
        self._fleet.hold(member, place)
        return True

    def hold(self, member: Request, place: Placement) -> None:
        self._fleet.hold(member, place)

    def give(self, member: Request, place: Placement) -> None:
        self._fleet.give(member, place)

    def usable_milli(self, member: Request, node: int) -> int:
        free, limit = self._fleet.free_milli[node], self._fleet.limit_milli
        return sum(left for left in free if left == limit or not member.is_whole)

    def emptiest(self, member: Request) -> Iterator[int]:
        yield from sorted(range(self.nodes), key=lambda node: (-self.usable_milli(member, node), node))
