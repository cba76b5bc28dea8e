"""Weighted fair sharing by tenant, then by job."""

from __future__ import annotations

from carpool.core.kernel.ids import Nanos
from carpool.core.policies.base import Policy, Rank
from carpool.core.policies.levels import FINE
from carpool.core.policies.view import JobView
from carpool.units import format_ns


class Fair(Policy):
    """The tenant that has had the least for its weight runs, and of its jobs the one of which the same is true.

    Ten jobs of one tenant share one tenant's part. A newcomer starts at the incumbents' level (the scheduler's
    accounts see to it), so nobody monopolises a lane to catch up.
    """

    name = "fair"
    by_tenant = True
    levels = FINE

    def rank(self, view: JobView, *, now: Nanos) -> Rank:
        return (view.level - 1 if view.is_early else view.level,)  # before its equals

    def why(self, chosen: JobView, over: JobView) -> str:
        if chosen.tenant != over.tenant:
            if chosen.tenant_level == over.tenant_level:
                return (
                    f"tenants {chosen.tenant} and {over.tenant} have had the same for their weights;"
                    f" {chosen.tenant} is first by name"
                )
            less = format_ns(max(0, over.tenant_level - chosen.tenant_level))
            return f"tenant {chosen.tenant} has had {less} less for its weight than tenant {over.tenant}"
        if chosen.level == over.level and chosen.is_early:
            return f"{chosen.name} gave its last turn back early"
        if chosen.level == over.level:
            return f"both have had their share, and {chosen.name} came first"
        return f"{chosen.name} is behind its share by {format_ns(max(0, over.level - chosen.level))}"
