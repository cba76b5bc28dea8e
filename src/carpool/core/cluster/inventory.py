"""What is taken of the nodes' cards: by the rules of a placer for requests of all kinds, or counted for whole cards.

Both give the same places for whole cards where nothing else is asked for: the node that is left with the fewest free
cards, the first of those, and there the first cards. Counting is some ten times faster.

Inside the scheduler nodes and cards are numbers; `named` turns a place into the names that drivers know.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from carpool.core.cluster.placement.requests import NO_NAMES, WHOLE_MILLI, NodeSpec, Place, Placement, Request
from carpool.errors import InternalError


class Inventory(Protocol):
    @property
    def total_milli(self) -> int:
        """All cards, in thousandths."""

    @property
    def capacity_milli(self) -> int:
        """All cards, in thousandths; of closed ones only what is taken."""

    @property
    def free_milli(self) -> int:
        """Card time that nobody has; on shared cards it may be in pieces too small for anybody."""

    @property
    def nodes(self) -> int:
        """How many there are, with those that are gone."""

    def counts_cards_only(self, node: int) -> bool:
        """Whether as much card time as a request wants is enough for it there, whoever it is that leaves."""

    def find_node(self, name: str) -> int | None:
        """The number of a node that is there or was there."""

    def set_node(self, node: int | None, spec: NodeSpec) -> None:
        """A node more, or with a number another one in the place of one that nobody is on; without cards: gone."""

    def has_node(self, node: int) -> bool:
        """Whether the node is there."""

    def spec_of(self, node: int) -> NodeSpec:
        """What the node has when nothing is on it."""

    def named(self, place: Placement) -> Place:
        """A place by the names of its node and cards."""

    def close(self, node: int, cards: Iterable[int] | None = None) -> None:
        """Nobody new comes to these cards, or to the whole node; who is there stays."""

    def open(self, node: int, cards: Iterable[int] | None = None) -> None:
        """Closed cards, or a closed node, may be used again."""

    def is_closed(self, node: int, card: int) -> bool:
        """Whether nobody new comes to this card."""

    def could_ever_fit(self, member: Request) -> bool:
        """Whether an empty node would hold it, if nothing were closed."""

    def place(self, member: Request) -> Placement | None:
        """Take the best free place."""

    def fits_on(self, member: Request, node: int) -> bool:
        """Whether there is a free place on this node."""

    def lack_of(self, member: Request, node: int) -> str:
        """What the node lacks for the member, in one word; empty if there is room."""

    def place_on(self, member: Request, node: int) -> Placement | None:
        """Take a free place on this node."""

    def retake(self, member: Request, place: Placement) -> bool:
        """Take exactly this place again, if it is free, also if it is closed."""

    def hold(self, member: Request, place: Placement) -> None:
        """Count somebody in who is there as a matter of fact, whether or not it fits."""

    def give(self, member: Request, place: Placement) -> None:
        """Give a place back."""

    def usable_milli(self, member: Request, node: int) -> int:
        """At most this much card time of the node is free for the request."""

    def emptiest(self, member: Request) -> Iterator[int]:
        """All nodes, those with the most usable card time first; ties go to the first node."""


class CardInventory:
    """Whole cards and nothing else: each node has a list of free cards, and nodes stand in rows by how many.

    A job that was found on a card counts there as if it had the card whole.
    """

    def __init__(self, nodes: Sequence[NodeSpec]) -> None:
        self._specs: list[NodeSpec] = []
        self._named: list[dict[tuple[int, ...], Place]] = []  # for each node the places that were named
        self._numbers: dict[str, int] = {}
        self._free: list[list[int]] = []  # the cards of each node that are open and that nobody has
        self._closed: list[dict[int, bool]] = []  # the closed cards of each node, and whether somebody has them
        self._extra: Counter[tuple[int, int]] = Counter()  # how many more than one have a card
        self._rows: list[list[int]] = [[]]  # nodes by the number of their free cards
        self.total_milli = 0
        self.capacity_milli = 0
        self.free_milli = 0
        for node in nodes:
            self.set_node(None, node)

    @property
    def nodes(self) -> int:
        return len(self._specs)

    def find_node(self, name: str) -> int | None:
        return self._numbers.get(name)

    def set_node(self, node: int | None, spec: NodeSpec) -> None:
        if node is None:
            node = len(self._specs)
            self._specs.append(gone(spec.name))
            self._named.append({})
            self._numbers[spec.name] = node
            self._free.append([])
            self._closed.append({})
            self._rows[0].append(node)
        self.open(node)
        before = self._specs[node].cards
        if len(self._free[node]) != before:
            raise InternalError(f"F7 broken: somebody is on {spec.name}, which changes")
        self._rows += [[] for _ in range(spec.cards + 1 - len(self._rows))]
        self._move(node, before, spec.cards)
        more_milli = WHOLE_MILLI * (spec.cards - before)
        self.total_milli += more_milli
        self.capacity_milli += more_milli
        self.free_milli += more_milli
        self._specs[node] = spec
        self._named[node] = {}
        self._free[node] = list(range(spec.cards))

    def has_node(self, node: int) -> bool:
        return self._specs[node].cards > 0

    def spec_of(self, node: int) -> NodeSpec:
        return self._specs[node]

    def named(self, place: Placement) -> Place:
        known = self._named[place.node]
        found = known.get(place.cards)
        if found is None:
            ids = [card.id for card in self._specs[place.node].card_specs]
            found = Place(node=self._specs[place.node].name, cards=tuple([ids[card] for card in place.cards]))
            known[place.cards] = found
        return found

    def close(self, node: int, cards: Iterable[int] | None = None) -> None:
        closed, free = self._closed[node], self._free[node]
        for card in range(self._specs[node].cards) if cards is None else cards:
            if card not in closed:
                closed[card] = card not in free
                if card in free:
                    self._take(node, [card])
                    self.capacity_milli -= WHOLE_MILLI

    def open(self, node: int, cards: Iterable[int] | None = None) -> None:
        closed = self._closed[node]
        for card in list(closed) if cards is None else cards:
            if card in closed and not closed.pop(card):
                self._put_back(node, [card])
                self.capacity_milli += WHOLE_MILLI

    def is_closed(self, node: int, card: int) -> bool:
        return card in self._closed[node]

    def could_ever_fit(self, member: Request) -> bool:
        plain = replace(member, avoids=NO_NAMES) if member.avoids else member
        if plain != Request(cards=member.cards, card_milli=WHOLE_MILLI):
            return False
        return any(spec.cards >= member.cards for spec in self._specs if spec.name not in member.avoids)

    def place(self, member: Request) -> Placement | None:
        for row in self._rows[member.cards :]:
            for node in row:
                if not member.avoids or self._specs[node].name not in member.avoids:
                    return self._take(node, self._free[node][: member.cards])
        return None

    def counts_cards_only(self, node: int) -> bool:
        return not (self._closed[node] or self._extra)

    def fits_on(self, member: Request, node: int) -> bool:
        return len(self._free[node]) >= member.cards and self._specs[node].name not in member.avoids

    def lack_of(self, member: Request, node: int) -> str:
        if self._specs[node].name in member.avoids:
            return "avoided"
        if self.fits_on(member, node):
            return ""
        has_enough = len(self._free[node]) + len(self._closed[node]) >= member.cards
        return "cordoned" if self._closed[node] and has_enough else "cards"

    def place_on(self, member: Request, node: int) -> Placement | None:
        return self._take(node, self._free[node][: member.cards]) if self.fits_on(member, node) else None

    def retake(self, member: Request, place: Placement) -> bool:
        free, closed = self._free[place.node], self._closed[place.node]
        if not all(card in free or closed.get(card) is False for card in place.cards):
            return False
        self.hold(member, place)
        return True

    def hold(self, member: Request, place: Placement) -> None:
        node, cards = place.node, place.cards
        free, closed = self._free[node], self._closed[node]
        for card in cards:
            if card not in free and closed.get(card, True):
                self._extra[node, card] += 1
            elif card in closed:
                closed[card] = True
                self.capacity_milli += WHOLE_MILLI
        self._take(node, [card for card in cards if card in free])

    def give(self, member: Request, place: Placement) -> None:
        node, cards = place.node, place.cards
        if self._extra or self._closed[node]:
            cards = tuple([card for card in cards if self._is_freed(node, card)])
        self._put_back(node, cards)

    def _is_freed(self, node: int, card: int) -> bool:
        """One of those on the card leaves: whether it can be taken by somebody else then."""
        if (node, card) in self._extra:
            self._extra[node, card] -= 1
            if not self._extra[node, card]:
                del self._extra[node, card]
            return False
        if card in self._closed[node]:
            self._closed[node][card] = False
            self.capacity_milli -= WHOLE_MILLI
            return False
        return True

    def usable_milli(self, member: Request, node: int) -> int:
        return WHOLE_MILLI * len(self._free[node])

    def emptiest(self, member: Request) -> Iterator[int]:
        for row in reversed(self._rows):
            yield from list(row)

    def check_invariants(self) -> None:
        """Assert F1 and F2 of placement/fleet.py: no card is free twice or unknown, and the rows say the truth."""
        for node, free in enumerate(self._free):
            if free != sorted(set(free)) or not set(free) <= set(range(self._specs[node].cards)):
                raise InternalError(f"F2 broken: the free cards of node {node} are {free}")
            if set(free) & set(self._closed[node]):
                raise InternalError(f"F8 broken: closed cards of node {node} are free")
            if node not in self._rows[len(free)]:
                raise InternalError(f"node {node} stands in the wrong row")
        if self.free_milli != WHOLE_MILLI * sum(map(len, self._free)):
            raise InternalError("F1 broken: the free cards do not add up")

    def _take(self, node: int, cards: list[int]) -> Placement:
        free = self._free[node]
        self._move(node, len(free), len(free) - len(cards))
        if len(cards) == len(free):
            free.clear()
        else:
            for card in cards:
                free.remove(card)
        self.free_milli -= WHOLE_MILLI * len(cards)
        return Placement(node=node, cards=tuple(cards))

    def _put_back(self, node: int, cards: Sequence[int]) -> None:
        free = self._free[node]
        self._move(node, len(free), len(free) + len(cards))
        for card in cards:
            insort(free, card)
        self.free_milli += WHOLE_MILLI * len(cards)

    def _move(self, node: int, before: int, after: int) -> None:
        row = self._rows[before]
        del row[bisect_left(row, node)]
        insort(self._rows[after], node)


def gone(name: str) -> NodeSpec:
    """What is left of a node that went away."""
    return NodeSpec(name=name, cards=0)
