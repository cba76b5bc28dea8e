"""Who was told to leave and is still there: on which cards, and on which nodes with CPU or host memory.

The inventory gives what such a job holds to others at once; those then wait here until it is truly free.
"""

from __future__ import annotations

from carpool.core.cluster.model import ClusterJob

HOST = -1  # stands for a node's CPU and memory among its cards


class LeavingJobs:
    """Leaving jobs by what they still hold."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], dict[ClusterJob, None]] = {}  # by node and card

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, job: ClusterJob) -> None:
        for what in _holdings(job):
            self._held.setdefault(what, {})[job] = None

    def remove(self, job: ClusterJob) -> None:
        for what in _holdings(job):
            jobs = self._held[what]
            jobs.pop(job, None)
            if not jobs:
                del self._held[what]

    def keep_waiting(self, job: ClusterJob) -> bool:
        """Whether somebody still has what is now the job's."""
        return any(what in self._held for what in _holdings(job))

    def before(self, job: ClusterJob) -> list[ClusterJob]:
        """Those who still have what is now the job's."""
        return list(dict.fromkeys(other for what in _holdings(job) for other in self._held.get(what, ())))

    def on_node(self, node: int) -> list[ClusterJob]:
        """Those who have yet to leave this node."""
        return list(dict.fromkeys(job for (where, _), jobs in self._held.items() if where == node for job in jobs))


def _holdings(job: ClusterJob) -> list[tuple[int, int]]:
    held = dict.fromkeys((place.node, card) for place in job.places for card in place.cards)
    for member, place in zip(job.members, job.places, strict=True):
        if member.cpu_milli or member.memory_bytes:
            held[place.node, HOST] = None
    return list(held)
