"""The one door of the cluster: facts in, orders out.

`handle` takes one event and the time and returns what must be done, in order. It reads no clock and keeps no log: the
same events at the same times give the same effects on any machine.

What happens inside one call: the event is taken in (or rejected); each pool it touched lets its jobs run as far as
its share goes, which may park others (tenants.py); what is still free is lent; jobs that would wait may ride
beside others where that was measured to help (packing.py).
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import assert_never

from carpool.core.cluster.books import Books
from carpool.core.cluster.effects import Effect, ParkJob, PlaceJob, RefuseJob, RejectEvent, RevokeJob
from carpool.core.cluster.events import (
    Event,
    JobArrived,
    JobEnded,
    JobEvent,
    JobParked,
    RatesMeasured,
    ShareGiven,
    Tick,
    WorkLost,
)
from carpool.core.cluster.floor import Floor, Room
from carpool.core.cluster.model import NO_KEY, STARVED_FIRST, Job, Key, Settings, State
from carpool.core.cluster.orders.base import Order
from carpool.core.model import JobId, Nanos, TenantId
from carpool.core.placement.model import Request
from carpool.core.tenants import Pool, victim_rank
from carpool.errors import InternalError, UsageError

EVERYBODY = TenantId("")
Head = tuple[Key, int, Job]  # a candidate for its pool's share; 1: it runs already, as a loan


class ClusterScheduler:
    """All decisions about which job runs where and when, over all nodes of one fleet."""

    def __init__(self, books: Books, order: Order, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._order = order
        self._books = books
        self._floor = Floor(books)
        self._now: Nanos = 0
        self._jobs: dict[JobId, Job] = {}
        self._arrivals = 0
        self._shapes: dict[tuple[Request, ...], int] = {}
        self._can_fit: dict[Request, bool] = {}
        self._has_shares = order.splits_evenly
        self._pools: dict[TenantId, Pool] = {}
        if not self._has_shares:
            self._pools[EVERYBODY] = Pool(EVERYBODY, self._books.capacity_milli)
        self._touched: deque[Pool] = deque()
        self._effects: list[Effect] = []
        self._rekeyed: list[Job] = []
        self._set_back: list[Job] = []  # lost work since the last decision
        self._wakeups: list[tuple[Nanos, int, int, Job]] = []
        self._leaving: dict[tuple[int, int], Job] = {}  # by node and card
        self._waits: deque[tuple[Nanos, int, Job]] = deque()  # when a waiting job would be starved

    def handle(self, event: Event, *, now: Nanos) -> list[Effect]:
        """Take in one fact; returns what must be done now, in order."""
        if now < self._now:
            raise InternalError(f"time went back from {self._now} to {now}")
        self._now = now
        self._effects = []
        if isinstance(event, WorkLost):
            self._note_losses(event)
            return []
        for job in self._set_back:
            self._charge(job)
            self._rekey(job)
            self._touch(self._pool_of(job))
        self._set_back.clear()
        self._take(event)
        while self._touched:
            self._settle_pool(self._touched.popleft())
        if self._books.free_milli > 0:
            self._lend()
        self._confirm_keys()
        return self._effects

    def next_wakeup(self) -> Nanos | None:
        """When the driver must send a Tick if nothing else happens; None for never."""
        heap = self._wakeups
        while heap and heap[0][2] != heap[0][3].changes:
            heappop(heap)
        first = heap[0][0] if heap else None
        while self._waits and self._waits[0][1] != self._waits[0][2].changes:
            self._waits.popleft()
        if self._waits and (first is None or self._waits[0][0] < first):
            return self._waits[0][0]
        return first

    def state_of(self, job: JobId) -> State | None:
        found = self._jobs.get(job)
        return found.state if found is not None else None

    # --- one short method a case -----------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        match event:
            case Tick():
                self._on_tick()
            case JobArrived():
                self._on_arrived(event)
            case JobEnded():
                self._on_ended(event)
            case JobParked():
                self._on_parked(event)
            case ShareGiven():
                self._on_share(event)
            case RatesMeasured() | WorkLost():
                pass
            case _:
                assert_never(event)

    def _reject(self, event: JobEvent, reason: str) -> None:
        self._effects.append(RejectEvent(job=event.job, event=type(event).__name__, reason=reason))

    def _on_arrived(self, event: JobArrived) -> None:
        if event.job in self._jobs:
            self._reject(event, "a job with this id is here already")
            return
        size_milli = sum(member.total_milli for member in event.members)
        self._arrivals += 1
        job = Job(
            id=event.job,
            number=self._arrivals,
            arrived_ns=self._now,
            members=event.members,
            size_milli=size_milli,
            tenant=event.tenant,
            priority=event.priority,
            service_ns=event.service_ns,
            program=event.program,
            turn_ns=event.turn_ns,
            shape=self._shapes.setdefault(event.members, len(self._shapes)),
        )
        reason = self._refusal(job)
        if reason:
            self._effects.append(RefuseJob(job=job.id, reason=reason))
            return
        self._jobs[job.id] = job
        job.key = self._order.key(job)
        pool = self._pool_of(job)
        self._begin_waiting(job, pool)
        if pool.waiting.is_first(job):
            self._touch(pool)

    def _on_ended(self, event: JobEnded) -> None:
        job = self._jobs.pop(event.job, None)
        if job is None:
            self._reject(event, "no such job")
            return
        pool = self._pool_of(job)
        self._take_off(job, pool)
        job.changes += 1
        self._touch(pool)
        if self._order.splits_evenly and pool.is_empty:
            del self._pools[pool.tenant]
            self._split_evenly()

    def _on_parked(self, event: JobParked) -> None:
        job = self._jobs.get(event.job)
        if job is None or job.state is not State.LEAVING:
            self._reject(event, "no such job" if job is None else f"the job is {job.state}")
            return
        self._has_left(job)

    def _note_losses(self, event: WorkLost) -> None:
        for name, lost_ns in event.lost_ns.items():
            job = self._jobs[name]
            job.lost_ns += lost_ns
            self._set_back.append(job)

    def _on_share(self, event: ShareGiven) -> None:
        if EVERYBODY in self._pools:
            if self._jobs:
                raise UsageError("shares are given before the first job comes")
            self._pools.clear()
        self._has_shares = True
        self._pools[event.tenant] = Pool(event.tenant, event.share_milli)
        given = sum(pool.share_milli for pool in self._pools.values())
        if given > self._books.capacity_milli:
            raise UsageError(f"the shares are {given} m in total, the cluster has {self._books.capacity_milli} m")

    def _on_tick(self) -> None:
        heap = self._wakeups
        while heap and heap[0][0] <= self._now:
            _, _, changes, job = heappop(heap)
            if changes != job.changes:
                continue
            if job.state is State.LEAVING:
                self._effects.append(RevokeJob(job=job.id))
                self._has_left(job)
                continue
            self._charge(job)
            self._rekey(job)
            self._touch(self._pool_of(job))
        waits = self._waits
        while waits and waits[0][0] <= self._now:
            _, changes, job = waits.popleft()
            if changes == job.changes:
                job.is_starved = True
                pool = self._pool_of(job)
                pool.waiting.remove(job)
                self._begin_waiting(job, pool)
                self._touch(pool)

    def _refusal(self, job: Job) -> str | None:
        """Why the job can never run, or None."""
        if job.size_milli > self._books.capacity_milli:
            return (
                f"job {job.id} can never run: it wants {job.size_milli / 1000:g} cards, the cluster has "
                f"{self._books.capacity_milli // 1000}; ask for fewer"
            )
        for member in dict.fromkeys(job.members):
            if member not in self._can_fit:
                self._can_fit[member] = self._books.could_ever_fit(member)
            if not self._can_fit[member]:
                return f"job {job.id} can never run: no node has {member.cards} cards as it wants them; ask for fewer"
        if self._has_shares and not self._order.splits_evenly and job.tenant not in self._pools:
            return f"job {job.id} can never run: tenant {job.tenant} has no share of this cluster"
        return None

    # --- pools -----------------------------------------------------------------------------------------------------

    def _pool_of(self, job: Job) -> Pool:
        if not self._has_shares:
            return self._pools[EVERYBODY]
        pool = self._pools.get(job.tenant)
        if pool is None:
            pool = self._pools[job.tenant] = Pool(job.tenant, 0)
            self._split_evenly()
        return pool

    def _touch(self, pool: Pool) -> None:
        if pool not in self._touched:
            self._touched.append(pool)

    def _split_evenly(self) -> None:
        capacity = self._books.capacity_milli
        for number, pool in enumerate(sorted(self._pools.values(), key=lambda each: each.tenant)):
            cards, more = divmod(capacity // 1000, len(self._pools))
            pool.share_milli = 1000 * (cards + (number < more))
            while pool.owned.size_milli > pool.share_milli:
                self._disown(pool)
            self._touch(pool)

    def _settle_pool(self, pool: Pool) -> None:
        """Let the pool's jobs run, in their order, as far as its share goes (T2)."""
        heads = self._heads(pool)
        while heads:
            key, is_loan, job = heappop(heads)
            if is_loan:
                self._promote(pool, key, job, heads)
            elif pool.owns(job, key, self._now) and self._claim(pool, job):
                heads = self._heads(pool)

    def _heads(self, pool: Pool) -> list[Head]:
        """The first waiting job of each shape, and the first loan of each shelf, that may find room in the share."""
        now = self._now
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

    def _promote(self, pool: Pool, key: Key, job: Job, heads: list[Head]) -> None:
        """A loan whose turn it is becomes owned where it stands."""
        if not pool.owns(job, key, self._now):
            return
        behind = pool.loans.next_after(job, self._now)
        if behind is not None:
            heappush(heads, (behind[0], 1, behind[1]))
        while pool.owned.size_milli + job.size_milli > pool.share_milli:
            self._disown(pool)
        job.key = key
        self._own(pool, job)

    def _own(self, pool: Pool, job: Job) -> None:
        pool.loans.remove(job)
        job.is_owned = True
        pool.owned.add(job, self._speed(job), self._now)

    def _disown(self, pool: Pool) -> Job:
        """The last of the owned jobs becomes a loan."""
        last = pool.owned.last(self._now)
        if last is None:
            raise InternalError(f"T1: {pool.tenant} owns nothing it could give up")
        job = last[1]
        pool.owned.remove(job)
        job.key = last[0]
        job.is_owned = False
        pool.loans.add(job, self._speed(job), self._now)
        return job

    def _claim(self, pool: Pool, job: Job) -> bool:
        """Give a waiting job cards of its pool's share; False if its nodes are too broken up for it."""
        disowned = []
        while pool.owned.size_milli + job.size_milli > pool.share_milli:
            disowned.append(self._disown(pool))
        room = self._floor.find(job) or self._room_for(job)
        if room is None:
            for other in disowned:
                self._own(pool, other)
            return False
        for other in room.left:
            self._evict(other, by=job)
        job.is_owned = True
        self._run(job, pool, room)
        return True

    def _room_for(self, job: Job) -> Room | None:
        """Room at the cost of others: of loans; if that is not enough, of smaller owned jobs too (T2)."""
        loans = [other for pool in self._pools.values() for other in pool.loans]
        room = self._floor.make_room(job, self._rank, loans=loans) if loans else None
        return room or self._floor.make_room(job, self._rank, loans=None)

    def _rank(self, job: Job) -> tuple[int, ...]:
        """Who is parked first: loans before owned jobs; among loans by T4, or by the order if nobody has a share."""
        if job.is_owned:
            return (1, -job.size_milli, job.number)
        if not self._has_shares and job.entry is not None:
            return (0, job.speed * self._now - job.entry[0], -job.entry[1])
        return (0, *victim_rank(job, self._pool_of(job)))

    def _lend(self) -> None:
        """Let waiting jobs use what is free, those of the tenant that is least above its share first (T3, T5)."""
        heads: list[tuple[int, Key, int, Job]] = []
        for pool in self._pools.values():
            for row in pool.waiting.rows.values():
                first, second, job = row[0]
                if job.size_milli <= self._books.free_milli and job.turn_ns <= self.settings.deadline_ns:
                    heads.append((pool.over_milli, (first, second), job.number, job))
        heads.sort()
        tried: set[int] = set()
        while heads:
            _, _, _, job = heads.pop(0)
            if job.shape in tried or job.size_milli > self._books.free_milli:
                continue
            room = self._floor.find(job)
            if room is None:
                tried.add(job.shape)
                continue
            pool = self._pool_of(job)
            job.is_owned = False
            self._run(job, pool, room)
            row = pool.waiting.rows.get(job.shape, [])
            if row and row[0][2].turn_ns <= self.settings.deadline_ns:
                heads.append((pool.over_milli, (row[0][0], row[0][1]), row[0][2].number, row[0][2]))
                heads.sort()

    # --- one job ---------------------------------------------------------------------------------------------------

    def _begin_waiting(self, job: Job, pool: Pool) -> None:
        job.state = State.WAITING
        job.since_ns = self._now
        job.changes += 1
        if job.is_starved:
            job.key = (STARVED_FIRST, job.number)
        pool.waiting.add(job)
        if self.settings.starvation_ns is not None and not job.is_starved:
            self._waits.append((self._now + self.settings.starvation_ns, job.changes, job))

    def _run(self, job: Job, pool: Pool, room: Room) -> None:
        """Put a waiting job on its cards; it begins once nobody is left there."""
        pool.waiting.remove(job)
        self._floor.put(job, room.places)
        job.since_ns = job.settled_ns = self._now
        if self._leaving and self._who_leaves(job):
            job.state = State.COMING
            job.changes += 1
        else:
            self._begin(job)
        (pool.owned if job.is_owned else pool.loans).add(job, self._speed(job), self._now)

    def _begin(self, job: Job) -> None:
        job.state = State.RUNNING
        job.since_ns = job.settled_ns = self._now
        if not job.is_starved:
            job.key = self._order.key(job)
        self._wake_later(job)
        self._effects.append(PlaceJob(job=job.id, places=job.places, is_loan=not job.is_owned))

    def _evict(self, job: Job, *, by: Job) -> None:
        """A job that was lifted off its cards leaves, and waits for others."""
        pool = self._pool_of(job)
        (pool.owned if job.is_owned else pool.loans).remove(job)
        if job.is_owned:
            job.is_owned = False
            self._touch(pool)
        by_ns = self._now + self.settings.deadline_ns
        if job.state is State.COMING:
            self._begin_waiting(job, pool)
            return
        self._effects.append(ParkJob(job=job.id, wanted_by=by.id, by_ns=by_ns))
        if self.settings.parks_at_once:
            self._park(job, pool)
            return
        job.state = State.LEAVING
        job.changes += 1
        for place in job.places:
            for card in place.cards:
                self._leaving[place.node, card] = job
        heappush(self._wakeups, (by_ns, job.number, job.changes, job))

    def _park(self, job: Job, pool: Pool) -> None:
        self._charge(job)
        job.places = ()
        job.state = State.WAITING
        if not job.is_starved:
            job.key = self._order.key(job)
        self._begin_waiting(job, pool)

    def _has_left(self, job: Job) -> None:
        """A job came to its boundary: it waits now, and those that were to have its cards begin."""
        self._leave_cards(job)
        pool = self._pool_of(job)
        self._park(job, pool)
        self._touch(pool)

    def _leave_cards(self, job: Job) -> None:
        nodes = {place.node for place in job.places}
        for card in [card for card, other in self._leaving.items() if other is job]:
            del self._leaving[card]
        for node in nodes:
            for other in self._floor.on_node[node]:
                if other.state is State.COMING and not self._who_leaves(other):
                    pool = self._pool_of(other)
                    shelf = pool.owned if other.is_owned else pool.loans
                    shelf.remove(other)
                    self._begin(other)
                    shelf.add(other, self._speed(other), self._now)

    def _who_leaves(self, job: Job) -> bool:
        """Whether somebody has yet to leave the cards of the job."""
        leaving = self._leaving
        return any((place.node, card) in leaving for place in job.places for card in place.cards)

    def _take_off(self, job: Job, pool: Pool) -> None:
        """Take an ended job out of all books."""
        if job.state is State.WAITING:
            pool.waiting.remove(job)
        elif job.state is State.LEAVING:
            self._leave_cards(job)
        else:
            (pool.owned if job.is_owned else pool.loans).remove(job)
            self._floor.lift(job)

    def _charge(self, job: Job) -> None:
        """Count what the job has run up to now."""
        if job.is_running:
            job.attained_ns += (self._now - job.settled_ns) * job.rate_milli // 1000
            job.settled_ns = self._now

    def _rekey(self, job: Job) -> None:
        """Ask the order anew for the key of a job on its cards."""
        if job.state is not State.RUNNING:
            return
        pool = self._pool_of(job)
        shelf = pool.owned if job.is_owned else pool.loans
        shelf.remove(job)
        if not job.is_starved:
            job.key = self._order.key(job)
        shelf.add(job, self._speed(job), self._now)
        self._wake_later(job)
        self._rekeyed.append(job)

    def _confirm_keys(self) -> None:
        """Ask again for those that kept their cards with a new key: some orders rank them as running only now."""
        for job in self._rekeyed:
            if job.state is State.RUNNING and not job.is_starved:
                key = self._order.key(job)
                if key != job.key:
                    pool = self._pool_of(job)
                    shelf = pool.owned if job.is_owned else pool.loans
                    shelf.remove(job)
                    job.key = key
                    shelf.add(job, self._speed(job), self._now)
        self._rekeyed.clear()

    def _speed(self, job: Job) -> int:
        return self._order.speed(job) if job.state is State.RUNNING and not job.is_starved else 0

    def _wake_later(self, job: Job) -> None:
        job.changes += 1
        rest_ns = self._order.rest_ns(job)
        if rest_ns is not None:
            heappush(self._wakeups, (self._now + rest_ns, job.number, job.changes, job))
