"""Like to like: shares beside shares, pairs of cards beside pairs, so that what is left is of that size too."""

from __future__ import annotations

from carpool.core.cluster.placement.best_fit import tightest_cards
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.requests import Request

BINS = 25  # as in the published comparison: how finely the card time left on a node is told apart


class Clustering:
    """Nodes with members of only this size first, then of this size and others, then idle ones, then only of others.

    Within each group the node with the least card time left, in bins of a 25th of the largest node.
    What wants no cards goes to the first node.
    """

    name = "clustering"
    lots = None

    def cost(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> int:
        if not request.cards:
            return 0
        sizes = fleet.sizes[node]
        is_alike, is_mixed = request.size in sizes, len(sizes) > 1
        group = int(is_mixed) if is_alike else 3 if sizes else 2
        return group * (BINS + 1) + sum(fleet.shapes[node]) * BINS // (fleet.node_milli_max or 1)

    def cards(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> tuple[int, ...]:
        return tightest_cards(fleet, request, node, usable)
