"""Owned shares, loans, and the contract of giving back.

Each tenant owns a share of the cluster. Its jobs, in their order, run on the share as far as it goes: those are
*owned*. Whatever is idle is lent: any waiting job may run there as a *loan*. The contract:

  O1  What a tenant's owned jobs hold is never above its share; the shares are never above the cluster.
  O2  A waiting job that fits into its tenant's share beside those that go before it becomes owned at once, and has
      its cards within the deadline. What stands in its way is parked, not killed: loans first; then smaller owned
      jobs, which get other cards by the same rule. So an owned job gives way only to its own tenant's order, or to
      a larger job, and there is no circle of jobs that evict each other: each is larger than the one before.
  O3  Only an owned job evicts; a loan takes what is free and nothing else.
  O4  Of the loans, those of the tenant that is furthest above its share go first; among them those that lose least,
      had least, and hold least.
  O5  A job that cannot promise a boundary within the deadline gets no loan.
  O6  A job for which others were parked in a decision gives way in that decision only to a larger one. So every
      decision ends: the jobs for which room was made only become more, or one of them gives way to a larger one; and
      there are finitely many.
  O7  While the cluster has less than the shares that were given, each share counts for its part of what there is.
  O8  Shares come, change and go at any time. Jobs of a tenant without a share that are here go on as loans.

Without shares there is one pool that owns everything: then "owned" are the jobs that the order lets run, and a loan
is whatever runs in a hole that nobody before it can use.
"""

from __future__ import annotations

from carpool.core.cluster.model import ClusterJob, Key
from carpool.core.cluster.sorted_jobs import RunningJobs, WaitingJobs
from carpool.core.kernel.ids import Nanos, TenantId
from carpool.errors import InternalError


class Pool:
    """The jobs of one tenant, or of all where nobody was given a share."""

    __slots__ = ("jobs", "loans", "moving", "owned", "share_milli", "tenant", "waiting")

    def __init__(self, tenant: TenantId, share_milli: int) -> None:
        self.tenant = tenant
        self.share_milli = share_milli  # less than what was given while nodes are missing (O7)
        self.jobs: dict[ClusterJob, None] = {}  # all of them, whatever their state
        self.waiting = WaitingJobs()
        self.owned = RunningJobs()
        self.loans = RunningJobs()
        self.moving: list[ClusterJob] = []  # owned, on their way to other cards: their part of the share is theirs

    @property
    def over_milli(self) -> int:
        """How far it is above its share; below zero is room."""
        return self.owned.size_milli + self.loans.size_milli - self.share_milli

    def owns(self, job: ClusterJob, key: Key, now: Nanos) -> bool:
        """Whether the job fits into the share beside those that go before it (O2)."""
        kept_milli = sum(other.size_milli for other in self.moving if other.key < key) if self.moving else 0
        room_milli = self.share_milli - kept_milli - job.size_milli
        if self.owned.size_milli <= room_milli:
            return True
        if room_milli < 0:
            return False
        last = self.owned.last(now)
        if last is None or last[0] < key:
            return False
        return self.owned.size_before(key, now) <= room_milli

    def check(self) -> None:
        """Assert O1 for this pool."""
        owned_milli = sum(job.size_milli for job in self.owned)
        if owned_milli != self.owned.size_milli:
            raise InternalError(f"O1: {self.tenant} holds {owned_milli} m, counted are {self.owned.size_milli} m")
        if owned_milli > self.share_milli:
            raise InternalError(f"O1 broken: {self.tenant} owns {owned_milli} m of a share of {self.share_milli} m")


def victim_rank(job: ClusterJob, pool: Pool) -> tuple[int, int, int, int, int]:
    """Who is parked first (O4): the lowest."""
    return (-pool.over_milli, job.turn_ns, job.attained_ns, job.size_milli, -job.number)
