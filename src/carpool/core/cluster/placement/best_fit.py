"""The place that is left with the least."""

from __future__ import annotations

from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.requests import Request


class BestFit:
    """Least left of CPU and card time after placing, each measured against the largest node; tightest cards first."""

    name = "best_fit"
    lots = None

    def cost(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> int:
        left_cpu_milli = fleet.free_cpu_milli[node] - request.cpu_milli
        left_milli = sum(fleet.free_milli[node]) - request.total_milli
        return left_cpu_milli * fleet.node_milli_max + left_milli * fleet.node_cpu_milli_max

    def cards(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> tuple[int, ...]:
        return tightest_cards(fleet, request, node, usable)


def tightest_cards(fleet: Fleet, request: Request, node: int, usable: list[int]) -> tuple[int, ...]:
    """The usable cards with the least time left; ties go to the lowest card."""
    free = fleet.free_milli[node]
    return tuple(sorted(sorted(usable, key=lambda card: free[card])[: request.cards]))
