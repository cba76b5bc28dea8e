"""Shortest remaining time first, with no oracle."""

from __future__ import annotations

from collections.abc import Sequence

from carpool.core.kernel.ids import JobId, Nanos
from carpool.core.node.words.views import JobView
from carpool.units import MS, format_ns

SWAP_NS = 50 * MS


def _rank(job: JobView) -> tuple[Nanos, bool, Nanos, JobId]:
    counted_ns = job.remaining_ns - (SWAP_NS if job.is_holding and not job.remaining_is_known else 0)
    return (counted_ns, not job.is_holding, job.arrived_ns, job.id)


class ShortestRemaining:
    """The job nearest its end runs.

    The remaining time is declared steps × measured step time, else what the same program took last time, else
    as much as it has already had (with heavy-tailed lengths the best guess, and the same order as least
    attained service). Declared steps that were never measured are taken to be as short as the shortest of any job.
    Two jobs of unknown length would swap at every boundary: a holder whose length is a guess is left only for a job
    that is shorter by more than SWAP_NS.
    """

    name = "srtf"
    quantum_ns: Nanos = 10 * MS
    lanes_max = 1

    def pick(self, wanting: Sequence[JobView], *, now: Nanos) -> JobId | None:
        best = min(wanting, key=_rank, default=None)
        return best.id if best else None

    def why(self, chosen: JobView, over: JobView) -> str:
        def said(job: JobView) -> str:
            guess = "" if job.remaining_is_known else " (a guess)"
            return f"{job.name} has {format_ns(job.remaining_ns)} left{guess}"

        is_kept = chosen.is_holding and chosen.remaining_ns > over.remaining_ns
        rule = f"; a guess is left only for what is shorter by more than {format_ns(SWAP_NS)}" if is_kept else ""
        return f"{said(chosen)}, {said(over)}{rule}"
