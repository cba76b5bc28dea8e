"""Shortest remaining service first."""

from __future__ import annotations

from carpool.core.cluster.model import Job, Key
from carpool.core.cluster.orders.srtf import ShortestTime


class ShortestService(ShortestTime):
    """As `srtf`, but a job counts for as much as the cards it wants: remaining time × cards."""

    name = "srsf"

    def key(self, job: Job) -> Key:
        return (self.remaining_ns(job) * job.size_milli, job.number)

    def speed(self, job: Job) -> int:
        return 0 if job.service_ns is None else job.size_milli
