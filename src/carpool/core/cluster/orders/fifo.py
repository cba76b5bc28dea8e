"""First in, first out."""

from __future__ import annotations

from carpool.core.cluster.model import Job, Key
from carpool.core.kernel.ids import Nanos


class Fifo:
    """Who came first goes first. A later job may use a hole that an earlier, larger one cannot, as a loan."""

    name = "fifo"
    seats = 1
    splits_by_weight = False

    def key(self, job: Job) -> Key:
        return (job.number, 0)

    def speed(self, job: Job) -> int:
        return 0

    def rest_ns(self, job: Job) -> Nanos | None:
        return None
