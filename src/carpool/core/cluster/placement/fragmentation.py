"""The place that leaves the most room for what usually comes: fragmentation gradient descent.

The *fragmentation* of a node is the card time left on it that a typical request could not use, averaged over the
typical requests by how often they come: all of it for a request that does not fit there (or uses no cards at all),
otherwise what is left on cards with too little for it. The rule puts a request where fragmentation falls most or
grows least. After Weng et al., "Beware of Fragmentation", USENIX ATC 2023.

Three things make up the published result and are part of the specification: the typical requests are the most
frequent ones that together make up 95 % of the demand, without regard to host memory; the fall is put into bins of
100·sigmoid(fall / 1000 m); ties go to the lowest card, then to the first node.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import floor, tanh

from carpool.core.cluster.placement.best_fit import tightest_cards
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.requests import WHOLE_MILLI, Request

TYPICAL_PERCENT = 95
BINS = 100
BIN_SCALE_MILLI = 1000
REMEMBERED_MAX = 100_000  # kinds of nodes and of changes; a bound on memory only
WHOLE_CARD = Request(cards=1, card_milli=WHOLE_MILLI)  # what is taken for typical while nothing is known
Shape = tuple[int, ...]  # the time left on a node's cards, sorted


def find_typical(demand: Mapping[Request, int]) -> Counter[Request]:
    """The most frequent kinds of requests, until they make up 95 % of all; ties to the one named first."""
    kinds: Counter[Request] = Counter()
    for request, count in demand.items():
        kind = Request(
            cards=request.cards, card_milli=request.card_milli, cpu_milli=request.cpu_milli, models=request.models
        )
        kinds[kind] += count
    typical: Counter[Request] = Counter()
    for kind, count in kinds.most_common():
        if typical.total() * 100 >= kinds.total() * TYPICAL_PERCENT:
            break
        typical[kind] = count
    return typical or Counter({WHOLE_CARD: 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The typical requests as one kind of node sees them."""

    lost: int  # how many of them cannot use this kind of node at all
    wants: tuple[tuple[int, int, int], ...]  # (cards, least time left on each, how many of them)


class Fragmentation:
    """Largest fall of fragmentation first, in bins; ties to the lowest card, then to the first node.

    A node's fragmentation depends only on its card model, on which typical requests its CPU allows, and on the
    sorted time left on its cards. Many nodes are alike in that, so it is computed once and remembered.
    """

    name = "fragmentation"
    lots = None

    def __init__(self, demand: Mapping[Request, int]) -> None:
        self._typical = find_typical(demand)
        self._total = self._typical.total()
        self._cpu_steps = sorted({kind.cpu_milli for kind in self._typical})
        self._needs: dict[tuple[str, int], Needs] = {}
        self._fragments: dict[tuple[str, int, Shape], int] = {}
        self._bins: dict[tuple[str, int, int, int, Shape], dict[int, int]] = {}

    def cost(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> int:
        free = fleet.free_milli[node]
        if fleet.mixed[node]:
            return -self._mixed_bin(fleet, request, node, self.cards(fleet, request, node, usable))
        if request.cards == 1:
            bins = self._bins_by_free(fleet, request, node)
            return -max([bins[free[card]] for card in usable])
        taken = [free[card] for card in tightest_cards(fleet, request, node, usable)] if usable else []
        return -self._bin_after(fleet, request, node, taken)

    def cards(self, fleet: Fleet, request: Request, node: int, usable: list[int]) -> tuple[int, ...]:
        if request.cards != 1:
            return tightest_cards(fleet, request, node, usable)
        if fleet.mixed[node]:
            return (max(usable, key=lambda card: self._mixed_bin(fleet, request, node, (card,))),)
        free, bins = fleet.free_milli[node], self._bins_by_free(fleet, request, node)
        return (max(usable, key=lambda card: bins[free[card]]),)

    def fragment_milli(self, fleet: Fleet, node: int) -> float:
        """The fragmentation of a node as it is now, in thousandths of a card."""
        if fleet.mixed[node]:
            return self._mixed_fragment(fleet, node, fleet.free_cpu_milli[node], fleet.free_milli[node]) / self._total
        return self._fragment(fleet, node, fleet.free_cpu_milli[node], fleet.shapes[node]) / self._total

    def _bins_by_free(self, fleet: Fleet, request: Request, node: int) -> dict[int, int]:
        """The bin of the fall for each time left that a card of the node may have."""
        cpu_milli, shape = fleet.free_cpu_milli[node], fleet.shapes[node]
        before = bisect_right(self._cpu_steps, cpu_milli)
        after = bisect_right(self._cpu_steps, cpu_milli - request.cpu_milli)
        key = (fleet.models[node], before, after, request.card_milli, shape)
        found = self._bins.get(key)
        if found is None:
            least = fleet.limit_milli if request.is_whole else request.card_milli
            enough = {free for free in shape if free >= least}
            if len(self._bins) == REMEMBERED_MAX:
                self._bins.clear()
            found = self._bins[key] = {free: self._bin_after(fleet, request, node, [free]) for free in enough}
        return found

    def _bin_after(self, fleet: Fleet, request: Request, node: int, taken: list[int]) -> int:
        """The bin of the fall of fragmentation if the request takes cards with so much time left."""
        cpu_milli, shape = fleet.free_cpu_milli[node], fleet.shapes[node]
        milli = fleet.limit_milli if request.is_whole else request.card_milli
        after = list(shape)
        for free in taken:
            after.remove(free)
            after.append(free - milli)
        fall = self._fragment(fleet, node, cpu_milli, shape) - self._fragment(
            fleet, node, cpu_milli - request.cpu_milli, tuple(sorted(after))
        )
        return self.bin_of(fall, self._total)

    def bin_of(self, fall: int, total: int) -> int:
        """The bin of a fall, 100·sigmoid of it in cards; the fall is given times `total`, all typical requests."""
        return floor(BINS * (1 + tanh(fall / (2 * total * BIN_SCALE_MILLI))) / 2)

    def _fragment(self, fleet: Fleet, node: int, cpu_milli: int, shape: Shape) -> int:
        """The fragmentation of such a node, in thousandths of a card times the number of typical requests."""
        model, step = fleet.models[node], bisect_right(self._cpu_steps, cpu_milli)
        found = self._fragments.get((model, step, shape))
        if found is not None:
            return found
        needs = self._needs_of(model, step, fleet.limit_milli)
        below = [0, *accumulate(shape)]
        idle_milli, total = below[-1], needs.lost * below[-1]
        for cards, milli, count in needs.wants:
            first = bisect_left(shape, milli)
            total += count * (below[first] if len(shape) - first >= cards else idle_milli)
        if len(self._fragments) == REMEMBERED_MAX:
            self._fragments.clear()
        self._fragments[model, step, shape] = total
        return total

    def _mixed_bin(self, fleet: Fleet, request: Request, node: int, cards: tuple[int, ...]) -> int:
        """The bin of the fall on a node whose cards differ, if the request takes these. Nothing is remembered."""
        cpu_milli, free = fleet.free_cpu_milli[node], fleet.free_milli[node]
        after = list(free)
        for card in cards:
            after[card] -= fleet.limit_milli if request.is_whole else request.card_milli
        fall = self._mixed_fragment(fleet, node, cpu_milli, free) - self._mixed_fragment(
            fleet, node, cpu_milli - request.cpu_milli, after
        )
        return self.bin_of(fall, self._total)

    def _mixed_fragment(self, fleet: Fleet, node: int, cpu_milli: int, free: list[int]) -> int:
        """As `_fragment`, for a node whose cards differ."""
        idle_milli, total = sum(free), 0
        for kind, count in self._typical.items():
            least = fleet.limit_milli if kind.is_whole else kind.card_milli
            usable = [
                left
                for left, card in zip(free, fleet.mixed[node], strict=True)
                if left >= least and (not kind.models or card.model in kind.models)
            ]
            fits = kind.cards and kind.cpu_milli <= cpu_milli and len(usable) >= kind.cards
            total += count * (idle_milli - sum(usable) if fits else idle_milli)
        return total

    def _needs_of(self, model: str, step: int, limit_milli: int) -> Needs:
        """What the typical requests want of a node with this card model and CPU for the first `step` CPU sizes."""
        found = self._needs.get((model, step))
        if found is not None:
            return found
        lost, wants = 0, Counter[tuple[int, int]]()
        for kind, count in self._typical.items():
            has_cpu = kind.cpu_milli in self._cpu_steps[:step]
            if kind.cards and has_cpu and (not kind.models or model in kind.models):
                wants[kind.cards, limit_milli if kind.is_whole else kind.card_milli] += count
            else:
                lost += count
        needs = Needs(lost=lost, wants=tuple((*want, count) for want, count in wants.items()))
        self._needs[model, step] = needs
        return needs
