"""What is asked for, what a node has, and where something goes: the words of placement. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from carpool.errors import UsageError

WHOLE_MILLI = 1000  # a whole card, in thousandths of its time
NO_NAMES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one member of a job wants of one node. Equal requests share cached scores. The labels: see labels.py."""

    cards: int  # 0 = CPU only
    card_milli: int  # thousandths of each card's time, 1..1000; 1000 = whole, exclusive cards; 0 with no cards
    card_bytes: int = 0  # memory on each card; 0 = not said: the same share of the card's bytes as of its time
    cpu_milli: int = 0
    memory_bytes: int = 0  # of the host
    models: frozenset[str] = NO_NAMES  # allowed card models; empty = any
    affinity: str = ""
    anti_affinity: str = ""
    exclusion: str = ""
    avoids: frozenset[str] = NO_NAMES  # names of nodes it must not be on

    def __post_init__(self) -> None:
        if self.cards < 0 or not (0 < self.card_milli <= WHOLE_MILLI if self.cards else self.card_milli == 0):
            raise UsageError(f"{self.cards} cards of {self.card_milli} m: a card's share is 1 to 1000 thousandths")
        if min(self.card_bytes, self.cpu_milli, self.memory_bytes) < 0:
            raise UsageError("a request for less than nothing: bytes and CPU are zero or more")

    @property
    def is_whole(self) -> bool:
        return self.card_milli == WHOLE_MILLI

    @property
    def total_milli(self) -> int:
        """The card time asked for, over all cards."""
        return self.cards * self.card_milli

    @property
    def size(self) -> int:
        """How many whole cards; 0 for shares of cards."""
        return self.cards if self.is_whole else 0

    @property
    def is_labelled(self) -> bool:
        return bool(self.affinity or self.anti_affinity or self.exclusion)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSpec:
    """One card of a node when nothing is on it."""

    id: str  # its UUID, or any other name that no card of the node shares
    model: str = ""
    card_bytes: int = 0  # 0 = unknown, then its memory is not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """What a node has when nothing is on it.

    `cards`, `model` and `card_bytes` describe cards that are all alike; their ids are then made of the node's name:
    n7/0, n7/1. `each` names them one by one, and then they may differ.
    """

    name: str
    cards: int
    model: str = ""
    card_bytes: int = 0  # of each card; 0 = unknown, then card memory is not counted
    cpu_milli: int = 0
    memory_bytes: int = 0
    each: tuple[CardSpec, ...] = ()

    def __post_init__(self) -> None:
        if min(self.cards, self.card_bytes, self.cpu_milli, self.memory_bytes) < 0:
            raise UsageError(f"node {self.name} with less than nothing: cards, bytes and CPU are zero or more")
        if self.each and len({card.id for card in self.each}) != self.cards:
            raise UsageError(f"node {self.name}: {self.cards} cards need as many different ids")

    @property
    def card_specs(self) -> tuple[CardSpec, ...]:
        """Its cards one by one."""
        return self.each or tuple(
            CardSpec(id=f"{self.name}/{number}", model=self.model, card_bytes=self.card_bytes)
            for number in range(self.cards)
        )

    @property
    def kind(self) -> tuple[object, ...]:
        """What nodes that differ only by name and ids have in common."""
        cards = tuple((card.model, card.card_bytes) for card in self.card_specs)
        return self.cpu_milli, self.memory_bytes, cards


def node_of(name: str, each: tuple[CardSpec, ...], *, cpu_milli: int = 0, memory_bytes: int = 0) -> NodeSpec:
    """A node whose cards are named one by one."""
    return NodeSpec(name=name, cards=len(each), each=each, cpu_milli=cpu_milli, memory_bytes=memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a member is, by the names that drivers know: the node's, and the ids of its cards there."""

    node: str
    cards: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The same inside the scheduler: the node's number, and the numbers of its cards in rising order."""

    node: int
    cards: tuple[int, ...]
