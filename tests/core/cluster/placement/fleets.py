"""Small fleets and requests for the tests of placement."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from carpool.core.cluster.placement.base import Outlook
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.placer import Placer
from carpool.core.cluster.placement.requests import NodeSpec, Placement, Request
from carpool.core.cluster.placement.rules import make_rule
from carpool.units import GIB


def node(
    cards: int = 2, *, model: str = "", cpus: int = 16, card_gib: int = 0, memory_gib: int = 64, name: str = "n"
) -> NodeSpec:
    return NodeSpec(
        name=name,
        cards=cards,
        model=model,
        cpu_milli=cpus * 1000,
        card_bytes=card_gib * GIB,
        memory_bytes=memory_gib * GIB,
    )


def share(milli: int, *, cpus: int = 0, cards: int = 1, **labels: str) -> Request:
    return Request(cards=cards, card_milli=milli, cpu_milli=cpus * 1000, **labels)  # type: ignore[arg-type] # str labels


def whole(cards: int = 1, *, cpus: int = 0) -> Request:
    return Request(cards=cards, card_milli=1000, cpu_milli=cpus * 1000)


def cpu_only(cpus: int) -> Request:
    return Request(cards=0, card_milli=0, cpu_milli=cpus * 1000)


def memory(gib: int) -> Request:
    """A slice by memory: next to no claim on the card's time."""
    return Request(cards=1, card_milli=1, card_bytes=gib * GIB)


def at(where: int, *cards: int) -> Placement:
    return Placement(node=where, cards=cards)


def placer(fleet: Fleet, rule: str = "best_fit", demand: Mapping[Request, int] | None = None) -> Placer:
    return Placer(fleet, make_rule(rule, Outlook(demand=demand or {}, lots=Random(1))))
