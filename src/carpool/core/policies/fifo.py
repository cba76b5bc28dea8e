"""First in, first out."""

from __future__ import annotations

from carpool.core.kernel.ids import Nanos
from carpool.core.policies.base import Policy, Rank
from carpool.core.policies.view import JobView
from carpool.units import format_ns


class Fifo(Policy):
    """The job that came first runs until it is done; others fill in only while it wants no turn.

    In a cluster a later job may use a hole that an earlier, larger one cannot, as a loan.
    """

    name = "fifo"
    quantum_ns = 0

    def rank(self, view: JobView, *, now: Nanos) -> Rank:
        return (view.arrived_ns,)

    def speed(self, view: JobView) -> int | None:
        return 0

    def why(self, chosen: JobView, over: JobView) -> str:
        earlier_ns = over.arrived_ns - chosen.arrived_ns
        return f"{chosen.name} came " + (f"{format_ns(earlier_ns)} before {over.name}" if earlier_ns > 0 else "first")
