"""Least attained service."""

from __future__ import annotations

from collections.abc import Sequence

from carpool.core.kernel.ids import JobId, Nanos
from carpool.core.node.words.views import JobView
from carpool.units import MS, format_ns


class LeastServed:
    """The job that has had the least device time runs; ties go to the older job."""

    name = "las"
    quantum_ns: Nanos = 100 * MS
    lanes_max = 1

    def pick(self, wanting: Sequence[JobView], *, now: Nanos) -> JobId | None:
        best = min(wanting, key=lambda job: (job.served_ns, job.arrived_ns, job.id), default=None)
        return best.id if best else None

    def why(self, chosen: JobView, over: JobView) -> str:
        return f"{chosen.name} has had {format_ns(chosen.served_ns)}, {over.name} {format_ns(over.served_ns)}"
