"""The emptiest place, so that members disturb each other least."""

from __future__ import annotations

from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.requests import Request

PARTS = 1000  # how finely a node's use is told apart


class Spread:
    """Most left after placing, in parts of what the node has: card time first, then CPU; emptiest cards first."""

    name = "spread"
    lots = None

    def cost(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> int:
        spec = fleet.nodes[node]
        used_milli = spec.cards * fleet.limit_milli - sum(fleet.free_milli[node]) + request.total_milli
        used_cpu_milli = spec.cpu_milli - fleet.free_cpu_milli[node] + request.cpu_milli
        card_part = used_milli * PARTS // (spec.cards * fleet.limit_milli) if request.cards else 0
        cpu_part = used_cpu_milli * PARTS // spec.cpu_milli if request.cpu_milli else 0
        return card_part * (PARTS + 1) + cpu_part

    def cards(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> tuple[int, ...]:
        free = fleet.free_milli[node]
        return tuple(sorted(sorted(usable, key=lambda card: -free[card])[: request.cards]))
