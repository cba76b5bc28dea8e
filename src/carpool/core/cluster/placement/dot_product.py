"""The place whose room looks least like the request: what fits badly elsewhere is used up first."""

from __future__ import annotations

from math import ceil

from carpool.core.cluster.placement.best_fit import tightest_cards
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.requests import Request

BINS = 100  # as in the published comparison: how finely the mean of the two products is told apart


class DotProduct:
    """Smallest dot product of request and room left, in bins; CPU and card time each against the largest node.

    After Tetris (Grandl et al., SIGCOMM 2014), in the form of the published comparison.
    """

    name = "dot_product"
    lots = None

    def cost(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> int:
        cpu, cards = fleet.node_cpu_milli_max or 1, fleet.node_milli_max or 1
        dot = request.cpu_milli * fleet.free_cpu_milli[node] / cpu**2
        dot += request.total_milli * sum(fleet.shapes[node]) / cards**2
        return ceil(dot / 2 * BINS)

    def cards(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> tuple[int, ...]:
        return tightest_cards(fleet, request, node, usable)
