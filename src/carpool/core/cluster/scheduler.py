"""The cluster's scheduler: facts in, orders out.

`handle` takes one event and the time and returns what must be done, in order. It reads no clock and keeps no log: the
same events at the same times give the same effects on any machine.

What happens inside one call: the event is noted, or rejected (arrivals.py, nodes.py, sharing.py); each pool it
touched lets its jobs run as far as its share goes, which may suspend others; what is still free is lent (sharing.py,
tenants.py); jobs that would wait may ride beside others where that was measured to help (side_by_side.py).

A driver that was restarted tells SyncStarted, then everything it finds in any order, then SyncFinished.
"""

from __future__ import annotations

from heapq import heappop
from typing import assert_never

from carpool.core.cluster import arrivals, nodes, sharing, weights
from carpool.core.cluster.cluster import Cluster
from carpool.core.cluster.effects import Effect, RejectEvent, RevokeJob
from carpool.core.cluster.events import (
    Event,
    JobArrived,
    JobEnded,
    JobFound,
    JobLeft,
    JobQueued,
    JobRefused,
    JobStarted,
    JobSuspended,
    NodeAdded,
    NodeCordoned,
    NodeDrained,
    NodeEvent,
    NodeRemoved,
    NodeUncordoned,
    RatesMeasured,
    ShareGiven,
    ShareWithdrawn,
    SyncFinished,
    SyncStarted,
    TenantEvent,
    Tick,
    WeightGiven,
    WorkLost,
)
from carpool.core.cluster.inventory import Inventory
from carpool.core.cluster.merging import merge_groups
from carpool.core.cluster.model import ClusterJob, ClusterSettings, State
from carpool.core.cluster.order import Order
from carpool.core.cluster.pictures import ClusterJobPicture, ClusterPicture, picture_cluster, picture_job
from carpool.core.cluster.rates import fault_of_rates
from carpool.core.cluster.reasons import tell_waits
from carpool.core.cluster.side_by_side import fill_groups, regroup, set_speeds, spread_out, undo_losses
from carpool.core.kernel.ids import JobId, Nanos
from carpool.core.policies.base import Policy
from carpool.errors import InternalError
from carpool.units import SECOND

REVIEW_NS = 1 * SECOND  # after a sync: when those are moved that should leave for others


class ClusterScheduler:
    """All decisions about which job runs where and when."""

    def __init__(self, inventory: Inventory, policy: Policy, settings: ClusterSettings | None = None) -> None:
        self._cluster = Cluster(inventory, Order(policy), settings or ClusterSettings())
        self._set_back: list[ClusterJob] = []  # lost work since the last decision

    def handle(self, event: Event, *, now: Nanos) -> list[Effect]:
        """Take in one fact; returns what must be done now, in order."""
        cluster = self._cluster
        if now < cluster.now:
            raise InternalError(f"time went back from {cluster.now} to {now}")
        cluster.now = now
        cluster.effects = []
        if isinstance(event, WorkLost):
            self._on_lost(event)
            return cluster.effects
        if self._set_back:
            self._count_losses()
        fault = self._note(event)
        if fault:
            job_id = getattr(event, "job", None)
            cluster.effects.append(RejectEvent(job=job_id, event=type(event).__name__, reason=fault))
        if not cluster.is_syncing:
            self._decide(event)
        else:
            sharing.fit_if_changed(cluster)
        return cluster.effects

    def _count_losses(self) -> None:
        """Jobs that lost work since the last decision stand elsewhere among the others now."""
        cluster = self._cluster
        for job in self._set_back:
            if job.state is not State.ENDED:
                cluster.charge(job)
                cluster.rekey(job)
                cluster.touch(cluster.pool_of(job))
        self._set_back.clear()

    def _decide(self, event: Event) -> None:
        cluster = self._cluster
        sharing.serve_pools(cluster, is_room_new=not isinstance(event, JobArrived))
        if cluster.inventory.free_milli > 0:
            sharing.lend(cluster)
        if cluster.order.seats > 1:
            fill_groups(cluster)
            if cluster.effects or not isinstance(event, JobArrived | Tick):
                cluster.merged_in_vain.clear()
            if cluster.may_evict:
                merge_groups(cluster)
            if cluster.inventory.free_milli > 0:
                spread_out(cluster)
            regroup(cluster)
            set_speeds(cluster)
            if cluster.effects:
                cluster.merged_in_vain.clear()
            if cluster.inventory.capacity_milli != cluster.fitted_milli:  # somebody left a closed card
                sharing.serve_pools(cluster, is_room_new=True)
        if cluster.rekeyed:
            cluster.confirm_keys()
        cluster.occupancy.made_room.clear()
        cluster.may_evict = True
        if cluster.settings.explains:
            tell_waits(cluster)

    def next_wakeup(self) -> Nanos | None:
        """When the driver must send a Tick if nothing else happens; None for never."""
        cluster = self._cluster
        wakeups, review_ns = cluster.wakeups, cluster.review_ns
        while wakeups and wakeups[0][2] != wakeups[0][3].changes:
            heappop(wakeups)
        if cluster.is_syncing:
            return None
        if not wakeups:
            return review_ns
        return wakeups[0][0] if review_ns is None else min(review_ns, wakeups[0][0])

    def picture(self, *, now: Nanos) -> ClusterPicture:
        return picture_cluster(self._cluster, now=now)

    def picture_job(self, job: JobId, *, now: Nanos) -> ClusterJobPicture | None:
        found = self._cluster.jobs.get(job)
        return picture_job(self._cluster, found, now=now) if found is not None else None

    def state_of(self, job: JobId) -> State | None:
        found = self._cluster.jobs.get(job)
        return found.state if found is not None else None

    def check_invariants(self) -> None:
        """Assert every numbered rule, and that all accounts agree; for tests and careful drivers."""
        cluster = self._cluster
        for pool in cluster.pools.values():
            pool.check()
        if sum(pool.share_milli for pool in cluster.pools.values()) > cluster.inventory.capacity_milli:
            raise InternalError("O1 broken: the shares are larger than the cluster")
        on_cards = {job.id for jobs in cluster.occupancy.on_node for job in jobs}
        for job in cluster.jobs.values():
            has_cards = job.state in (State.RUNNING, State.COMING)
            if has_cards != (job.id in on_cards):
                raise InternalError(f"job {job.id} is {job.state}, the nodes say otherwise")
            if (job.state is State.RIDING) != (job.host is not None):
                raise InternalError(f"job {job.id} is {job.state} with host {job.host}")
            if job.host is not None and job.host.state is not State.RUNNING:
                raise InternalError(f"job {job.id} rides on {job.host.id}, which is {job.host.state}")

    # --- one short method a case: each returns why the event makes no sense, empty if it does ----------------------

    def _note(self, event: Event) -> str:
        match event:
            case Tick():
                return self._on_tick()
            case JobArrived():
                return arrivals.arrive(self._cluster, event)
            case JobEnded():
                return self._on_ended(event)
            case JobSuspended():
                return self._on_suspended(event)
            case JobFound():
                return arrivals.find(self._cluster, event)
            case JobQueued() | JobStarted():
                return arrivals.queue(self._cluster, event)
            case JobRefused() | JobLeft():
                return arrivals.leave(self._cluster, event)
            case RatesMeasured():
                return self._on_rates(event)
            case SyncStarted():
                return self._on_sync_started()
            case SyncFinished():
                return self._on_sync_finished()
            case WorkLost():
                raise InternalError("WorkLost is handled before")
            case _:
                return self._note_of_cluster(event)

    def _note_of_cluster(self, event: NodeEvent | TenantEvent) -> str:
        """Nodes and tenants."""
        cluster = self._cluster
        match event:
            case ShareGiven():
                return sharing.give_share(cluster, event)
            case ShareWithdrawn():
                return sharing.withdraw_share(cluster, event)
            case WeightGiven():
                return weights.give_weight(cluster, event)
            case NodeAdded():
                return nodes.add(cluster, event)
            case NodeRemoved():
                return nodes.remove(cluster, event)
            case NodeCordoned():
                return nodes.cordon(cluster, event)
            case NodeDrained():
                return nodes.drain(cluster, event)
            case NodeUncordoned():
                return nodes.uncordon(cluster, event)
            case _:
                assert_never(event)

    def _on_ended(self, event: JobEnded) -> str:
        cluster = self._cluster
        job = cluster.jobs.get(event.job)
        if job is None:
            return "no such job"
        pool = cluster.pool_of(job)
        cluster.remove(job)
        cluster.touch(pool)
        if cluster.order.splits_by_weight and pool.tenant not in cluster.pools:
            weights.split_by_weight(cluster)
        return ""

    def _on_suspended(self, event: JobSuspended) -> str:
        job = self._cluster.jobs.get(event.job)
        if job is None or job.state is not State.LEAVING:
            return "no such job" if job is None else f"the job is {job.state}"
        self._cluster.has_left(job)
        return ""

    def _on_lost(self, event: WorkLost) -> None:
        """Each job by itself: one that ended meanwhile does not keep the others from being set back."""
        for name, lost_ns in event.lost_ns.items():
            job = self._cluster.jobs.get(name)
            if job is None or lost_ns < 0:
                reason = "no such job" if job is None else f"it cannot have lost {lost_ns} ns of work"
                self._cluster.effects.append(RejectEvent(job=name, event=type(event).__name__, reason=reason))
                continue
            self._cluster.set_back(job, lost_ns)
            self._set_back.append(job)

    def _on_rates(self, event: RatesMeasured) -> str:
        fault = fault_of_rates(event)
        if not fault:
            self._cluster.rates.learn(event)
            undo_losses(self._cluster)
        return fault

    def _on_sync_started(self) -> str:
        if self._cluster.is_syncing:
            return "a sync has begun already"
        self._cluster.is_syncing = True
        return ""

    def _on_sync_finished(self) -> str:
        cluster = self._cluster
        if not cluster.is_syncing:
            return "no sync has begun"
        cluster.is_syncing = False
        cluster.may_evict = False
        cluster.review_ns = cluster.now + REVIEW_NS
        nodes.carry_out_drains(cluster)
        sharing.fit_shares(cluster)
        return ""

    def _on_tick(self) -> str:
        cluster = self._cluster
        if cluster.is_syncing:
            return ""
        if cluster.review_ns is not None and cluster.review_ns <= cluster.now:
            cluster.review_ns = None
            cluster.touch_all()
        wakeups = cluster.wakeups
        while wakeups and wakeups[0][0] <= cluster.now:
            _, _, changes, job = heappop(wakeups)
            if changes == job.changes:
                self._wake(job)
        return ""

    def _wake(self, job: ClusterJob) -> None:
        """What was to happen to the job by now: it starved, it overstayed, or it outlived its key."""
        cluster = self._cluster
        if job.state is State.WAITING:
            cluster.starve(job)
        elif job.state is State.LEAVING:
            cluster.effects.append(RevokeJob(job=job.id))
            cluster.has_left(job)
        else:
            cluster.charge(job)
            cluster.rekey(job)
        cluster.touch(cluster.pool_of(job))
