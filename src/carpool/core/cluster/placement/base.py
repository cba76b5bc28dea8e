"""What a placement rule is.

A rule says how bad a place would be; nothing else. Where a request fits at all is the fleet's business (fleet.py),
the search over nodes is the placer's (placer.py). The least cost wins; ties go to the first node of the fleet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.requests import Request
from carpool.errors import UsageError


class Lots(Protocol):
    """The part of `random.Random` that is used; whoever passes it in has seeded it."""

    def random(self) -> float: ...


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
