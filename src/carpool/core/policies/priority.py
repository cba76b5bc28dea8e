"""Strict priority with a starvation bound."""

from __future__ import annotations

from carpool.core.kernel.ids import Nanos
from carpool.core.policies.base import Policy, Rank
from carpool.core.policies.view import JobView
from carpool.units import SECOND, format_ns

STARVED_FIRST = -(1 << 62)  # before every priority


class Priority(Policy):
    """The highest priority runs; among equals the older job; nobody waits longer than the bound for a turn.

    In a cluster the driver's settings bound the wait for cards.
    """

    name = "priority"
    quantum_ns = 0
    starvation_bound_ns: Nanos = 30 * SECOND

    def rank(self, view: JobView, *, now: Nanos) -> Rank:
        if view.waited_ns < self.starvation_bound_ns:
            return (-view.priority,)
        return (STARVED_FIRST, -view.waited_ns, -view.priority, *_last_first(view.id))

    def speed(self, view: JobView) -> int | None:
        return 0

    def why(self, chosen: JobView, over: JobView) -> str:
        bound = format_ns(self.starvation_bound_ns)
        if chosen.waited_ns >= self.starvation_bound_ns:
            return (
                f"{chosen.name} has waited {format_ns(chosen.waited_ns)}; nobody waits longer than {bound} for a turn"
            )
        if chosen.priority == over.priority:
            return f"both have priority {chosen.priority} and {chosen.name} came first"
        priorities = f"{chosen.name} has priority {chosen.priority}, {over.name} {over.priority}"
        return f"{priorities}; nobody waits longer than {bound} for a turn"


def _last_first(word: str) -> Rank:
    """A rank by which the last of several words, as a dictionary has them, goes first."""
    return (*(-ord(letter) for letter in word), 1)
