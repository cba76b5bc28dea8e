"""Shortest remaining service first."""

from __future__ import annotations

from carpool.core.kernel.ids import Nanos
from carpool.core.policies.base import Rank
from carpool.core.policies.srtf import ShortestRemaining
from carpool.core.policies.view import JobView


class ShortestService(ShortestRemaining):
    """As srtf, but a job counts for as much as the cards it wants: remaining time × cards. On one device: srtf."""

    name = "srsf"

    def rank(self, view: JobView, *, now: Nanos) -> Rank:
        left_ns, is_waiting = super().rank(view, now=now)
        return (left_ns * view.size_milli, is_waiting)

    def speed(self, view: JobView) -> int | None:
        return view.size_milli if view.remaining_is_known else None
