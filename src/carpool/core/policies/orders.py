"""The orders in which a tenant's own jobs may go, where the node's policy counts tenants first.

Only ranks: how long turns last and how many jobs run side by side is the node's own policy's, for all tenants alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from carpool.core.policies.base import Policy
from carpool.core.policies.fair import Fair
from carpool.core.policies.fifo import Fifo
from carpool.core.policies.las import LeastServed
from carpool.core.policies.priority import Priority
from carpool.core.policies.srtf import ShortestRemaining

ORDERS: Mapping[str, Policy] = {
    each.name: each for each in (Fair(), Fifo(), LeastServed(), Priority(), ShortestRemaining())
}
