"""Who may be beside whom: the labels of a request, kept a card and a node (rule F5).

The labels are those of KubeShare. Of a request that shares a card they speak of that card. A whole card has no
company, so of a request for whole cards they speak of its node: of everybody there who has cards.
  affinity        goes only where somebody of the same label is, or where nobody is
  anti_affinity   never where somebody of the same label is
  exclusion       only beside users of exactly the same exclusion label; no label is a label too
Anti-affinity and exclusion of somebody with whole cards bind also those who come to the node after it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from carpool.errors import InternalError

if TYPE_CHECKING:
    from carpool.core.cluster.placement.requests import Placement, Request

Marks = Counter[tuple[str, str]]  # how many users have a label of a kind
KINDS = ("affinity", "anti_affinity", "exclusion")
NO_MARKS: Marks = Counter()
Place = TypeVar("Place", int, tuple[int, int])


@dataclass
class Labels:
    """The labels that are there now. Two are equal if they say the same."""

    on_card: dict[tuple[int, int], Marks] = field(default_factory=dict)
    on_node: dict[int, Marks] = field(default_factory=dict)
    of_whole: dict[int, Marks] = field(default_factory=dict)  # on the node, of those with whole cards only

    def __bool__(self) -> bool:
        return bool(self.on_node)

    def note(self, request: Request, placement: Placement, sign: int) -> None:
        """A labelled member came (1) or went (-1)."""
        node = placement.node
        _count(self.on_node, node, request, sign)
        if request.is_whole:
            _count(self.of_whole, node, request, sign)
            return
        for card in placement.cards:
            _count(self.on_card, (node, card), request, sign)

    def allow_node(self, request: Request, node: int, users: int) -> bool:
        """Whether the request may be on the node at all, beside so many users of its cards."""
        there, whole = self.on_node.get(node, NO_MARKS), self.of_whole.get(node, NO_MARKS)
        if request.is_whole:
            if request.affinity and users and ("affinity", request.affinity) not in there:
                return False
            if request.anti_affinity and ("anti_affinity", request.anti_affinity) in there:
                return False
            if request.exclusion and there["exclusion", request.exclusion] != users:
                return False
        if request.anti_affinity and ("anti_affinity", request.anti_affinity) in whole:
            return False
        return _exclusion(whole) in ("", request.exclusion)

    def allow_card(self, request: Request, node: int, card: int) -> bool:
        """Whether the request may be on the card beside those who share it."""
        there = self.on_card.get((node, card), NO_MARKS)
        if request.affinity and ("affinity", request.affinity) not in there:
            return False
        if request.anti_affinity and ("anti_affinity", request.anti_affinity) in there:
            return False
        return request.exclusion == _exclusion(there)

    def is_home(self, request: Request, node: int, card: int) -> bool:
        """Whether somebody of the same affinity is there: on the card, or on the node for a whole one."""
        there = self.on_node.get(node) if request.is_whole else self.on_card.get((node, card))
        return ("affinity", request.affinity) in (there or NO_MARKS)


def check_company(where: str, users: list[Request]) -> None:
    """Assert F5 for those who share a card, or for those on a node of whom some have whole cards."""
    whole = [user for user in users if user.is_whole]
    excluding = [user for user in whole if user.exclusion] if whole else users
    if excluding and len({user.exclusion for user in users}) > 1:
        raise InternalError(f"F5 broken {where}: users with and without the same exclusion label")
    for user in whole or users:
        alike = [other for other in users if user.anti_affinity and other.anti_affinity == user.anti_affinity]
        if len(alike) > 1:
            raise InternalError(f"F5 broken {where}: two users of one anti-affinity label")


def _exclusion(marks: Marks) -> str:
    return next((label for kind, label in marks if kind == "exclusion"), "")


def _count(counts: dict[Place, Marks], place: Place, request: Request, sign: int) -> None:
    marks = counts.setdefault(place, Counter())
    for kind in KINDS:
        label = getattr(request, kind)
        if label:
            marks[kind, label] += sign
            if not marks[kind, label]:
                del marks[kind, label]
    if not marks:
        del counts[place]
