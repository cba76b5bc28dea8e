"""Strict priority with a starvation bound."""

from __future__ import annotations

from collections.abc import Sequence

from carpool.core.kernel.ids import JobId, Nanos
from carpool.core.node.words.views import JobView
from carpool.units import SECOND, format_ns


class Priority:
    """The highest priority runs; among equals the older job; nobody waits longer than the bound for a turn."""

    name = "priority"
    quantum_ns: Nanos = 0
    lanes_max = 1
    starvation_bound_ns: Nanos = 30 * SECOND

    def pick(self, wanting: Sequence[JobView], *, now: Nanos) -> JobId | None:
        starved = [job for job in wanting if job.waited_ns >= self.starvation_bound_ns]
        if starved:
            return max(starved, key=lambda job: (job.waited_ns, job.priority, job.id)).id
        best = min(wanting, key=lambda job: (-job.priority, job.arrived_ns, job.id), default=None)
        return best.id if best else None

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
