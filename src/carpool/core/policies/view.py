"""One job as a policy sees it: the same fields, whichever scheduler asks.

The node's scheduler decides about turns, the cluster's about whole cards. Each makes the view from its own accounts;
where a field means less in a cluster, it says so.
"""

from __future__ import annotations

from typing import NamedTuple

from carpool.core.kernel.ids import JobId, Nanos, TenantId


class JobView(NamedTuple):
    """A tuple, because one is made for every candidate at every decision."""

    id: JobId
    name: str
    tenant: TenantId
    priority: int
    arrived_ns: Nanos
    is_holding: bool  # it has the turn; False in a cluster, where cards are not held turn by turn
    held_ns: Nanos  # how long the present turn has lasted; 0 if it holds none
    waited_ns: Nanos  # how long it has wanted a turn since its last one; 0 if it holds one, and in a cluster
    served_ns: Nanos  # device time it has had in all; a cluster counts it by size and in the policy's levels
    remaining_ns: Nanos  # best guess of the device time it still needs
    remaining_is_known: bool  # declared or known from earlier runs, not from a rule of thumb
    level: int  # served_ns by its weight within its tenant, and a newcomer starts where the others are
    tenant_level: int  # the same of its tenant; 0 in a cluster, which gives each tenant cards of its own
    size_milli: int  # how much of a device it wants at once, in thousandths: 1000 on a node, 8000 for eight cards
    is_early: bool = False  # it waits, wanted no more when its last turn ended, and has had no more than others
    quantum_ns: Nanos = 0  # how long a turn that it holds is to last, so that a change pays; 0 if it holds none
