"""Least attained service, two-dimensional, in levels that double."""

from __future__ import annotations

from carpool.core.cluster.model import Job, Key
from carpool.core.cluster.orders.levels import raise_level, rest_of_level
from carpool.core.model import Nanos


class LeastAttained:
    """The lowest level goes first, and in a level who came first. Knows no lengths."""

    name = "las"
    seats = 1
    splits_evenly = False

    def key(self, job: Job) -> Key:
        raise_level(job)
        return (job.level, job.number)

    def speed(self, job: Job) -> int:
        return 0

    def rest_ns(self, job: Job) -> Nanos | None:
        return rest_of_level(job)
