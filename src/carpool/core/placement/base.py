"""What a placement rule is, and the list of those there are.

A rule says how bad a place would be; nothing else. Where a request fits at all is the fleet's business (model.py),
the search over nodes is the placer's (placer.py). The least cost wins; ties go to the first node of the fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from carpool.core.placement.best_fit import BestFit
from carpool.core.placement.model import Fleet, Request


class Rule(Protocol):
    """Looks at one node at a time, so that only nodes that changed need another look."""

    @property
    def name(self) -> str:
        """What people call it on the command line."""

    @property
    def is_steady(self) -> bool:
        """Whether the cost at a node stays the same while the node does, so that it may be kept."""

    def cost(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> int:
        """How bad it would be to put the request on this node, where it fits on the usable cards; least wins."""

    def cards(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> tuple[int, ...]:
        """Which of the usable cards it should have there, in rising order."""


class Draws(Protocol):
    """The part of `random.Random` that rules use; the driver seeds it."""

    def random(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a rule may be told when it is made: the usual requests, with how many of each, and a random source."""

    demand: Mapping[Request, int] = field(default_factory=dict)
    random: Draws | None = None


RULES: dict[str, Callable[[Outlook], Rule]] = {
    "best_fit": lambda outlook: BestFit(),
}


def make_rule(name: str, outlook: Outlook | None = None) -> Rule:
    return RULES[name](outlook or Outlook())
