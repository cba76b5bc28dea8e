"""What is taken of the nodes' cards: by the rules of a placer for requests of all kinds, or counted for whole cards.

Both give the same places for whole cards where nothing else is asked for: the node that is left with the fewest free
cards, the first of those, and there the first cards. Counting is some ten times faster.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Protocol

from carpool.core.cluster.placement.requests import WHOLE_MILLI, NodeSpec, Placement, Request
from carpool.errors import InternalError


class Inventory(Protocol):
    @property
    def capacity_milli(self) -> int:
        """All cards, in thousandths."""

    @property
    def free_milli(self) -> int:
        """Card time that nobody has; on shared cards it may be in pieces too small for anybody."""

    @property
    def nodes(self) -> int:
        """How many there are, with those that are gone."""

    @property
    def counts_cards_only(self) -> bool:
        """Whether enough free card time on a node is enough for a request."""

    def find_node(self, name: str) -> int | None:
        """The number of a node that is there or was there."""

    def set_node(self, node: int | None, spec: NodeSpec) -> None:
        """A node more, or with a number another one in the place of one that nobody is on; without cards: gone."""

    def has_node(self, node: int) -> bool:
        """Whether the node is there."""

    def could_ever_fit(self, member: Request) -> bool:
        """Whether an empty node would hold it."""

    def place(self, member: Request) -> Placement | None:
        """Take the best free place."""

    def fits_on(self, member: Request, node: int) -> bool:
        """Whether there is a free place on this node."""

    def place_on(self, member: Request, node: int) -> Placement | None:
        """Take a free place on this node."""

    def retake(self, member: Request, place: Placement) -> bool:
        """Take exactly this place, if it is free."""

    def give(self, member: Request, place: Placement) -> None:
        """Give a place back."""

    def usable_milli(self, member: Request, node: int) -> int:
        """At most this much card time of the node is free for the request."""

    def emptiest(self, member: Request) -> Iterator[int]:
        """All nodes, those with the most usable card time first; ties go to the first node."""


class CardInventory:
    """Whole cards and nothing else: each node has a list of free cards, and nodes stand in rows by how many."""

    counts_cards_only = True

    def __init__(self, nodes: Sequence[NodeSpec]) -> None:
        self._names: list[str] = []
        self._cards: list[int] = []
        self._free: list[list[int]] = []
        self._rows: list[list[int]] = [[]]  # nodes by the number of their free cards
        self.capacity_milli = 0
        self.free_milli = 0
        for node in nodes:
            self.set_node(None, node)

    @property
    def nodes(self) -> int:
        return len(self._names)

    def find_node(self, name: str) -> int | None:
        return self._names.index(name) if name in self._names else None

    def set_node(self, node: int | None, spec: NodeSpec) -> None:
        if node is None:
            node = len(self._names)
            self._names.append(spec.name)
            self._cards.append(0)
            self._free.append([])
            self._rows[0].append(node)
        if len(self._free[node]) != self._cards[node]:
            raise InternalError(f"F7 broken: somebody is on {spec.name}, which changes")
        self._rows += [[] for _ in range(spec.cards + 1 - len(self._rows))]
        self._move(node, self._cards[node], spec.cards)
        self.capacity_milli += WHOLE_MILLI * (spec.cards - self._cards[node])
        self.free_milli += WHOLE_MILLI * (spec.cards - self._cards[node])
        self._cards[node] = spec.cards
        self._free[node] = list(range(spec.cards))

    def has_node(self, node: int) -> bool:
        return self._cards[node] > 0

    def could_ever_fit(self, member: Request) -> bool:
        is_plain = member == Request(cards=member.cards, card_milli=WHOLE_MILLI)
        return is_plain and member.cards <= max(self._cards, default=0)

    def place(self, member: Request) -> Placement | None:
        for row in self._rows[member.cards :]:
            if row:
                return self._take(row[0], self._free[row[0]][: member.cards])
        return None

    def fits_on(self, member: Request, node: int) -> bool:
        return len(self._free[node]) >= member.cards

    def place_on(self, member: Request, node: int) -> Placement | None:
        free = self._free[node]
        return self._take(node, free[: member.cards]) if len(free) >= member.cards else None

    def retake(self, member: Request, place: Placement) -> bool:
        free = self._free[place.node]
        if not all(card in free for card in place.cards):
            return False
        self._take(place.node, list(place.cards))
        return True

    def give(self, member: Request, place: Placement) -> None:
        node, cards = place.node, place.cards
        free = self._free[node]
        self._move(node, len(free), len(free) + len(cards))
        for card in cards:
            insort(free, card)
        self.free_milli += WHOLE_MILLI * len(cards)

    def usable_milli(self, member: Request, node: int) -> int:
        return WHOLE_MILLI * len(self._free[node])

    def emptiest(self, member: Request) -> Iterator[int]:
        for row in reversed(self._rows):
            yield from list(row)

    def check_invariants(self) -> None:
        """Assert F1 and F2 of placement/fleet.py: no card is free twice or unknown, and the rows say the truth."""
        for node, free in enumerate(self._free):
            if free != sorted(set(free)) or not set(free) <= set(range(self._cards[node])):
                raise InternalError(f"F2 broken: the free cards of node {node} are {free}")
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

    def _move(self, node: int, before: int, after: int) -> None:
        row = self._rows[before]
        del row[bisect_left(row, node)]
        insort(self._rows[after], node)


def gone(name: str) -> NodeSpec:
    """What is left of a node that went away."""
    return NodeSpec(name=name, cards=0)
