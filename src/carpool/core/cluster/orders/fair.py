"""Equal parts for all tenants that have jobs."""

from __future__ import annotations

from carpool.core.cluster.orders.las import LeastAttained


class Fair(LeastAttained):
    """Each tenant with jobs owns the same part of the cluster, and what one leaves idle is lent; inside, as `las`."""

    name = "fair"
    splits_evenly = True
