"""Nodes, their cards, and what is taken of them: the ground that every placement rule stands on.

A member of a job asks one node for cards, CPU and memory. It takes whole cards, which nobody else then uses, or a
share of each card (`card_milli`), which others may use too. Both kinds live in one cluster and on one node: a card
is whole or shared by what is on it now, never by configuration. Cards of one node may differ in model and memory.

Rules, asserted by `Fleet.check_invariants`
  F1  The time taken of a card is never above its limit: 1000 thousandths, or what `overcommit_percent` adds to that.
  F2  A whole card has exactly one user; only an untouched card becomes one.
  F3  The bytes taken of a card are never above the card's, overcommit or not. A card of unknown size counts none.
  F4  The CPU and memory taken of a node are never above the node's.
  F5  Labels are kept: see labels.py.
  F6  What is given back was taken before, and everything given back leaves the fleet as it was built.
  F7  A node that is gone has nothing, and nothing is on it. It keeps its number, and has it again if it comes back.
  F8  A closed card, or a closed node, gets nobody new. Who is there stays, and only what is taken of it counts.
  F9  What was found (`hold`) counts as it is, also where it breaks F1 to F5. Such a node gets nobody new on what is
      over its limit, and the rules hold there again once enough has left.

What is deliberately not here: which of several places is best (the rules), which job goes first (the cluster's
order), and time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from carpool.core.cluster.placement.labels import Labels, check_company
from carpool.core.cluster.placement.requests import WHOLE_MILLI, CardSpec, NodeSpec, Placement, Request
from carpool.errors import InternalError, UsageError

CHANGES_KEPT = 1 << 16  # a cache that is further behind than half of this looks at every node again
COUNTED = (
    *("free_cpu_milli", "free_memory_bytes", "free_milli", "free_bytes", "shapes"),
    *("sizes", "members", "taken_milli", "capacity_milli", "labels"),
)


class Fleet:
    """What is taken of all nodes. Read anything; change only by `take` and `give`.

    The order of the nodes is part of the specification: rules break ties in favour of the first.
    """

    def __init__(self, nodes: Sequence[NodeSpec], *, overcommit_percent: int = 0) -> None:
        if overcommit_percent < 0:
            raise UsageError(f"overcommit of {overcommit_percent} %: it is zero or more")
        self.overcommit_percent = overcommit_percent
        self.limit_milli = WHOLE_MILLI * (100 + overcommit_percent) // 100
        self.nodes: list[NodeSpec] = []
        self.node_cpu_milli_max = 0
        self.node_milli_max = 0
        self.free_cpu_milli: list[int] = []
        self.free_memory_bytes: list[int] = []
        self.free_milli: list[list[int]] = []
        self.shapes: list[tuple[int, ...]] = []  # the same, sorted: nodes that look alike are alike
        self.free_bytes: list[list[int]] = []
        self.mixed: list[tuple[CardSpec, ...]] = []  # the cards of a node that differ; empty where all are alike
        self.models: list[str] = []  # of cards that are alike
        self.sized: list[bool] = []  # whether somebody knows how much memory cards of the node have
        self._kinds: dict[tuple[object, ...], int] = {}
        self.kinds: list[int] = []  # nodes of one kind differ only by name
        self.members: list[int] = []
        self.sizes: list[Counter[int]] = []  # members with cards, by Request.size
        self.held: Counter[tuple[Request, Placement]] = Counter()
        self.found: Counter[tuple[Request, Placement]] = Counter()  # of these: held although they did not fit (F9)
        self.closed_nodes: set[int] = set()
        self._hidden: dict[tuple[int, int], int] = {}  # closed cards: the time that is really left there
        self._idle_closed_milli = 0  # of closed cards, what nobody uses
        self.rebuilt = 0  # how often nodes came or went: what was known of all nodes is then void
        self._changes: list[int] = []  # nodes, in the order of their changes
        self._forgotten = 0  # how many changes came before those
        self._empty: Fleet | None = None  # one node of each kind with nothing on it
        self._empty_number: dict[tuple[object, ...], int] = {}
        self.taken_milli = 0  # of all cards, in total; a whole card counts 1000
        self.total_milli = 0
        self.labels = Labels()
        for node in nodes:
            self.add(node)

    # --- nodes come and go ---------------------------------------------------------------------------------------

    def add(self, spec: NodeSpec) -> int:
        """A node more, behind all others; its number."""
        self.nodes.append(spec)
        for counts in (self.free_cpu_milli, self.free_memory_bytes, self.kinds, self.members):
            counts.append(0)
        self.mixed.append(())
        self.models.append("")
        self.sized.append(False)
        self.free_milli.append([])
        self.free_bytes.append([])
        self.shapes.append(())
        self.sizes.append(Counter())
        self.refit(len(self.nodes) - 1, spec)
        return len(self.nodes) - 1

    def refit(self, node: int, spec: NodeSpec) -> None:
        """Another machine in the place of one that nobody is on; of one that is gone, nothing but its name (F7)."""
        if self.members[node]:
            raise InternalError(f"F7 broken: {self.members[node]} members are on {spec.name}, which changes")
        self.open(node)
        cards = spec.card_specs
        is_mixed = len({(card.model, card.card_bytes) for card in cards}) > 1
        self.total_milli += WHOLE_MILLI * (spec.cards - len(self.free_milli[node]))
        self.nodes[node] = spec
        self.mixed[node] = cards if is_mixed else ()
        self.models[node] = cards[0].model if cards else spec.model
        self.sized[node] = any(card.card_bytes for card in cards)
        self.free_cpu_milli[node] = spec.cpu_milli
        self.free_memory_bytes[node] = spec.memory_bytes
        self.free_milli[node] = [self.limit_milli] * spec.cards
        self.shapes[node] = tuple(self.free_milli[node])
        self.free_bytes[node] = [card.card_bytes for card in cards]
        self.kinds[node] = self._kinds.setdefault(spec.kind, len(self._kinds))
        self.node_cpu_milli_max = max(self.node_cpu_milli_max, spec.cpu_milli)
        self.node_milli_max = max(self.node_milli_max, WHOLE_MILLI * spec.cards)
        self.rebuilt += 1
        self._empty = None

    @property
    def capacity_milli(self) -> int:
        """All cards in thousandths; of closed ones what is taken of them (F8)."""
        return self.total_milli - self._idle_closed_milli

    def close(self, node: int, cards: Iterable[int] | None = None) -> None:
        """Nobody new comes to these cards, or to the whole node (F8). To the rules a closed card looks full."""
        for card in range(len(self.free_milli[node])) if cards is None else cards:
            if (node, card) not in self._hidden:
                self._hidden[node, card] = self.free_milli[node][card]
                self.free_milli[node][card] = 0
                self._idle_closed_milli += self._idle_milli(node, card)
        if cards is None:
            self.closed_nodes.add(node)
        self._looks_other(node)

    def open(self, node: int, cards: Iterable[int] | None = None) -> None:
        """Closed cards, or a closed node, may be used again."""
        for card in range(len(self.free_milli[node])) if cards is None else cards:
            if (node, card) in self._hidden:
                self._idle_closed_milli -= self._idle_milli(node, card)
                self.free_milli[node][card] = self._hidden.pop((node, card))
        if cards is None:
            self.closed_nodes.discard(node)
        self._looks_other(node)

    def is_closed(self, node: int, card: int) -> bool:
        return (node, card) in self._hidden

    def closed_somewhere(self) -> set[int]:
        """The nodes that are closed, or have a closed card."""
        return self.closed_nodes | {node for node, _ in self._hidden}

    def _idle_milli(self, node: int, card: int) -> int:
        """What nobody uses of a closed card."""
        return max(0, self._hidden[node, card]) * WHOLE_MILLI // self.limit_milli

    def _looks_other(self, node: int) -> None:
        self.shapes[node] = tuple(sorted(self.free_milli[node]))
        self.rebuilt += 1

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
        if self.closed_nodes and node in self.closed_nodes:
            return None
        if request.avoids and self.nodes[node].name in request.avoids:
            return None
        if not request.cards:
            return []
        mixed = self.mixed[node]
        if request.models and not mixed and self.models[node] not in request.models:
            return None
        least = self.limit_milli if request.is_whole else request.card_milli
        shape = self.shapes[node]
        if len(shape) < request.cards or shape[-request.cards] < least:
            return None
        usable = [card for card, free in enumerate(self.free_milli[node]) if free >= least]
        if mixed:
            usable = [card for card in usable if self._suits(request, node, card)]
        elif self.sized[node]:
            wanted, left = self.bytes_on_card(request, node), self.free_bytes[node]
            usable = [card for card in usable if left[card] >= wanted]
        if self.labels or request.is_labelled:
            usable = self._beside_others(request, node, usable)
        return usable if len(usable) >= request.cards else None

    def lack_of(self, request: Request, node: int) -> str:
        """What the node lacks for the request, in one word, the first that is missing; empty if it fits."""
        if self.usable_cards(request, node) is not None:
            return ""
        if self.nodes[node].name in request.avoids:
            return "avoided"
        if node in self.closed_nodes:
            return "cordoned"
        cards = range(len(self.free_milli[node]))
        suiting = [card for card in cards if not request.models or self._model(node, card) in request.models]
        least = self.limit_milli if request.is_whole else request.card_milli
        enough = [card for card in suiting if self._hidden.get((node, card), self.free_milli[node][card]) >= least]
        roomy = [card for card in enough if not self.card_bytes(node, card) or self._has_bytes(request, node, card)]
        for word, left in (("model", suiting), ("cards", enough), ("bytes", roomy)):
            if len(left) < request.cards:
                return word
        if request.cpu_milli > self.free_cpu_milli[node]:
            return "cpu"
        if request.memory_bytes > self.free_memory_bytes[node]:
            return "memory"
        is_open = sum((node, card) not in self._hidden for card in roomy) >= request.cards
        return "labels" if is_open else "cordoned"

    def _model(self, node: int, card: int) -> str:
        return self.mixed[node][card].model if self.mixed[node] else self.models[node]

    def _has_bytes(self, request: Request, node: int, card: int) -> bool:
        return self.free_bytes[node][card] >= self.bytes_on_card(request, node, card)

    def _beside_others(self, request: Request, node: int, cards: list[int]) -> list[int]:
        """Those of the cards on which labels allow the request (F5)."""
        if not self.labels.allow_node(request, node, self.sizes[node].total()):
            return []
        free, untouched = self.free_milli[node], self.limit_milli
        return [card for card in cards if free[card] == untouched or self.labels.allow_card(request, node, card)]

    def _suits(self, request: Request, node: int, card: int) -> bool:
        """Whether one of several different cards is of an allowed model and has the bytes."""
        if request.models and self.mixed[node][card].model not in request.models:
            return False
        has_bytes = self.mixed[node][card].card_bytes
        return not has_bytes or self.free_bytes[node][card] >= self.bytes_on_card(request, node, card)

    def card_bytes(self, node: int, card: int) -> int:
        """The memory of a card; 0 if nobody knows."""
        spec = self.nodes[node]
        return spec.each[card].card_bytes if spec.each else spec.card_bytes

    def bytes_on_card(self, request: Request, node: int, card: int = 0) -> int:
        """What the request takes of a card's memory; all of it if the card is whole.

        A share that names no bytes gets its part of the limit, so that overcommitted time never overcommits memory.
        """
        total = self.card_bytes(node, card)
        if request.is_whole:
            return max(total, request.card_bytes)
        return request.card_bytes or total * request.card_milli // self.limit_milli

    def could_ever_fit(self, request: Request) -> bool:
        """Whether some node would hold the request if nothing else were there, and nothing closed."""
        if self._empty is None:
            kinds = {spec.kind: spec for spec in self.nodes}
            self._empty = Fleet([*kinds.values()], overcommit_percent=self.overcommit_percent)
            self._empty_number = {kind: number for number, kind in enumerate(kinds)}
        allowed = (spec for spec in self.nodes if spec.name not in request.avoids)
        plain = replace(request, avoids=frozenset()) if request.avoids else request
        kinds_allowed = {spec.kind for spec in allowed} if request.avoids else self._empty_number
        return any(self._empty.fits(plain, self._empty_number[kind]) for kind in kinds_allowed)

    # --- the changes ---------------------------------------------------------------------------------------------

    def take(self, request: Request, placement: Placement) -> None:
        """Count a member in; the caller has found that it fits."""
        usable, cards = self.usable_cards(request, placement.node), set(placement.cards)
        is_count = len(placement.cards) == len(cards) == request.cards
        if usable is None or not is_count or not cards.issubset(usable):
            raise InternalError(f"{request} does not fit at {placement}")
        self.held[request, placement] += 1
        self._move(request, placement, sign=1)

    def hold(self, request: Request, placement: Placement) -> None:
        """Count a member in that is there as a matter of fact, whether or not it fits (F9)."""
        if not self.could_hold(request, placement):
            self.found[request, placement] += 1
        self.held[request, placement] += 1
        self._move(request, placement, sign=1)

    def could_hold(self, request: Request, placement: Placement) -> bool:
        """Whether exactly this place is free, be it closed or not."""
        node, is_closed = placement.node, placement.node in self.closed_nodes
        hidden = {card: self._hidden[node, card] for card in placement.cards if (node, card) in self._hidden}
        self.closed_nodes.discard(node)
        self._show(node, hidden)
        usable = self.usable_cards(request, node)
        self._show(node, dict.fromkeys(hidden, 0))
        if is_closed:
            self.closed_nodes.add(node)
        return usable is not None and set(placement.cards) <= set(usable)

    def _show(self, node: int, free_milli: dict[int, int]) -> None:
        """Let cards look as if so much time were left on them."""
        if free_milli:
            for card, left in free_milli.items():
                self.free_milli[node][card] = left
            self.shapes[node] = tuple(sorted(self.free_milli[node]))

    def give(self, request: Request, placement: Placement) -> None:
        """Count a member out again."""
        if not self.held[request, placement]:
            raise InternalError(f"F6 broken: {request} was never taken at {placement}")
        self.held[request, placement] -= 1
        if not self.held[request, placement]:
            del self.held[request, placement]
        if self.found and self.found[request, placement] > self.held[request, placement]:
            self.found[request, placement] -= 1
        self._move(request, placement, sign=-1)

    def _move(self, request: Request, placement: Placement, *, sign: int) -> None:
        node = placement.node
        self.free_cpu_milli[node] -= sign * request.cpu_milli
        self.free_memory_bytes[node] -= sign * request.memory_bytes
        milli = self.limit_milli if request.is_whole else request.card_milli
        for card in placement.cards:
            if self._hidden and (node, card) in self._hidden:
                self._idle_closed_milli -= self._idle_milli(node, card)
                self._hidden[node, card] -= sign * milli
                self._idle_closed_milli += self._idle_milli(node, card)
            else:
                self.free_milli[node][card] -= sign * milli
            if self.sized[node] and self.card_bytes(node, card):
                self.free_bytes[node][card] -= sign * self.bytes_on_card(request, node, card)
        self.shapes[node] = tuple(sorted(self.free_milli[node]))
        self.taken_milli += sign * request.total_milli
        if request.is_labelled and request.cards:
            self.labels.note(request, placement, sign)
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

    # --- the rules -----------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Assert F1 to F9 against a second fleet, built anew from what is held; a failure is a bug."""
        again = Fleet(self.nodes, overcommit_percent=self.overcommit_percent)
        for node, card in self._hidden:
            again.close(node, [card])
        for (request, placement), count in self.held.items():
            for _ in range(count):
                again._move(request, placement, sign=1)
        for name in COUNTED:
            if getattr(self, name) != getattr(again, name):
                raise InternalError(f"F6 broken: {name} is not what the members held add up to")
        over = {placement.node for _, placement in +self.found}
        if not over:
            self._check_company()
        for node, spec in enumerate(self.nodes):
            if node in over:
                continue
            if self.free_cpu_milli[node] < 0 or self.free_memory_bytes[node] < 0:
                raise InternalError(f"F4 broken on {spec.name}: more CPU or memory taken than there is")
            if min(self.free_milli[node], default=0) < 0:
                raise InternalError(f"F1 broken on {spec.name}: more than {self.limit_milli} m taken of a card")
            if min(self.free_bytes[node], default=0) < 0:
                raise InternalError(f"F3 broken on {spec.name}: more bytes taken of a card than it has")

    def _check_company(self) -> None:
        on_card: dict[tuple[int, int], list[Request]] = {}
        on_node: dict[int, list[Request]] = {}
        for (request, placement), count in self.held.items():
            if placement.cards:
                on_node.setdefault(placement.node, []).extend([request] * count)
            for card in placement.cards:
                on_card.setdefault((placement.node, card), []).extend([request] * count)
        for (node, card), users in on_card.items():
            where = f"on card {card} of {self.nodes[node].name}"
            if len(users) > 1 and any(user.is_whole for user in users):
                raise InternalError(f"F2 broken {where}: a whole card with {len(users)} users")
            check_company(where, users)
        for node, users in on_node.items():
            if any(user.is_whole for user in users):
                check_company(f"on {self.nodes[node].name}", users)
