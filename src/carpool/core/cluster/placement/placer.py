"""The search: the best place in the fleet for a request, by a rule.

Equal requests share one board of costs. A board is brought up to date when its request is asked for, and looks again
only at the nodes that changed since; the best node is the top of a heap whose outdated entries are skipped. So a
decision costs as much as there are changed nodes, not nodes: for D kinds of requests about D changes, on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from carpool.core.cluster.placement.base import Lots, Rule
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.requests import Placement, Request

AT_HOME = 1 << 80  # taken off the cost where somebody of the same affinity already is: more than any rule's cost
BOARDS_MAX = 512  # about 0.1 MiB each for a thousand nodes; the one not asked for the longest goes first
HEAP_FACTOR = 4  # a heap with so many entries a node is mostly outdated, and made anew


class Board:
    """The costs of one request on all nodes, as they were when the fleet had made `seen` changes.

    A cost and its node are kept as one integer, cost × nodes + node: it sorts as the pair would, and is smaller.
    """

    __slots__ = ("entries", "heap", "seen")

    def __init__(self, costs: list[int | None], seen: int) -> None:
        count = len(costs)
        self.entries = [None if cost is None else cost * count + node for node, cost in enumerate(costs)]
        self.seen = seen
        self.heap: list[int] = []  # the entries, and those that are no longer true
        self._rebuild()

    def _rebuild(self) -> None:
        self.heap = [entry for entry in self.entries if entry is not None]
        heapify(self.heap)

    def set(self, node: int, cost: int | None) -> None:
        """Note a node's cost; None: the request does not fit there."""
        entry = None if cost is None else cost * len(self.entries) + node
        if entry == self.entries[node]:
            return
        self.entries[node] = entry
        if entry is not None:
            heappush(self.heap, entry)
            if len(self.heap) > HEAP_FACTOR * len(self.entries):
                self._rebuild()

    def first(self) -> int | None:
        """The node of least cost; of several the first."""
        heap, entries = self.heap, self.entries
        while heap:
            node = heap[0] % len(entries)
            if entries[node] == heap[0]:
                return node
            heappop(heap)
        return None

    def drawn(self, lots: Lots) -> int | None:
        """The node of least cost; of several one drawn by lot."""
        first = self.first()
        if first is None:
            return None
        beyond = (self.heap[0] // len(self.entries) + 1) * len(self.entries)
        tied = [node for node, entry in enumerate(self.entries) if entry is not None and entry < beyond]
        return tied[int(lots.random() * len(tied))]


class Placer:
    """Finds places in one fleet by one rule. Deterministic: equal fleets and equal requests give equal places."""

    def __init__(self, fleet: Fleet, rule: Rule) -> None:
        self.fleet = fleet
        self.rule = rule
        self._boards: dict[Request, Board] = {}  # the one asked for last stands last
        self._rebuilt = fleet.rebuilt  # as of those boards

    def find(self, request: Request) -> Placement | None:
        """The best place, or None if there is none now; changes nothing."""
        board = self._board(request)
        node = board.first() if self.rule.lots is None else board.drawn(self.rule.lots)
        if node is None:
            return None
        usable, _ = self._look(request, node)
        return Placement(node=node, cards=self.rule.cards(self.fleet, request, node, usable) if usable else ())

    def place(self, request: Request) -> Placement | None:
        """Find a place and take it."""
        placement = self.find(request)
        if placement is not None:
            self.fleet.take(request, placement)
        return placement

    def place_gang(self, requests: Sequence[Request]) -> list[Placement] | None:
        """Take a place for every member, in their order, or for none."""
        placements: list[Placement] = []
        for request in requests:
            placement = self.place(request)
            if placement is None:
                for taken, where in zip(requests, placements, strict=False):
                    self.fleet.give(taken, where)
                return None
            placements.append(placement)
        return placements

    def _board(self, request: Request) -> Board:
        """The request's board, with another look at every node that changed since it was last asked for."""
        fleet = self.fleet
        if self._rebuilt != fleet.rebuilt:
            self._boards.clear()
            self._rebuilt = fleet.rebuilt
        board = self._boards.pop(request, None)
        if board is None:
            board = Board(self._costs(request), fleet.change_count)
            if len(self._boards) == BOARDS_MAX:
                del self._boards[next(iter(self._boards))]
        elif board.seen != fleet.change_count:
            for node in fleet.changed_since(board.seen):
                board.set(node, self._cost(request, node))
            board.seen = fleet.change_count
        self._boards[request] = board
        return board

    def _costs(self, request: Request) -> list[int | None]:
        """The cost on every node; nodes of one kind with nothing on them are alike, and rated once."""
        fleet = self.fleet
        alike: dict[int, int | None] = {}
        closed = fleet.closed_somewhere()
        costs = []
        for node, members in enumerate(fleet.members):
            if members or request.avoids or node in closed:
                costs.append(self._cost(request, node))
                continue
            kind = fleet.kinds[node]
            if kind not in alike:
                alike[kind] = self._cost(request, node)
            costs.append(alike[kind])
        return costs

    def _cost(self, request: Request, node: int) -> int | None:
        usable, offset = self._look(request, node)
        if usable is None:
            return None
        return self.rule.cost(self.fleet, request, node, usable) + offset

    def _look(self, request: Request, node: int) -> tuple[list[int] | None, int]:
        """The cards to choose from, and what to add to the cost: those beside its own kind come first."""
        usable = self.fleet.usable_cards(request, node)
        if usable and request.affinity:
            homes = [card for card in usable if self.fleet.labels.is_home(request, node, card)]
            if len(homes) >= request.cards:
                return homes, -AT_HOME
        return usable, 0
