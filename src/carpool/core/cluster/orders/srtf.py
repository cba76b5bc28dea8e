"""Shortest remaining time first."""

from __future__ import annotations

from carpool.core.cluster.model import Job, Key
from carpool.core.cluster.orders.levels import ENDS, raise_level, rest_of_level
from carpool.core.kernel.ids import Nanos


class ShortestTime:
    """Who is nearest its end goes first.

    A job of unknown length is taken to have as long before it as the end of its level of attained service.
    """

    name = "srtf"
    seats = 1
    splits_by_weight = False

    def key(self, job: Job) -> Key:
        return (self.remaining_ns(job), job.number)

    def speed(self, job: Job) -> int:
        return 0 if job.service_ns is None else 1

    def rest_ns(self, job: Job) -> Nanos | None:
        return rest_of_level(job) if job.service_ns is None else None

    def remaining_ns(self, job: Job) -> Nanos:
        if job.service_ns is not None:
            return job.service_ns - job.attained_ns + job.lost_ns
        raise_level(job)
        return ENDS[job.level] // max(1, job.size_milli)
