"""Shortest remaining time first, with no oracle."""

from __future__ import annotations

from collections.abc import Sequence

from carpool.core.model import JobId, Nanos
from carpool.core.views import JobView
from carpool.units import MS, format_ns


class ShortestRemaining:
    """The job nearest its end runs.

    The remaining time is declared steps × measured step time, else what the same program took last time, else
    as much as it has already had (with heavy-tailed lengths the best guess, and the same order as least
    attained service). The quantum keeps two jobs of unknown length from swapping at every boundary.
    """

    name = "srtf"
    quantum_ns: Nanos = 50 * MS
    lanes_max = 1

    def pick(self, wanting: Sequence[JobView], *, now: Nanos) -> JobId | None:
        best = min(
            wanting,
            key=lambda job: (job.remaining_ns, not job.is_holding, job.arrived_ns, job.id),
            default=None,
        )
        return best.id if best else None

    def why(self, chosen: JobView, over: JobView) -> str:
        def said(job: JobView) -> str:
            guess = "" if job.remaining_is_known else " (guessed from what it has had)"
            return f"{job.name} has {format_ns(job.remaining_ns)} left{guess}"

        return f"{said(chosen)}, {said(over)}"
