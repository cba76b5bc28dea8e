"""The search: the best place in the fleet for a request, by a rule.

Equal requests share one board of costs. A board is brought up to date when its request is asked for, and looks again
only at the nodes that changed since; the best node is the top of a heap whose outdated entries are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from carpool.core.placement.base import Rule
from carpool.core.placement.model import Fleet, Placement, Request

AT_HOME = 1 << 80  # taken off the cost where somebody of the same affinity already is: more than any rule's cost


class Board:
    """The costs of one request on all nodes, as they were when the fleet had made `seen` changes."""

    __slots__ = ("costs", "heap", "seen")

    def __init__(self, nodes: int) -> None:
        self.costs: list[int | None] = [None] * nodes  # None: it does not fit there
        self.heap: list[tuple[int, int]] = []  # (cost, node); outdated where costs says otherwise
        self.seen = -1


class Placer:
    """Finds places in one fleet by one rule. Deterministic: equal books and equal requests give equal places."""

    def __init__(self, fleet: Fleet, rule: Rule) -> None:
        self.fleet = fleet
        self.rule = rule
        self._boards: dict[Request, Board] = {}

    def find(self, request: Request) -> Placement | None:
        """The best place, or None if there is none now; changes no books."""
        board = self._boards.get(request)
        if board is None:
            board = self._boards[request] = Board(len(self.fleet.nodes))
        self._refresh(board, request)
        node = self._best(board) if self.rule.is_steady else self._best_now(board, request)
        if node is None:
            return None
        usable, _ = self._look(request, node)
        assert usable is not None
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

    def _refresh(self, board: Board, request: Request) -> None:
        """Look again at every node that changed since this request was last asked for."""
        changes = self.fleet.changes
        if board.seen < 0:
            for node in range(len(board.costs)):
                board.costs[node] = self._cost(request, node)
            board.heap = [(cost, node) for node, cost in enumerate(board.costs) if cost is not None]
            heapify(board.heap)
        else:
            for node in set(changes[board.seen :]):
                cost = self._cost(request, node)
                if cost != board.costs[node]:
                    board.costs[node] = cost
                    if cost is not None:
                        heappush(board.heap, (cost, node))
        board.seen = len(changes)

    def _cost(self, request: Request, node: int) -> int | None:
        usable, offset = self._look(request, node)
        if usable is None:
            return None
        return self.rule.cost(self.fleet, request, node, usable) + offset

    def _look(self, request: Request, node: int) -> tuple[list[int] | None, int]:
        """The cards to choose from, and what to add to the cost: those beside its own kind come first."""
        usable = self.fleet.usable_cards(request, node)
        if usable and request.affinity:
            homes = [card for card in usable if self.fleet.has_affinity(node, card, request.affinity)]
            if len(homes) >= request.cards:
                return homes, -AT_HOME
        return usable, 0

    def _best(self, board: Board) -> int | None:
        heap, costs = board.heap, board.costs
        while heap:
            cost, node = heap[0]
            if costs[node] == cost:
                return node
            heappop(heap)
        return None

    def _best_now(self, board: Board, request: Request) -> int | None:
        """For a rule whose costs change by themselves: rate every node that fits, now."""
        fitting = [(self._cost(request, node), node) for node, cost in enumerate(board.costs) if cost is not None]
        return min(fitting)[1] if fitting else None
