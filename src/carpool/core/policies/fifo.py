"""First in, first out."""

from __future__ import annotations

from collections.abc import Sequence

from carpool.core.kernel.ids import JobId, Nanos
from carpool.core.node.words.views import JobView
from carpool.units import format_ns


class Fifo:
    """The job that came first runs until it is done; others fill in only while it wants no turn."""

    name = "fifo"
    quantum_ns: Nanos = 0
    lanes_max = 1

    def pick(self, wanting: Sequence[JobView], *, now: Nanos) -> JobId | None:
        best = min(wanting, key=lambda job: (job.arrived_ns, job.id), default=None)
        return best.id if best else None

    def why(self, chosen: JobView, over: JobView) -> str:
        earlier_ns = over.arrived_ns - chosen.arrived_ns
        return f"{chosen.name} came " + (f"{format_ns(earlier_ns)} before {over.name}" if earlier_ns > 0 else "first")
