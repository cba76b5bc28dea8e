"""What a policy is, and the list of those there are.

A policy chooses which of the jobs that want a lane should have it; nothing else. The present holder is among
them. If the choice is not the holder, and the holder has had its quantum, the scheduler recalls the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from carpool.core.kernel.ids import JobId, Nanos
from carpool.core.node.words.views import JobView
from carpool.core.policies.fair import Fair
from carpool.core.policies.fifo import Fifo
from carpool.core.policies.las import LeastServed
from carpool.core.policies.pack import Pack
from carpool.core.policies.priority import Priority
from carpool.core.policies.srtf import ShortestRemaining


class Policy(Protocol):
    """Pure: the same views and time give the same choice."""

    @property
    def name(self) -> str:
        """What people call it on the command line."""

    @property
    def quantum_ns(self) -> Nanos:
        """How long a holder keeps its turn, at least, before it is recalled for somebody else."""

    @property
    def lanes_max(self) -> int:
        """How many jobs may run on one device at the same time."""

    def pick(self, wanting: Sequence[JobView], *, now: Nanos) -> JobId | None:
        """The job that should have the lane; None only if nobody wants it."""

    def why(self, chosen: JobView, over: JobView) -> str:
        """Half a sentence: why the one goes before the other."""


POLICIES: dict[str, Policy] = {
    "fifo": Fifo(),
    "srtf": ShortestRemaining(),
    "fair": Fair(),
    "priority": Priority(),
    "pack": Pack(),
    "las": LeastServed(),
}
