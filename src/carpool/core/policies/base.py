"""What a policy is: a rank for every job, and the lowest goes first. Nothing else.

Both schedulers ask the same question. The node's asks it of the jobs that want a lane, the present holder among them;
if another one is first, and the holder has had its quantum, the turn is recalled. The cluster's asks it of all jobs,
and gives whole cards in that order. One policy is one file in this folder, or a file of your own: docs/policies.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from carpool.core.kernel.ids import Nanos
from carpool.core.policies.levels import COARSE, Levels
from carpool.core.policies.view import JobView

Rank = tuple[int, ...]  # compared part by part; the lower goes first


class Policy(ABC):
    """Pure: the same view and time give the same rank. It keeps nothing from one question to the next."""

    name: str  # what people call it on the command line
    quantum_ns: Nanos | None = None  # how long a holder keeps its turn, at least; None: so long that a change pays
    lanes_max: int = 1  # how many jobs may run side by side on one device
    by_tenant: bool = False  # tenants come before jobs: each has a part by its weight, the rank orders its own jobs
    by_length: bool = False  # the rank follows what is left: who was just measured is judged before its quantum
    by_turns: bool = False  # the rank changes when a holder has had `JobView.quantum_ns`
    levels: Levels = COARSE  # how a cluster counts what a job has had
    runs_on: tuple[str, ...] = ("node", "cluster")

    @abstractmethod
    def rank(self, view: JobView, *, now: Nanos) -> Rank:
        """The place of a job among the others; of equals the one goes first that came first."""

    @abstractmethod
    def why(self, chosen: JobView, over: JobView) -> str:
        """Half a sentence: why the one goes before the other."""

    def speed(self, view: JobView) -> int | None:
        """How fast the first part of its rank falls while the job runs in a cluster, for each nanosecond.

        None: it changes only when the job's level ends, and is asked for again then.
        """
        return None
