"""Like to like: requests of one size on the same nodes, so that what is left is of that size too."""

from __future__ import annotations

from carpool.core.placement.best_fit import tightest_cards
from carpool.core.placement.model import WHOLE_MILLI, Fleet, Request
from carpool.core.placement.packing import Packing


class Clustering:
    """Nodes that hold a member of the same size first; among those, and among the others, as packing does."""

    name = "clustering"
    lots = None

    def __init__(self) -> None:
        self._packing = Packing()

    def cost(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> int:
        cost = self._packing.cost(fleet, request, node, usable)
        return cost if fleet.sizes[node][request.total_milli] else cost + STRANGERS

    def cards(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> tuple[int, ...]:
        return tightest_cards(fleet, request, node, usable)


STRANGERS = WHOLE_MILLI * 10_000_000  # dearer than any cost of packing
