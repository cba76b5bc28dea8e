"""Shortest remaining time first, with no oracle."""

from __future__ import annotations

from carpool.core.kernel.ids import Nanos
from carpool.core.policies.base import Policy, Rank
from carpool.core.policies.view import JobView
from carpool.units import MS, format_ns

SWAP_NS = 50 * MS


class ShortestRemaining(Policy):
    """The job nearest its end runs.

    The remaining time is declared steps × measured step time, else what the same program took last time, else the
    steps that its loops have before them × step time, else as much as it has already had (with heavy-tailed lengths
    the best guess, and the same order as least attained service). Declared steps that were never measured are taken
    to be as short as the shortest of any job. Two jobs of unknown length would swap at every boundary: a holder whose
    length is a guess is left only for a job that is shorter by more than SWAP_NS.
    """

    name = "srtf"
    quantum_ns = 10 * MS
    by_length = True

    def rank(self, view: JobView, *, now: Nanos) -> Rank:
        if not view.is_holding:
            return (view.remaining_ns, 1)
        return (view.remaining_ns if view.remaining_is_known else view.remaining_ns - SWAP_NS, 0)

    def speed(self, view: JobView) -> int | None:
        return 1 if view.remaining_is_known else None

    def why(self, chosen: JobView, over: JobView) -> str:
        def said(job: JobView) -> str:
            guess = "" if job.remaining_is_known else " (a guess)"
            return f"{job.name} has {format_ns(job.remaining_ns)} left{guess}"

        is_kept = chosen.is_holding and chosen.remaining_ns > over.remaining_ns
        rule = f"; a guess is left only for what is shorter by more than {format_ns(SWAP_NS)}" if is_kept else ""
        return f"{said(chosen)}, {said(over)}{rule}"
