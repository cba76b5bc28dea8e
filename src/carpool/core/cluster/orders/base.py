"""What an order is, and the list of those there are.

An order says which of two jobs goes before the other, as a key: the lower goes first. The scheduler keeps jobs sorted
and asks for a key only when something happened to the job, so an order also says how keys move by themselves:
the first part of a running job's key falls at a constant speed, and after some run time the key is to be asked anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from carpool.core.cluster.model import Job, Key
from carpool.core.cluster.orders.fair import Fair
from carpool.core.cluster.orders.fifo import Fifo
from carpool.core.cluster.orders.las import LeastAttained
from carpool.core.cluster.orders.pack import Pack
from carpool.core.cluster.orders.priority import Priority
from carpool.core.cluster.orders.srsf import ShortestService
from carpool.core.cluster.orders.srtf import ShortestTime
from carpool.core.cluster.orders.tiresias import Tiresias
from carpool.core.kernel.ids import Nanos


class Order(Protocol):
    """One object a scheduler: it may remember how jobs stand among each other."""

    @property
    def name(self) -> str:
        """What people call it on the command line."""

    @property
    def seats(self) -> int:
        """How many jobs may run side by side on the same cards."""

    @property
    def splits_by_weight(self) -> bool:
        """Whether the tenants that have jobs own the cluster by their weights, whatever they were given."""

    def key(self, job: Job) -> Key:
        """The job's place now; called when it came, began, was parked, was set back, or `rest_ns` is over."""

    def speed(self, job: Job) -> int:
        """By how much the first part of its key falls in each nanosecond of running."""

    def rest_ns(self, job: Job) -> Nanos | None:
        """After how much more run time its key must be asked anew; None for never."""


ORDERS: dict[str, Callable[[], Order]] = {
    "fifo": Fifo,
    "srtf": ShortestTime,
    "srsf": ShortestService,
    "las": LeastAttained,
    "tiresias": Tiresias,
    "fair": Fair,
    "priority": Priority,
    "pack": Pack,
}
