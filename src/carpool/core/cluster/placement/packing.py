"""Fill what is in use before anything idle is touched."""

from __future__ import annotations

from carpool.core.cluster.placement.best_fit import tightest_cards
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.requests import WHOLE_MILLI, Request

BIN_MILLI = 100  # as in the published comparison: cards in use are told apart by tenths
# Each step is dearer than anything before it: no node has a million cards.
CARDS_OF_USED_NODES = WHOLE_MILLI * 1_000_000
IDLE_NODES = 2 * CARDS_OF_USED_NODES


class Packing:
    """Cards in use first (least left, to a tenth), then untouched cards of nodes in use, then the smallest idle node.

    What wants no cards goes to the first node.
    """

    name = "packing"
    lots = None

    def cost(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> int:
        if not request.cards:
            return 0
        shape, untouched = fleet.shapes[node], fleet.limit_milli
        if shape[0] == untouched:
            return IDLE_NODES + len(shape)
        if request.is_whole:
            return CARDS_OF_USED_NODES
        free = fleet.free_milli[node]
        left = [free[card] for card in tightest_cards(fleet, request, node, usable)]
        if untouched in left:
            return CARDS_OF_USED_NODES + left.count(untouched)
        return sum(left) // BIN_MILLI

    def cards(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> tuple[int, ...]:
        return tightest_cards(fleet, request, node, usable)
