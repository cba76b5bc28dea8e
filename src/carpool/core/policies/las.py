"""Least attained service."""

from __future__ import annotations

from carpool.core.kernel.ids import Nanos
from carpool.core.policies.base import Policy, Rank
from carpool.core.policies.view import JobView
from carpool.units import format_ns


class LeastServed(Policy):
    """The job that has had the least device time runs; ties go to the older job. It knows no lengths."""

    name = "las"

    def rank(self, view: JobView, *, now: Nanos) -> Rank:
        return (view.served_ns,)

    def why(self, chosen: JobView, over: JobView) -> str:
        return f"{chosen.name} has had {format_ns(chosen.served_ns)}, {over.name} {format_ns(over.served_ns)}"
