"""Who may have cards: the contract of tenants.py, carried out pool by pool."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from carpool.core.cluster.cluster import Cluster
from carpool.core.cluster.floor import Room
from carpool.core.cluster.model import NO_KEY, Job, Key
from carpool.core.cluster.packing import find_host
from carpool.core.tenants import Pool, victim_rank
from carpool.errors import InternalError

TRIES_MAX = 3  # how often a job makes room for itself in one decision: sizes that fit badly could go on for ever
Head = tuple[Key, int, Job]  # a candidate for its pool's share; 1: it runs already, as a loan


def settle_pool(cluster: Cluster, pool: Pool) -> None:
    """Let the pool's jobs run, in their order, as far as its share goes (T2)."""
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
    """Let waiting jobs use what is free, those of the tenant that is least above its share first (T3, T5)."""
    books, deadline_ns = cluster.books, cluster.settings.deadline_ns
    heads: list[tuple[int, Key, Job]] = []

    def add_head(pool: Pool, shape: int) -> None:
        for first, second, job in pool.waiting.rows.get(shape, [])[:1]:
            if job.size_milli <= books.free_milli and job.turn_ns <= deadline_ns:
                heappush(heads, (pool.over_milli, (first, second), job))

    for pool in cluster.pools.values():
        for shape in pool.waiting.rows:
            add_head(pool, shape)
    tried: set[int] = set()
    while heads:
        job = heappop(heads)[2]
        room = cluster.floor.find(job) if job.shape not in tried else None
        if room is None:
            tried.add(job.shape)
            continue
        cluster.run(job, room, is_owned=False)
        add_head(cluster.pool_of(job), job.shape)


def disown_last(cluster: Cluster, pool: Pool) -> Job:
    """The last of the owned jobs becomes a loan."""
    last = pool.owned.last(cluster.now)
    if last is None:
        raise InternalError(f"T1: {pool.tenant} owns nothing it could give up")
    key, job = last
    pool.owned.remove(job)
    job.key = key
    job.is_owned = False
    pool.loans.add(job, cluster.speed(job), cluster.now)
    return job


def split_evenly(cluster: Cluster) -> None:
    """Give every tenant that has jobs an equal number of cards; the first ones, by name, get what is left over."""
    cards, more = divmod(cluster.books.capacity_milli // 1000, max(1, len(cluster.pools)))
    for number, pool in enumerate(sorted(cluster.pools.values(), key=lambda each: each.tenant)):
        pool.share_milli = 1000 * (cards + (number < more))
        while pool.owned.size_milli > pool.share_milli:
            disown_last(cluster, pool)
        cluster.touch(pool)


def _find_heads(cluster: Cluster, pool: Pool) -> list[Head]:
    """The first waiting job of each shape, and the first loan of each shelf, that may find room in the share."""
    now = cluster.now
    room_milli = pool.share_milli - pool.owned.size_milli
    last = pool.owned.last(now)
    last_key = last[0] if last else NO_KEY
    heads: list[Head] = []
    for row in pool.waiting.rows.values():
        first, second, job = row[0]
        if job.size_milli <= room_milli or (first, second) < last_key:
            heads.append(((first, second), 0, job))
    for key, job in pool.loans.firsts(now):
        if job.size_milli <= room_milli or key < last_key:
            heads.append((key, 1, job))
    heapify(heads)
    return heads


def _promote(cluster: Cluster, pool: Pool, key: Key, job: Job, heads: list[Head]) -> None:
    """A loan whose turn it is becomes owned where it stands."""
    behind = pool.loans.next_after(job, cluster.now)
    if behind is not None:
        heappush(heads, (behind[0], 1, behind[1]))
    while pool.owned.size_milli + job.size_milli > pool.share_milli:
        disown_last(cluster, pool)
    job.key = key
    _own(cluster, pool, job)


def _own(cluster: Cluster, pool: Pool, job: Job) -> None:
    pool.loans.remove(job)
    job.is_owned = True
    pool.owned.add(job, cluster.speed(job), cluster.now)


def _claim(cluster: Cluster, pool: Pool, job: Job) -> bool:
    """Give a waiting job cards of its pool's share; False if the nodes are too broken up for it."""
    disowned = []
    while pool.owned.size_milli + job.size_milli > pool.share_milli:
        disowned.append(disown_last(cluster, pool))
    room = cluster.floor.find(job)
    host = find_host(cluster, job) if room is None and cluster.order.seats > 1 else None
    if host is None and room is None and cluster.tries.get(job, 0) < TRIES_MAX:
        cluster.tries[job] = cluster.tries.get(job, 0) + 1
        room = _make_room(cluster, job)
    if room is None:
        for other in disowned:
            _own(cluster, pool, other)
        if host is not None:
            cluster.join(job, host)
        return host is not None
    for other in room.left:
        cluster.evict(other, by=job)
    cluster.run(job, room, is_owned=True)
    return True


def _make_room(cluster: Cluster, job: Job) -> Room | None:
    """Room at the cost of others: of loans; if that is not enough, of smaller owned jobs too (T2)."""

    def rank(other: Job) -> tuple[int, ...]:
        """Who is parked first: loans before owned jobs; of loans by T4, or by the order if nobody has a share."""
        if other.is_owned:
            return (1, -other.size_milli, other.number)
        if not cluster.has_shares:
            first, second = other.key_at(cluster.now)
            return (0, -first, -second)
        return (0, *victim_rank(other, cluster.pool_of(other)))

    loans = [other for pool in cluster.pools.values() for other in pool.loans]
    room = cluster.floor.make_room(job, rank, loans=loans, moves_smaller=False) if loans else None
    return room or cluster.floor.make_room(job, rank, loans=loans, moves_smaller=True)
