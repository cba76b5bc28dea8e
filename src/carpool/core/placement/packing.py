"""Fill what is in use before anything idle is touched."""

from __future__ import annotations

from carpool.core.placement.best_fit import tightest_cards
from carpool.core.placement.model import WHOLE_MILLI, Fleet, Request


class Packing:
    """Cards in use first (tightest first), then untouched cards of nodes in use (fewest first), then idle nodes."""

    name = "packing"
    lots = None

    def cost(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> int:
        free, untouched = fleet.free_milli[node], fleet.limit_milli
        idle_cards = free.count(untouched)
        if request.cards and not request.is_whole:
            left = [free[card] for card in tightest_cards(fleet, request, node, usable)]
            if max(left) < untouched:
                return sum(left)
        if idle_cards < len(free):
            return CARDS_OF_USED_NODES + idle_cards
        return IDLE_NODES + idle_cards

    def cards(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> tuple[int, ...]:
        return tightest_cards(fleet, request, node, usable)


# Each step is dearer than anything before it: no node has a million cards.
CARDS_OF_USED_NODES = WHOLE_MILLI * 1_000_000
IDLE_NODES = 2 * CARDS_OF_USED_NODES
