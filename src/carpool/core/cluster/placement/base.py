"""What a placement rule is, and the list of those there are.

A rule says how bad a place would be; nothing else. Where a request fits at all is the fleet's business (model.py),
the search over nodes is the placer's (placer.py). The least cost wins; ties go to the first node of the fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from carpool.core.cluster.placement.best_fit import BestFit
from carpool.core.cluster.placement.clustering import Clustering
from carpool.core.cluster.placement.dot_product import DotProduct
from carpool.core.cluster.placement.fragmentation import Fragmentation
from carpool.core.cluster.placement.model import Fleet, Lots, Request
from carpool.core.cluster.placement.packing import Packing
from carpool.core.cluster.placement.random_fit import RandomFit
from carpool.core.cluster.placement.spread import Spread
from carpool.core.cluster.placement.tidy import Tidy
from carpool.errors import UsageError


class Rule(Protocol):
    """Looks at one node at a time, so that only nodes that changed need another look. One object serves one fleet."""

    @property
    def name(self) -> str:
        """What people call it on the command line."""

    @property
    def lots(self) -> Lots | None:
        """How ties are broken: by lot, or with None in favour of the first node."""

    def cost(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> int:
        """How bad it would be to put the request on this node, where it fits on the usable cards; least wins."""

    def cards(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> tuple[int, ...]:
        """Which of the usable cards it should have there, in rising order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a rule may be told when it is made: the usual requests, with how many of each, and a source of lots."""

    demand: Mapping[Request, int] = field(default_factory=dict)
    lots: Lots | None = None

    def need_lots(self) -> Lots:
        if self.lots is None:
            raise UsageError("this placement rule draws lots; make it with a seeded random source")
        return self.lots


RULES: dict[str, Callable[[Outlook], Rule]] = {
    "best_fit": lambda outlook: BestFit(),
    "spread": lambda outlook: Spread(),
    "packing": lambda outlook: Packing(),
    "dot_product": lambda outlook: DotProduct(),
    "clustering": lambda outlook: Clustering(),
    "random_fit": lambda outlook: RandomFit(outlook.need_lots()),
    "fragmentation": lambda outlook: Fragmentation(outlook.demand),
    "tidy": lambda outlook: Tidy(outlook.demand),
}
DEFAULT_RULE = "tidy"


def make_rule(name: str, outlook: Outlook | None = None) -> Rule:
    if name not in RULES:
        raise UsageError(f"there is no placement rule '{name}'; known are {', '.join(RULES)}")
    return RULES[name](outlook or Outlook())
