"""Strict priority with a starvation bound."""

from __future__ import annotations

from carpool.core.kernel.ids import Nanos
from carpool.core.policies.base import Policy, Rank
from carpool.core.policies.view import JobView
from carpool.units import SECOND, format_ns

STARVED_FIRST = -(1 << 62)  # before every priority


class Priority(Policy):
    """The highest priority runs; equals take turns; nobody waits longer than the bound for a turn.

    A higher one has the turn at the next boundary. Among equals a turn lasts as long as pays, and the one goes
    next that has waited longest. One that gave its last turn back early does not wait for that end. In a cluster,
    where cards are not held turn by turn, the older of two equals goes first, and the driver's settings bound the
    wait for cards.
    """

    name = "priority"
    quantum_ns = 0
    by_turns = True
    starvation_bound_ns: Nanos = 30 * SECOND

    def rank(self, view: JobView, *, now: Nanos) -> Rank:
        if view.waited_ns < self.starvation_bound_ns:
            keeps_turn = view.is_holding and view.held_ns < view.quantum_ns
            return (-view.priority, 0 if keeps_turn or view.is_early else 1, -view.waited_ns)
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
            return f"both have priority {chosen.priority}, and {_why_of_equals(chosen, over)}"
        priorities = f"{chosen.name} has priority {chosen.priority}, {over.name} {over.priority}"
        return f"{priorities}; nobody waits longer than {bound} for a turn"


def _why_of_equals(chosen: JobView, over: JobView) -> str:
    if chosen.is_early:
        return f"{chosen.name} gave its last turn back early"
    if chosen.is_holding and chosen.held_ns < chosen.quantum_ns:
        return f"{chosen.name} keeps its turn for {format_ns(chosen.quantum_ns)}"
    if chosen.waited_ns > over.waited_ns:
        return f"{chosen.name} has waited {format_ns(chosen.waited_ns)}"
    return f"{chosen.name} came first"


def _last_first(word: str) -> Rank:
    """A rank by which the last of several words, as a dictionary has them, goes first."""
    return (*(-ord(letter) for letter in word), 1)
