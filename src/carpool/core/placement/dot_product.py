"""The place whose room looks least like the request: what fits badly elsewhere is used up first."""

from __future__ import annotations

from carpool.core.placement.best_fit import tightest_cards
from carpool.core.placement.model import Fleet, Request


class DotProduct:
    """Smallest dot product of request and room left; CPU and card time are each measured against the largest node.

    After Tetris' alignment score (Grandl et al., SIGCOMM 2014), in the form of the published comparison.
    """

    name = "dot_product"
    lots = None

    def cost(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> int:
        cpu = request.cpu_milli * fleet.free_cpu_milli[node] * fleet.node_milli_max**2
        cards = request.total_milli * sum(fleet.free_milli[node]) * fleet.node_cpu_milli_max**2
        return cpu + cards

    def cards(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> tuple[int, ...]:
        return tightest_cards(fleet, request, node, usable)
