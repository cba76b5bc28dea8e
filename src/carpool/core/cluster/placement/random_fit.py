"""Any place: what the other rules are measured against."""

from __future__ import annotations

from carpool.core.cluster.placement.base import Lots
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.requests import Request


class RandomFit:
    """Every node that fits with equal chance, and every card of it."""

    name = "random_fit"

    def __init__(self, lots: Lots) -> None:
        self.lots = lots

    def cost(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> int:
        return 0

    def cards(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> tuple[int, ...]:
        drawn = sorted((self.lots.random(), card) for card in usable)
        return tuple(sorted(card for _, card in drawn[: request.cards]))
