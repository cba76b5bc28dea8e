"""By weight: first among tenants, then among the jobs of each."""

from __future__ import annotations

from carpool.core.cluster.model import NO_KEY, Job, Key
from carpool.core.cluster.orders.levels import FIRST
from carpool.core.kernel.ids import WEIGHT_ONE, Nanos

LEVELS = 160  # beyond any job


def _make_ends() -> tuple[int, ...]:
    ends = [FIRST]
    while len(ends) < LEVELS:
        ends.append(ends[-1] * 5 // 4)
    return tuple(ends)


ENDS = _make_ends()  # each level is a quarter longer than the one before: who is served least is known to a quarter


class Fair:
    """Tenants with jobs own the cluster by weight, and what one leaves idle is lent; inside, least served first.

    Served is counted for its weight and in levels; in a level those that run go before those that wait, then who came
    first. A newcomer begins at the level of the job of its tenant that was served least, or everybody would have to
    wait until it has caught up. Among tenants nothing is remembered, so there is nothing to catch up with.
    """

    name = "fair"
    seats = 1
    splits_by_weight = True

    def key(self, job: Job) -> Key:
        if job.key == NO_KEY and job.level:
            job.head_start = ENDS[job.level - 1]
        while self._served(job) >= ENDS[job.level]:
            job.level += 1
        running, waiting = 2 * job.level, 2 * job.level + 1
        is_settled = job.is_running and job.key[0] in (running, waiting)
        return (running if is_settled else waiting, job.number)

    def speed(self, job: Job) -> int:
        return 0

    def rest_ns(self, job: Job) -> Nanos | None:
        left = (ENDS[job.level] - job.head_start) * job.weight_milli // WEIGHT_ONE - job.attained_ns * job.size_milli
        return max(1, -(-left // max(1, job.size_milli)) + 1)

    @staticmethod
    def _served(job: Job) -> int:
        return job.attained_ns * job.size_milli * WEIGHT_ONE // job.weight_milli + job.head_start
