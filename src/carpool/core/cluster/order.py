"""A policy as the cluster asks it: a key for every job, by which jobs are kept sorted.

The policy gives a rank of a view, as on a node. What is added here is what only a cluster needs: the rank is asked
for only when something happened to the job, so it is also known how keys move by themselves. The first part of a
running job's key falls at a constant speed, or the key is asked anew when the job has outlived its level.
"""

from __future__ import annotations

from carpool.core.cluster.model import NO_KEY, ClusterJob, Key
from carpool.core.kernel.ids import WEIGHT_ONE, Nanos
from carpool.core.policies.base import Policy
from carpool.core.policies.levels import NEVER
from carpool.core.policies.view import JobView


class Order:
    """One object a scheduler: it counts how often a job's standing among the others changed."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.name = policy.name
        self.seats = policy.lanes_max  # how many jobs may run side by side on the same cards
        self.splits_by_weight = policy.by_tenant  # tenants that have jobs own the cluster, whatever they were given
        self._rank = policy.rank
        self._step_ns = policy.levels.step_ns
        self._bounds = policy.levels.bounds
        self._begins_ns, self._waits_ns = policy.levels.begins_ns, policy.levels.waits_ns
        self._by_weight, self._keeps_standing = policy.levels.by_weight, policy.levels.keeps_standing
        self._counts_always = self._by_weight or self._keeps_standing
        self.asks_speed = type(policy).speed is not Policy.speed
        self._changes = 0

    def key(self, job: ClusterJob, *, now: Nanos) -> Key:
        """The job's place now; called when it came, began, was parked, was set back, or `rest_ns` is over."""
        served = job.attained_ns * job.size_milli
        if self._counts_always or served >= self._bounds[job.level] or job.key is NO_KEY:
            self._count(job, served)
        else:
            job.counts_as_running = job.is_running
        rank = self._rank(self.view_of(job), now=now)
        tie = job.standing if self._keeps_standing else job.number
        return (rank[0], tie) if len(rank) == 1 else (rank[0], (*rank[1:], tie))

    def speed(self, job: ClusterJob) -> int:
        """By how much the first part of its key falls in each nanosecond of running."""
        return (self.policy.speed(self.view_of(job)) or 0) if self.asks_speed else 0

    def rest_ns(self, job: ClusterJob) -> Nanos | None:
        """After how much more run time its key must be asked anew; None for never."""
        if self.asks_speed and self.policy.speed(self.view_of(job)) is not None:
            return None
        end, size_milli, step_ns = self._bounds[job.level], job.size_milli, self._step_ns
        if end == NEVER:
            return None
        if self._by_weight:
            left = (end - job.head_start) * job.weight_milli // WEIGHT_ONE - job.attained_ns * size_milli
            return max(1, -(-left // (size_milli or 1)) + 1)
        if not size_milli:  # without cards it attains nothing
            return -(-end // step_ns) * step_ns
        return -(-end // (size_milli * step_ns)) * step_ns - job.attained_ns

    def view_of(self, job: ClusterJob) -> JobView:
        """The job as a policy sees it: what it has had counts in levels, one nanosecond less while it runs."""
        counted_ns = (self._begins_ns if job.counts_as_running else self._waits_ns)[job.level]
        service_ns, size_milli = job.service_ns, job.size_milli
        if service_ns is None:
            remaining_ns = self._bounds[job.level] // (size_milli or 1)  # as long as its level
        else:
            remaining_ns = service_ns - job.attained_ns + job.lost_ns
        counted = (counted_ns, remaining_ns, service_ns is not None, counted_ns, 0, size_milli, False)
        view: JobView = tuple.__new__(JobView, job.facts + counted)  # JobView's own constructor takes twice as long
        return view

    def _count(self, job: ClusterJob, served: int) -> None:
        """Bring the job to the level of what it has attained, never down again, and note how it stands there."""
        is_sent_back = job.key is NO_KEY
        if is_sent_back and job.level:
            job.head_start = self._bounds[job.level - 1]
        if self._by_weight:
            served = served * WEIGHT_ONE // job.weight_milli + job.head_start
        while served >= self._bounds[job.level]:
            job.level += 1
            is_sent_back = True
        counts = not is_sent_back and job.is_running
        if self._keeps_standing and (is_sent_back or counts != job.counts_as_running):
            self._changes += 1
            is_parked = not is_sent_back and not counts  # to the front of those that wait
            job.standing = -self._changes if is_parked else self._changes
        job.counts_as_running = counts
