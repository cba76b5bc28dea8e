"""Who may have cards: the contract of tenants.py, carried out pool by pool."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from carpool.core.cluster.cluster import Cluster
from carpool.core.cluster.events import ShareGiven, ShareWithdrawn
from carpool.core.cluster.model import NO_KEY, ClusterJob, Key
from carpool.core.cluster.occupancy import Room
from carpool.core.cluster.side_by_side import find_host
from carpool.core.cluster.tenants import Pool, victim_rank
from carpool.core.cluster.weights import split_by_weight

Head = tuple[Key, int, ClusterJob]  # a candidate for its pool's share; 1: it runs already, as a loan


def serve_pools(cluster: Cluster, *, is_room_new: bool) -> None:
    """Serve all pools in which something changed; those with a job that is owed cards whenever there may be room."""
    inventory, touched = cluster.inventory, cluster.touched
    if inventory.capacity_milli != cluster.fitted_milli:
        fit_shares(cluster)
    while True:
        if is_room_new and cluster.owed:
            for pool in cluster.owed:
                if pool.tenant in cluster.pools:
                    cluster.touch(pool)
            cluster.owed.clear()
        if not touched:
            return
        before = len(cluster.effects)
        while touched:
            serve_pool(cluster, touched.popleft())
            if inventory.capacity_milli != cluster.fitted_milli:
                fit_shares(cluster)
        is_room_new = len(cluster.effects) > before


def serve_pool(cluster: Cluster, pool: Pool) -> None:
    """Let the pool's jobs run, in their order, as far as its share goes (O2)."""
    heads = _find_heads(cluster, pool)
    while heads:
        key, is_loan, job = heappop(heads)
        if not pool.owns(job, key, cluster.now):
            continue
        if is_loan:
            _promote(cluster, pool, key, job, heads)
        elif _claim(cluster, pool, job):
            heads = _find_heads(cluster, pool)


def lend(cluster: Cluster) -> None:
    """Let waiting jobs use what is free, those of the tenant that is least above its share first (O3, O5)."""
    heads: list[tuple[int, Key, ClusterJob]] = []
    inventory, deadline_ns = cluster.inventory, cluster.settings.deadline_ns
    for pool in cluster.pools.values():
        for row in pool.waiting.rows.values():
            job = row[0][2]
            if job.size_milli <= inventory.free_milli and job.turn_ns <= deadline_ns:
                heads.append((pool.over_milli, job.key, job))
    if not heads:
        return
    heapify(heads)
    tried: set[int] = set()
    while heads:
        job = heappop(heads)[2]
        room = cluster.occupancy.find(job) if job.shape not in tried else None
        if room is None:
            tried.add(job.shape)
            continue
        cluster.run(job, room, is_owned=False)
        pool = cluster.pool_of(job)
        behind = pool.waiting.rows.get(job.shape)
        if behind and behind[0][2].size_milli <= inventory.free_milli and behind[0][2].turn_ns <= deadline_ns:
            heappush(heads, (pool.over_milli, behind[0][2].key, behind[0][2]))


def fit_if_changed(cluster: Cluster) -> None:
    """Fit the shares to the cluster if it has changed since they were."""
    if cluster.inventory.capacity_milli != cluster.fitted_milli:
        fit_shares(cluster)


def fit_shares(cluster: Cluster) -> None:
    """Bring all shares to the size that the cluster has now (O7)."""
    capacity_milli = cluster.inventory.capacity_milli
    cluster.fitted_milli = capacity_milli
    if cluster.order.splits_by_weight:
        split_by_weight(cluster)
        return
    given_milli = sum(cluster.shares_milli.values())
    for pool in cluster.pools.values():
        own_milli = cluster.shares_milli.get(pool.tenant, 0)
        if not cluster.has_shares:
            pool.share_milli = capacity_milli
        elif given_milli > capacity_milli:
            pool.share_milli = own_milli * capacity_milli // given_milli
        else:
            pool.share_milli = own_milli
        while pool.owned.size_milli > pool.share_milli:
            cluster.disown_last(pool)
        cluster.touch(pool)


def give_share(cluster: Cluster, event: ShareGiven) -> str:
    """A tenant owns so much from now on (O8); returns why not, empty if it does."""
    before_milli = cluster.shares_milli.get(event.tenant, 0)
    total_milli = sum(cluster.shares_milli.values()) - before_milli + event.share_milli
    capacity_milli = cluster.inventory.total_milli
    if cluster.order.splits_by_weight:
        return f"the order {cluster.order.name} splits the cluster by weight; it takes no shares"
    if event.share_milli < 0:
        return f"tenant {event.tenant}: a share of {event.share_milli / 1000:g} cards is below 0"
    if total_milli > capacity_milli and event.share_milli > before_milli and not cluster.is_syncing:
        return f"the shares are {total_milli / 1000:g} cards, the cluster has {capacity_milli / 1000:g}"
    cluster.shares_milli[event.tenant] = event.share_milli
    if not cluster.has_shares:
        cluster.move_to_pools()
    cluster.need_pool(event.tenant)
    fit_shares(cluster)
    return ""


def withdraw_share(cluster: Cluster, event: ShareWithdrawn) -> str:
    """A tenant owns nothing from now on (O8); returns why not, empty if it does."""
    if event.tenant not in cluster.shares_milli:
        return f"tenant {event.tenant} has no share"
    del cluster.shares_milli[event.tenant]
    if not cluster.shares_milli:
        cluster.move_to_pools()
    elif not cluster.pools[event.tenant].jobs:
        del cluster.pools[event.tenant]
    fit_shares(cluster)
    return ""


def _find_heads(cluster: Cluster, pool: Pool) -> list[Head]:
    """The first waiting job of each shape, and the first loan of each row, that may find room in the share."""
    rows = pool.waiting.rows
    if not rows and not pool.loans:
        return []
    room_milli = pool.share_milli - pool.owned.size_milli
    last = pool.owned.last(cluster.now)
    last_key = last[0] if last else NO_KEY
    heads: list[Head] = []
    for row in rows.values():
        job = row[0][2]
        if job.size_milli <= room_milli or job.key < last_key:
            heads.append((job.key, 0, job))
    for key, job in pool.loans.firsts(cluster.now) if pool.loans else ():
        if job.size_milli <= room_milli or key < last_key:
            heads.append((key, 1, job))
    heapify(heads)
    return heads


def _promote(cluster: Cluster, pool: Pool, key: Key, job: ClusterJob, heads: list[Head]) -> None:
    """A loan whose turn it is becomes owned where it stands."""
    behind = pool.loans.next_after(job, cluster.now)
    if behind is not None:
        heappush(heads, (behind[0], 1, behind[1]))
    while pool.owned.size_milli + job.size_milli > pool.share_milli:
        cluster.disown_last(pool)
    cluster.own(pool, job, key=key)


def _claim(cluster: Cluster, pool: Pool, job: ClusterJob) -> bool:
    """Give a waiting job cards of its pool's share; False if the nodes are too broken up for it."""
    disowned = []
    while pool.owned.size_milli + job.size_milli > pool.share_milli:
        disowned.append(cluster.disown_last(pool))
    room = cluster.occupancy.find(job)
    host = find_host(cluster, job) if room is None and cluster.order.seats > 1 else None
    if host is None and room is None and cluster.may_evict:
        room = _make_room(cluster, job)
    if room is None:
        if host is None:
            cluster.owed[pool] = None
        for other in disowned:
            cluster.own(pool, other)
        if host is not None:
            cluster.join(job, host)
        return host is not None
    for other in room.left:
        cluster.occupancy.made_room.discard(other)
        cluster.evict(other, by=job)
    if room.left:
        cluster.occupancy.made_room.add(job)
    cluster.run(job, room, is_owned=True)
    return True


def _make_room(cluster: Cluster, job: ClusterJob) -> Room | None:
    """Room at the cost of others: of loans; if that is not enough, of smaller owned jobs too (O2)."""

    def rank(other: ClusterJob) -> tuple[int, ...]:
        """Who is parked first: loans before owned jobs; of loans by O4, or by the order if nobody has a share."""
        if other.is_owned:
            return (1, -other.size_milli, other.number)
        if not cluster.has_shares:
            first, tie = other.key_at(cluster.now)
            return (0, -first, -tie) if isinstance(tie, int) else (0, -first, *(-part for part in tie))
        return (0, *victim_rank(other, cluster.pool_of(other)))

    loans = [other for pool in cluster.pools.values() for other in pool.loans]
    room = cluster.occupancy.make_room(job, rank, loans=loans, moves_smaller=False) if loans else None
    return room or cluster.occupancy.make_room(job, rank, loans=loans, moves_smaller=True)
