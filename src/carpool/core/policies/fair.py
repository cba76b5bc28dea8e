"""Weighted fair sharing by tenant, then by job."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from carpool.core.kernel.ids import JobId, Nanos
from carpool.core.node.words.views import JobView
from carpool.units import MS, format_ns

_RANK = attrgetter("tenant_level", "tenant", "level", "arrived_ns", "id")


class Fair:
    """The tenant that has had the least for its weight runs, and of its jobs the one of which the same is true.

    Ten jobs of one tenant share one tenant's part. Levels are kept by accounts.py, which starts a newcomer at
    the incumbents' level, so nobody monopolises a lane to catch up.
    """

    name = "fair"
    quantum_ns: Nanos = 100 * MS
    lanes_max = 1

    def pick(self, wanting: Sequence[JobView], *, now: Nanos) -> JobId | None:
        best = min(wanting, key=_RANK, default=None)
        return best.id if best else None

    def why(self, chosen: JobView, over: JobView) -> str:
        if chosen.tenant != over.tenant:
            if chosen.tenant_level == over.tenant_level:
                return (
                    f"tenants {chosen.tenant} and {over.tenant} have had the same for their weights;"
                    f" {chosen.tenant} is first by name"
                )
            less = format_ns(max(0, over.tenant_level - chosen.tenant_level))
            return f"tenant {chosen.tenant} has had {less} less for its weight than tenant {over.tenant}"
        if chosen.level == over.level:
            return f"both have had their share, and {chosen.name} came first"
        return f"{chosen.name} is behind its share by {format_ns(max(0, over.level - chosen.level))}"
