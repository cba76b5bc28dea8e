"""Tiresias-L, as the published Muri figures simulate it: few queues, and running before waiting inside each."""

from __future__ import annotations

from carpool.core.cluster.model import NO_KEY, Job, Key
from carpool.core.kernel.ids import Nanos
from carpool.units import SECOND

LIMITS = (3_250 * SECOND * 1000, 7_200 * SECOND * 1000)  # GPU-seconds at which the first and second queue end


class Tiresias:
    """Three queues by attained service. In a queue: those that run, as they began; then those that wait, in order.

    Who is parked goes to the front of those that wait; who comes from the queue above goes to their end, and counts
    as running only once it has outlived one decision there.
    """

    name = "tiresias"
    seats = 1
    splits_by_weight = False

    def __init__(self) -> None:
        self._count = 0

    def key(self, job: Job) -> Key:
        queue = job.level
        while queue < len(LIMITS) and job.attained_ns * job.size_milli >= LIMITS[queue]:
            queue += 1
        is_demoted = queue > job.level
        job.level = queue
        self._count += 1
        if is_demoted or job.key == NO_KEY:
            return (2 * queue + 1, self._count)
        if job.is_running:
            stays = job.key[0] == 2 * queue
            return job.key if stays else (2 * queue, self._count)
        was_running = job.key[0] == 2 * queue
        return (2 * queue + 1, -self._count) if was_running else (2 * queue + 1, job.key[1])

    def speed(self, job: Job) -> int:
        return 0

    def rest_ns(self, job: Job) -> Nanos | None:
        if job.level == len(LIMITS):
            return None
        whole_s = -(-LIMITS[job.level] // (job.size_milli * SECOND))  # the published simulator jumps at whole seconds
        return max(0, whole_s * SECOND - job.attained_ns)
