"""Nodes, their cards, and the books of what is taken: the ground that every placement rule stands on.

A member of a job asks one node for cards, CPU and memory. It takes whole cards, which nobody else then uses, or a
share of each card (`card_milli`), which others may use too. Both kinds live in one cluster and on one node: a card
is whole or shared by what is on it now, never by configuration.

Rules, asserted by `Fleet.check_invariants`
  P1  The time taken of a card is never above its limit: 1000 thousandths, or what `overcommit_percent` adds to that.
  P2  A whole card has exactly one user; only an untouched card becomes one.
  P3  The bytes taken of a card are never above the card's, overcommit or not. A card of unknown size counts none.
  P4  The CPU and memory taken of a node are never above the node's.
  P5  Labels are kept: see Request.
  P6  What is given back was taken before, and everything given back leaves the fleet as it was built.

What is deliberately not here: which of several places is best (the rules), which job goes first (the cluster's
order), and time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from carpool.errors import InternalError, UsageError

WHOLE_MILLI = 1000  # a whole card, in thousandths of its time
CHANGES_KEPT = 1 << 16  # a cache that is further behind than half of this looks at every node again
BOOKS = (
    *("free_cpu_milli", "free_memory_bytes", "free_milli", "free_bytes", "shapes"),
    *("sizes", "members", "taken_milli", "_labels"),
)
NO_MODELS: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one member of a job wants of one node. Equal requests share cached scores.

    The three labels are those of KubeShare. They speak of a shared card; a whole card has no company to choose.
      affinity        shares a card only where somebody of the same label is, or starts on an untouched card
      anti_affinity   never on a card with somebody of the same label
      exclusion       shares a card only with users of exactly the same exclusion label; no label is a label too
    """

    cards: int  # 0 = CPU only
    card_milli: int  # thousandths of each card's time, 1..1000; 1000 = whole, exclusive cards; 0 with no cards
    card_bytes: int = 0  # memory on each card; 0 = not said: the same share of the card's bytes as of its time
    cpu_milli: int = 0
    memory_bytes: int = 0  # of the host
    models: frozenset[str] = NO_MODELS  # allowed card models; empty = any
    affinity: str = ""
    anti_affinity: str = ""
    exclusion: str = ""

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
class NodeSpec:
    """What a node has when nothing is on it."""

    name: str
    cards: int
    model: str = ""
    card_bytes: int = 0  # of each card; 0 = unknown, then card memory is not counted
    cpu_milli: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a member goes: the node's number in the fleet, and its cards in rising order."""

    node: int
    cards: tuple[int, ...]


class Lots(Protocol):
    """The part of `random.Random` that is used; whoever passes it in has seeded it."""

    def random(self) -> float: ...


class Fleet:
    """The books of all nodes. Read anything; change only by `take` and `give`.

    The order of the nodes is part of the specification: rules break ties in favour of the first.
    """

    def __init__(self, nodes: Sequence[NodeSpec], *, overcommit_percent: int = 0) -> None:
        if overcommit_percent < 0:
            raise UsageError(f"overcommit of {overcommit_percent} %: it is zero or more")
        self.nodes = tuple(nodes)
        self.overcommit_percent = overcommit_percent
        self.limit_milli = WHOLE_MILLI * (100 + overcommit_percent) // 100
        self.node_cpu_milli_max = max((node.cpu_milli for node in self.nodes), default=0)
        self.node_milli_max = WHOLE_MILLI * max((node.cards for node in self.nodes), default=0)
        self.free_cpu_milli = [node.cpu_milli for node in self.nodes]
        self.free_memory_bytes = [node.memory_bytes for node in self.nodes]
        self.free_milli = [[self.limit_milli] * node.cards for node in self.nodes]
        self.shapes = [tuple(free) for free in self.free_milli]  # the same, sorted: nodes that look alike are alike
        self.free_bytes = [[node.card_bytes] * node.cards for node in self.nodes]
        kinds = [replace(node, name="") for node in self.nodes]
        self._kinds = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        self.kinds = [self._kinds[kind] for kind in kinds]  # nodes of one kind differ only by name
        self.members = [0] * len(self.nodes)
        self.held: Counter[tuple[Request, Placement]] = Counter()
        self.sizes: list[Counter[int]] = [Counter() for _ in self.nodes]  # members with cards, by Request.size
        self._changes: list[int] = []  # nodes, in the order of their changes
        self._forgotten = 0  # how many changes came before those
        self._empty: Fleet | None = None  # one node of each kind with nothing on it
        self.taken_milli = 0  # of all cards, in total; a whole card counts 1000
        self._labels: dict[tuple[int, int], Counter[tuple[str, str]]] = {}  # of labelled users, by (node, card)

    @property
    def capacity_milli(self) -> int:
        return WHOLE_MILLI * sum(node.cards for node in self.nodes)

    def untouched_cards(self, node: int) -> list[int]:
        """The cards of a node that nobody uses."""
        limit = self.limit_milli
        return [card for card, free in enumerate(self.free_milli[node]) if free == limit]

    @property
    def change_count(self) -> int:
        """How often `take` and `give` were called: a cache notes it, and asks later what changed since."""
        return self._forgotten + len(self._changes)

    def changed_since(self, count: int) -> Iterable[int]:
        """The nodes that changed after so many changes, each once; every node if that is too long ago to know."""
        if count < self._forgotten:
            return range(len(self.nodes))
        return set(self._changes[count - self._forgotten :])

    # --- what fits -----------------------------------------------------------------------------------------------

    def fits(self, request: Request, node: int) -> bool:
        return self.usable_cards(request, node) is not None

    def usable_cards(self, request: Request, node: int) -> list[int] | None:
        """The cards of the node that the request may use, at least as many as it wants; None if it does not fit."""
        if request.cpu_milli > self.free_cpu_milli[node] or request.memory_bytes > self.free_memory_bytes[node]:
            return None
        if not request.cards:
            return []
        if request.models and self.nodes[node].model not in request.models:
            return None
        least = self.limit_milli if request.is_whole else request.card_milli
        shape = self.shapes[node]
        if len(shape) < request.cards or shape[-request.cards] < least:
            return None
        usable = [card for card, free in enumerate(self.free_milli[node]) if free >= least]
        if self.nodes[node].card_bytes:
            wanted, left = self.bytes_on_card(request, node), self.free_bytes[node]
            usable = [card for card in usable if left[card] >= wanted]
        if self._labels or request.is_labelled:
            usable = [card for card in usable if self._allows(request, node, card)]
        return usable if len(usable) >= request.cards else None

    def bytes_on_card(self, request: Request, node: int) -> int:
        """What the request takes of each card's memory; all of it if the card is whole.

        A share that names no bytes gets its part of the limit, so that overcommitted time never overcommits memory.
        """
        total = self.nodes[node].card_bytes
        if request.is_whole:
            return max(total, request.card_bytes)
        return request.card_bytes or total * request.card_milli // self.limit_milli

    def could_ever_fit(self, request: Request) -> bool:
        """Whether some node would hold the request if nothing else were there."""
        if self._empty is None:
            self._empty = Fleet([*self._kinds], overcommit_percent=self.overcommit_percent)
        return any(self._empty.fits(request, node) for node in range(len(self._empty.nodes)))

    def has_affinity(self, node: int, card: int, label: str) -> bool:
        return ("affinity", label) in self._labels.get((node, card), ())

    def _allows(self, request: Request, node: int, card: int) -> bool:
        if self.free_milli[node][card] == self.limit_milli:
            return True
        labels: Counter[tuple[str, str]] = self._labels.get((node, card), Counter())
        if request.affinity and ("affinity", request.affinity) not in labels:
            return False
        if request.anti_affinity and ("anti_affinity", request.anti_affinity) in labels:
            return False
        return request.exclusion == next((label for kind, label in labels if kind == "exclusion"), "")

    # --- the two changes -----------------------------------------------------------------------------------------

    def take(self, request: Request, placement: Placement) -> None:
        """Enter a member into the books; the caller has found that it fits."""
        usable, cards = self.usable_cards(request, placement.node), set(placement.cards)
        is_count = len(placement.cards) == len(cards) == request.cards
        if usable is None or not is_count or not cards.issubset(usable):
            raise InternalError(f"{request} does not fit at {placement}")
        self.held[request, placement] += 1
        self._move(request, placement, sign=1)

    def give(self, request: Request, placement: Placement) -> None:
        """Take a member out of the books again."""
        if not self.held[request, placement]:
            raise InternalError(f"P6 broken: {request} was never taken at {placement}")
        self.held[request, placement] -= 1
        if not self.held[request, placement]:
            del self.held[request, placement]
        self._move(request, placement, sign=-1)

    def _move(self, request: Request, placement: Placement, *, sign: int) -> None:
        node = placement.node
        self.free_cpu_milli[node] -= sign * request.cpu_milli
        self.free_memory_bytes[node] -= sign * request.memory_bytes
        milli = self.limit_milli if request.is_whole else request.card_milli
        count = self.bytes_on_card(request, node) if self.nodes[node].card_bytes else 0
        for card in placement.cards:
            self.free_milli[node][card] -= sign * milli
            self.free_bytes[node][card] -= sign * count
            if request.is_labelled:
                self._label(request, node, card, sign)
        self.shapes[node] = tuple(sorted(self.free_milli[node]))
        self.taken_milli += sign * request.total_milli
        if request.cards:
            sizes = self.sizes[node]
            sizes[request.size] += sign
            if not sizes[request.size]:
                del sizes[request.size]
        self.members[node] += sign
        self._changes.append(node)
        if len(self._changes) > CHANGES_KEPT:
            self._forgotten += CHANGES_KEPT // 2
            del self._changes[: CHANGES_KEPT // 2]

    def _label(self, request: Request, node: int, card: int, sign: int) -> None:
        labels = self._labels.setdefault((node, card), Counter())
        for kind in ("affinity", "anti_affinity", "exclusion"):
            label = getattr(request, kind)
            if label:
                labels[kind, label] += sign
                if not labels[kind, label]:
                    del labels[kind, label]
        if not labels:
            del self._labels[node, card]

    # --- the rules -----------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Assert P1 to P6 against a second set of books, built anew from what is held; a failure is a bug."""
        again = Fleet(self.nodes, overcommit_percent=self.overcommit_percent)
        for (request, placement), count in self.held.items():
            for _ in range(count):
                again._move(request, placement, sign=1)
        for name in BOOKS:
            if getattr(self, name) != getattr(again, name):
                raise InternalError(f"P6 broken: {name} is not what the members held add up to")
        for (node, card), users in self._users().items():
            self._check_company(node, card, users)
        for node, spec in enumerate(self.nodes):
            if self.free_cpu_milli[node] < 0 or self.free_memory_bytes[node] < 0:
                raise InternalError(f"P4 broken on {spec.name}: more CPU or memory taken than there is")
            if min(self.free_milli[node], default=0) < 0:
                raise InternalError(f"P1 broken on {spec.name}: more than {self.limit_milli} m taken of a card")
            if min(self.free_bytes[node], default=0) < 0:
                raise InternalError(f"P3 broken on {spec.name}: more bytes taken of a card than it has")

    def _users(self) -> dict[tuple[int, int], list[Request]]:
        users: dict[tuple[int, int], list[Request]] = {}
        for (request, placement), count in self.held.items():
            for card in placement.cards:
                users.setdefault((placement.node, card), []).extend([request] * count)
        return users

    def _check_company(self, node: int, card: int, users: list[Request]) -> None:
        where = f"on card {card} of {self.nodes[node].name}"
        if len(users) > 1 and any(user.is_whole for user in users):
            raise InternalError(f"P2 broken {where}: a whole card with {len(users)} users")
        if len({user.exclusion for user in users}) > 1:
            raise InternalError(f"P5 broken {where}: users with and without the same exclusion label")
        apart = [user.anti_affinity for user in users if user.anti_affinity]
        if len(set(apart)) < len(apart):
            raise InternalError(f"P5 broken {where}: two users of one anti-affinity label")
