"""Fragmentation gradient descent with even bins, and nodes in use first: carpool's own default."""

from __future__ import annotations

from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.fragmentation import Fragmentation
from carpool.core.cluster.placement.requests import Request

BIN_MILLI = 80  # narrower bins follow noise, wider ones miss differences: docs/results.md has the widths tried


class Tidy(Fragmentation):
    """As fragmentation, in bins of 80 m; ties to nodes in use, then to the first node."""

    name = "tidy"

    def cost(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> int:
        is_idle = fleet.shapes[node][:1] == (fleet.limit_milli,)
        return 2 * super().cost(fleet, request, node, usable) + is_idle

    def bin_of(self, fall: int, total: int) -> int:
        return fall // (total * BIN_MILLI)
