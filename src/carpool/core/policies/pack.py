"""As many jobs side by side as fit and as help."""

from __future__ import annotations

from collections.abc import Sequence

from carpool.core.kernel.ids import JobId, Nanos
from carpool.core.node.words.views import JobView
from carpool.units import MS, format_ns


class Pack:
    """Every job gets a lane of its own while memory lasts, up to four at a time; within a lane, least served first.

    Packing is a trial: packing.py measures each pair and merges the lanes of jobs that are slower together
    than in turns.
    """

    name = "pack"
    quantum_ns: Nanos = 100 * MS
    lanes_max = 4

    def pick(self, wanting: Sequence[JobView], *, now: Nanos) -> JobId | None:
        best = min(wanting, key=lambda job: (job.served_ns, job.arrived_ns, job.id), default=None)
        return best.id if best else None

    def why(self, chosen: JobView, over: JobView) -> str:
        had = f"{chosen.name} has had {format_ns(chosen.served_ns)}, {over.name} {format_ns(over.served_ns)}"
        return f"they share the lane, and {had}"
