"""First in, first out."""

from __future__ import annotations

from collections.abc import Sequence

from carpool.core.model import JobId, Nanos
from carpool.core.views import JobView


class Fifo:
    """The job that came first runs until it is done; others fill in only while it wants no turn."""

    name = "fifo"
    quantum_ns: Nanos = 0
    lanes_max = 1

    def pick(self, wanting: Sequence[JobView], *, now: Nanos) -> JobId | None:
        best = min(wanting, key=lambda job: (job.arrived_ns, job.id), default=None)
        return best.id if best else None

    def why(self, chosen: JobView, over: JobView) -> str:
        return f"{chosen.name} came first"
