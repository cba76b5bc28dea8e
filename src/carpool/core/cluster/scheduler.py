"""The cluster's scheduler: facts in, orders out.

`handle` takes one event and the time and returns what must be done, in order. It reads no clock and keeps no log: the
same events at the same times give the same effects on any machine.

What happens inside one call: the event is noted (or rejected); each pool it touched lets its jobs run as far as
its share goes, which may park others; what is still free is lent (sharing.py, tenants.py); jobs that would wait may
ride beside others where that was measured to help (side_by_side.py).
"""

from __future__ import annotations

from heapq import heappop
from typing import assert_never

from carpool.core.cluster.cluster import EVERYBODY, Cluster
from carpool.core.cluster.effects import Effect, RefuseJob, RejectEvent, RevokeJob
from carpool.core.cluster.events import (
    Event,
    JobArrived,
    JobEnded,
    JobSuspended,
    NodeAdded,
    NodeRemoved,
    RatesMeasured,
    ShareGiven,
    Tick,
    WeightGiven,
    WorkLost,
)
from carpool.core.cluster.inventory import Inventory, gone
from carpool.core.cluster.merging import merge_groups
from carpool.core.cluster.model import ClusterSettings, Job, State
from carpool.core.cluster.order import Order
from carpool.core.cluster.placement.requests import Request
from carpool.core.cluster.rates import fault_of_rates
from carpool.core.cluster.sharing import fit_shares, least_level, lend, serve_pools, split_by_weight
from carpool.core.cluster.side_by_side import fill_groups, regroup, set_speeds, spread_out, undo_losses
from carpool.core.cluster.tenants import Pool
from carpool.core.kernel.ids import JobId, Nanos
from carpool.core.policies.base import Policy
from carpool.errors import InternalError


class ClusterScheduler:
    """All decisions about which job runs where and when."""

    def __init__(self, inventory: Inventory, policy: Policy, settings: ClusterSettings | None = None) -> None:
        self._cluster = Cluster(inventory, Order(policy), settings or ClusterSettings())
        self._arrivals = 0
        self._shapes: dict[tuple[tuple[Request, ...], bool], int] = {}
        self._too_wide: dict[int, Request | None] = {}  # by shape: a member that no node could ever hold
        self._set_back: list[Job] = []  # lost work since the last decision

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
        for job in self._set_back:
            cluster.charge(job)
            cluster.rekey(job)
            cluster.touch(cluster.pool_of(job))
        self._set_back.clear()
        self._note(event)
        serve_pools(cluster, is_room_new=not isinstance(event, JobArrived))
        if cluster.inventory.free_milli > 0:
            lend(cluster)
        if cluster.order.seats > 1:
            fill_groups(cluster)
            if cluster.effects or not isinstance(event, JobArrived | Tick):
                cluster.merged_in_vain.clear()
            merge_groups(cluster)
            if cluster.inventory.free_milli > 0:
                spread_out(cluster)
            regroup(cluster)
            set_speeds(cluster)
            if cluster.effects:
                cluster.merged_in_vain.clear()
        cluster.confirm_keys()
        cluster.occupancy.made_room.clear()
        return cluster.effects

    def next_wakeup(self) -> Nanos | None:
        """When the driver must send a Tick if nothing else happens; None for never."""
        wakeups = self._cluster.wakeups
        while wakeups and wakeups[0][2] != wakeups[0][3].changes:
            heappop(wakeups)
        return wakeups[0][0] if wakeups else None

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

    # --- one short method a case -----------------------------------------------------------------------------------

    def _note(self, event: Event) -> None:
        match event:
            case Tick():
                self._on_tick()
            case JobArrived():
                self._on_arrived(event)
            case JobEnded():
                self._on_ended(event)
            case JobSuspended():
                self._on_parked(event)
            case ShareGiven():
                self._on_share(event)
            case WeightGiven():
                self._on_weight(event)
            case NodeAdded():
                self._on_node_added(event)
            case NodeRemoved():
                self._on_node_removed(event)
            case RatesMeasured():
                self._on_rates(event)
            case WorkLost():
                raise InternalError("WorkLost is handled before")
            case _:
                assert_never(event)

    def _reject(self, event: Event, reason: str, *, job: JobId | None = None) -> None:
        self._cluster.effects.append(RejectEvent(job=job, event=type(event).__name__, reason=reason))

    def _on_arrived(self, event: JobArrived) -> None:
        cluster = self._cluster
        if event.job in cluster.jobs:
            self._reject(event, "a job with this id is here already", job=event.job)
            return
        self._arrivals += 1
        is_lendable = event.turn_ns <= cluster.settings.deadline_ns
        job = Job(
            id=event.job,
            number=self._arrivals,
            members=event.members,
            size_milli=sum(member.total_milli for member in event.members),
            tenant=event.tenant,
            priority=event.priority,
            service_ns=event.service_ns,
            program=event.program,
            turn_ns=event.turn_ns,
            arrived_ns=cluster.now,
            weight_milli=event.weight_milli,
            shape=self._shapes.setdefault((event.members, is_lendable), len(self._shapes)),
        )
        reason = self._refusal(job)
        if reason:
            cluster.effects.append(RefuseJob(job=job.id, reason=reason))
            return
        if cluster.order.splits_by_weight:
            if job.tenant not in cluster.pools:
                cluster.pools[job.tenant] = Pool(job.tenant, 0)
                split_by_weight(cluster)
            job.level = least_level(cluster, cluster.pool_of(job))
        cluster.jobs[job.id] = job
        job.key = cluster.order.key(job, now=cluster.now)
        cluster.begin_waiting(job)
        if cluster.pool_of(job).waiting.is_first(job):
            cluster.touch(cluster.pool_of(job))

    def _on_ended(self, event: JobEnded) -> None:
        cluster = self._cluster
        job = cluster.jobs.pop(event.job, None)
        if job is None:
            self._reject(event, "no such job", job=event.job)
            return
        pool = cluster.pool_of(job)
        cluster.remove(job)
        cluster.touch(pool)
        if cluster.order.splits_by_weight and pool.is_empty:
            del cluster.pools[pool.tenant]
            split_by_weight(cluster)

    def _on_parked(self, event: JobSuspended) -> None:
        job = self._cluster.jobs.get(event.job)
        if job is None or job.state is not State.LEAVING:
            self._reject(event, "no such job" if job is None else f"the job is {job.state}", job=event.job)
            return
        self._cluster.has_left(job)

    def _on_lost(self, event: WorkLost) -> None:
        """Each job by itself: one that ended meanwhile does not keep the others from being set back."""
        for name, lost_ns in event.lost_ns.items():
            job = self._cluster.jobs.get(name)
            if job is None or lost_ns < 0:
                reason = "no such job" if job is None else f"it cannot have lost {lost_ns} ns of work"
                self._reject(event, reason, job=name)
                continue
            job.lost_ns += lost_ns
            self._set_back.append(job)

    def _on_rates(self, event: RatesMeasured) -> None:
        fault = fault_of_rates(event)
        if fault:
            self._reject(event, fault)
            return
        self._cluster.rates.learn(event)
        undo_losses(self._cluster)

    def _on_share(self, event: ShareGiven) -> None:
        cluster = self._cluster
        given_milli = {pool.tenant: pool.given_milli for pool in cluster.pools.values() if cluster.has_shares}
        given_milli[event.tenant] = event.share_milli
        total_milli, capacity_milli = sum(given_milli.values()), cluster.inventory.capacity_milli
        if cluster.order.splits_by_weight:
            self._reject(event, f"the order {cluster.order.name} splits the cluster by weight; it takes no shares")
        elif event.share_milli < 0:
            self._reject(event, f"tenant {event.tenant}: a share of {event.share_milli / 1000:g} cards is below 0")
        elif cluster.jobs:
            self._reject(event, "shares are given before the first job comes")
        elif total_milli > capacity_milli:
            self._reject(
                event, f"the shares are {total_milli / 1000:g} cards, the cluster has {capacity_milli / 1000:g}"
            )
        else:
            cluster.pools.pop(EVERYBODY, None)
            cluster.has_shares = True
            cluster.pools[event.tenant] = Pool(event.tenant, event.share_milli)

    def _on_weight(self, event: WeightGiven) -> None:
        cluster = self._cluster
        if not cluster.order.splits_by_weight:
            self._reject(event, f"the order {cluster.order.name} knows no weights of tenants; fair does")
        elif event.weight_milli <= 0:
            self._reject(event, f"tenant {event.tenant}: a weight of {event.weight_milli / 1000:g} is not above 0")
        else:
            cluster.weights[event.tenant] = event.weight_milli
            split_by_weight(cluster)

    def _on_node_added(self, event: NodeAdded) -> None:
        inventory, spec = self._cluster.inventory, event.node
        number = inventory.find_node(spec.name)
        if number is not None and inventory.has_node(number):
            self._reject(event, f"node {spec.name} is here already; if it changed, remove it first")
            return
        inventory.set_node(number, spec)
        if number is None:
            self._cluster.occupancy.add_node()
        self._too_wide.clear()
        fit_shares(self._cluster)

    def _on_node_removed(self, event: NodeRemoved) -> None:
        inventory = self._cluster.inventory
        number = inventory.find_node(event.name)
        if number is None or not inventory.has_node(number):
            self._reject(event, f"there is no node {event.name}")
            return
        self._cluster.lose_node(number)
        inventory.set_node(number, gone(event.name))
        self._too_wide.clear()
        fit_shares(self._cluster)

    def _on_tick(self) -> None:
        cluster = self._cluster
        wakeups = cluster.wakeups
        while wakeups and wakeups[0][0] <= cluster.now:
            _, _, changes, job = heappop(wakeups)
            if changes == job.changes:
                self._wake(job)

    def _wake(self, job: Job) -> None:
        """What was to happen to the job by now: it starved, it overstayed, or it outlived its key."""
        cluster = self._cluster
        if job.state is State.WAITING:
            cluster.pool_of(job).waiting.remove(job)
            job.is_starved = True
            cluster.begin_waiting(job)
        elif job.state is State.LEAVING:
            cluster.effects.append(RevokeJob(job=job.id))
            cluster.has_left(job)
        else:
            cluster.charge(job)
            cluster.rekey(job)
        cluster.touch(cluster.pool_of(job))

    def _refusal(self, job: Job) -> str | None:
        """Why the job can never run, or None."""
        cluster = self._cluster
        if not job.members:
            return f"job {job.id} can never run: it has no members; name what it wants of each node"
        if job.weight_milli <= 0 or job.turn_ns < 0 or (job.service_ns or 0) < 0:
            return f"job {job.id} can never run: its weight is above 0, its times are not below 0; correct them"
        if job.size_milli > cluster.inventory.capacity_milli:
            return (
                f"job {job.id} can never run: it wants {job.size_milli / 1000:g} cards, the cluster has "
                f"{cluster.inventory.capacity_milli / 1000:g}; ask for fewer"
            )
        if job.shape not in self._too_wide:
            wide = (member for member in dict.fromkeys(job.members) if not cluster.inventory.could_ever_fit(member))
            self._too_wide[job.shape] = next(wide, None)
        member = self._too_wide[job.shape]
        if member is not None:
            return f"job {job.id} can never run: no node holds {member.cards} cards as it wants them; ask for fewer"
        if cluster.has_shares and not cluster.order.splits_by_weight and job.tenant not in cluster.pools:
            return f"job {job.id} can never run: tenant {job.tenant} has no share of this cluster; give it one"
        return None
