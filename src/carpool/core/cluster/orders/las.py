"""Least attained service, two-dimensional, in levels."""

from __future__ import annotations

from carpool.core.cluster.model import Job, Key
from carpool.core.cluster.orders.levels import raise_level, rest_of_level
from carpool.core.kernel.ids import Nanos


class LeastAttained:
    """The lowest level goes first; in a level those that run before those that wait, then who came first.

    Knows no lengths. Running before waiting lets long jobs of one level end one after the other: taking turns, they
    would all end late. Who comes from the level above counts as waiting until it has outlived one decision there.
    """

    name = "las"
    seats = 1
    splits_by_weight = False

    def key(self, job: Job) -> Key:
        raise_level(job)
        running, waiting = 2 * job.level, 2 * job.level + 1
        is_settled = job.is_running and job.key[0] in (running, waiting)
        return (running if is_settled else waiting, job.number)

    def speed(self, job: Job) -> int:
        return 0

    def rest_ns(self, job: Job) -> Nanos | None:
        return rest_of_level(job)
