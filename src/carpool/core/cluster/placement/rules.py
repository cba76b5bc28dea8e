"""The list of placement rules there are."""

from __future__ import annotations

from collections.abc import Callable

from carpool.core.cluster.placement.base import Outlook, Rule
from carpool.core.cluster.placement.best_fit import BestFit
from carpool.core.cluster.placement.clustering import Clustering
from carpool.core.cluster.placement.dot_product import DotProduct
from carpool.core.cluster.placement.fragmentation import Fragmentation
from carpool.core.cluster.placement.packing import Packing
from carpool.core.cluster.placement.random_fit import RandomFit
from carpool.core.cluster.placement.spread import Spread
from carpool.core.cluster.placement.tidy import Tidy
from carpool.errors import UsageError

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
