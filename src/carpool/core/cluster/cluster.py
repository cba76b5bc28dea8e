"""The state of the cluster, and the moves of one job: it waits, gets cards, begins, is charged, leaves.

Each move keeps all accounts at once: the pool it counts in, the node it stands on, its state, its wakeup, and the
effect that tells the driver. Which job makes which move is decided elsewhere: sharing.py, side_by_side.py.
"""

from __future__ import annotations

from collections import deque
from heapq import heappush

from carpool.core.cluster.effects import Effect, JoinJob, LeaveJob, PlaceJob, RevokeJob, SuspendJob
from carpool.core.cluster.inventory import Inventory
from carpool.core.cluster.leaving import LeavingJobs
from carpool.core.cluster.model import (
    ON_CARDS,
    STARVED_FIRST,
    ClusterJob,
    ClusterSettings,
    Key,
    Members,
    Places,
    State,
)
from carpool.core.cluster.occupancy import Occupancy, Room
from carpool.core.cluster.order import Order
from carpool.core.cluster.rates import Rates
from carpool.core.cluster.sorted_jobs import RunningJobs
from carpool.core.cluster.tenants import Pool
from carpool.core.kernel.ids import JobId, Nanos, TenantId
from carpool.errors import InternalError

EVERYBODY = TenantId("")  # the one pool where nobody was given a share


class Cluster:
    """Everything the scheduler knows. Time stands still inside one decision."""

    def __init__(self, inventory: Inventory, order: Order, settings: ClusterSettings) -> None:
        self.settings = settings
        self.order = order
        self.inventory = inventory
        self.occupancy = Occupancy(inventory)
        self.now: Nanos = 0
        self.jobs: dict[JobId, ClusterJob] = {}
        self.effects: list[Effect] = []
        self.has_shares = order.splits_by_weight
        self.shares_milli: dict[TenantId, int] = {}  # as they were given
        self.fitted_milli = inventory.capacity_milli  # what the cluster had when the shares were last fitted to it
        self.weights: dict[TenantId, int] = {}  # of tenants, in thousandths, where somebody said so
        self.pools: dict[TenantId, Pool] = {}
        if not self.has_shares:
            self.pools[EVERYBODY] = Pool(EVERYBODY, inventory.capacity_milli)
        self.is_syncing = False  # facts are noted, nothing is decided
        self.may_evict = True  # not in the decision after a sync: nobody is moved by a restart
        self.review_ns: Nanos | None = None  # when that is to be made up for
        self.expected: set[int] = set()  # nodes on which jobs were found, and which have not come yet
        self.drains: dict[int, dict[int | None, Nanos | None]] = {}  # by node and card (None: all): until when
        self.arrivals = 0
        self.shapes: dict[tuple[Members, bool], int] = {}
        self.too_wide: dict[int, int | None] = {}  # by shape: the cards of a member that no node could ever hold
        self.touched: deque[Pool] = deque()  # pools in which something changed since they were last looked at
        self.owed: dict[Pool, None] = {}  # pools with a job that should have cards, for which there was no room
        self.rekeyed: list[ClusterJob] = []
        self.wakeups: list[tuple[Nanos, int, int, ClusterJob]] = []  # when, whose number, its changes then
        self.leaving = LeavingJobs()
        self.hosts: dict[int, dict[ClusterJob, None]] = {}  # running jobs by shape; kept only where jobs may ride
        self.rates = Rates()
        self.regrouped: dict[ClusterJob, None] = {}  # hosts whose guests changed since their speeds were set
        self.merged_in_vain: set[tuple[TenantId, int]] = set()  # pools and shapes for which no merging gave room

    # --- pools -----------------------------------------------------------------------------------------------------

    def pool_of(self, job: ClusterJob) -> Pool:
        return self.pools[job.tenant if self.has_shares else EVERYBODY]

    def running_of(self, job: ClusterJob) -> RunningJobs:
        pool = self.pool_of(job)
        return pool.owned if job.is_owned else pool.loans

    def need_pool(self, tenant: TenantId) -> Pool:
        """The pool of a tenant, which owns nothing if it is new."""
        name = tenant if self.has_shares else EVERYBODY
        if name not in self.pools:
            self.pools[name] = Pool(name, 0)
        return self.pools[name]

    def enter(self, job: ClusterJob) -> None:
        """A job is here from now on; it stands nowhere yet."""
        self.jobs[job.id] = job
        self._ask_key(job)
        self.need_pool(job.tenant).jobs[job] = None

    def next_number(self) -> int:
        """Jobs are numbered as they are told."""
        self.arrivals += 1
        return self.arrivals

    def begin_at_level(self, job: ClusterJob, level: int) -> None:
        """A newcomer does not have to catch up."""
        job.level = level

    def unfit_shares(self) -> None:
        """Something about the nodes changed: the shares are to be fitted to them again."""
        self.fitted_milli = -1

    def touch_all(self) -> None:
        for pool in self.pools.values():
            self.touch(pool)

    def touch(self, pool: Pool) -> None:
        if pool not in self.touched:
            self.touched.append(pool)

    # --- one job's moves -------------------------------------------------------------------------------------------

    def begin_waiting(self, job: ClusterJob) -> None:
        job.state = State.WAITING
        job.changes += 1
        if job.is_starved:
            job.key = (STARVED_FIRST, job.number)
        self.pool_of(job).waiting.add(job)
        bounds = (self.settings.wait_ns, self.settings.gang_wait_ns if len(job.members) > 1 else None)
        wait_ns = min((bound for bound in bounds if bound is not None), default=None)
        if wait_ns is not None and not job.is_starved:
            heappush(self.wakeups, (self.now + wait_ns, job.number, job.changes, job))

    def starve(self, job: ClusterJob) -> None:
        """A job has waited too long, and goes before all others from now on."""
        self.pool_of(job).waiting.remove(job)
        job.is_starved = True
        self.begin_waiting(job)

    def set_back(self, job: ClusterJob, lost_ns: Nanos) -> None:
        """A job lost work, and must do it again."""
        job.lost_ns += lost_ns

    def note_wait(self, job: ClusterJob, kind: str) -> bool:
        """Why a job waits; whether that is another reason than before."""
        is_new = job.wait_kind != kind
        job.wait_kind = kind
        return is_new

    def run(self, job: ClusterJob, room: Room, *, is_owned: bool) -> None:
        """Put a waiting or riding job on cards of its own; it begins once nobody is left there."""
        if job.host is not None:
            self.leave_host(job, reason="it has cards of its own now")
        self.pool_of(job).waiting.remove(job)
        self.occupancy.put(job, room.places)
        job.is_owned = is_owned
        if self.leaving and self.leaving.keep_waiting(job):
            job.state = State.COMING
            job.changes += 1
        else:
            self.begin(job)
        self.running_of(job).add(job, self.speed(job), self.now)

    def begin(self, job: ClusterJob) -> None:
        job.state = State.RUNNING
        job.wait_kind = ""
        job.queued_why = ""
        job.settled_ns = self.now
        job.rate_milli = 1000
        self._ask_key(job)
        self.wake_later(job)
        if self.order.seats > 1:
            self.hosts.setdefault(job.shape, {})[job] = None
        places = tuple(map(self.inventory.named, job.places))
        self.effects.append(PlaceJob(job=job.id, places=places, is_loan=not job.is_owned))

    def adopt(self, job: ClusterJob, places: Places, *, attained_ns: Nanos, is_leaving: bool) -> None:
        """A job runs at these places already. It counts as a loan until its pool is served."""
        job.attained_ns = attained_ns
        job.settled_ns = self.now
        job.state = State.RUNNING
        self._ask_key(job)
        if is_leaving:
            self.occupancy.note_places(job, places)
            self._begin_leaving(job, by_ns=self.now + self.settings.deadline_ns)
            return
        self.occupancy.hold(job, places)
        self.wake_later(job)
        if self.order.seats > 1:
            self.hosts.setdefault(job.shape, {})[job] = None
        self.running_of(job).add(job, self.speed(job), self.now)
        self.touch(self.pool_of(job))

    def evict(self, job: ClusterJob, *, by: ClusterJob) -> None:
        """A job that was lifted off its cards leaves them to another."""
        self.send_off(
            job, by=by.id, by_ns=self.now + self.settings.deadline_ns, reason=f"job {by.id} needs the cards"
        )

    def send_off(self, job: ClusterJob, *, by: JobId | None, by_ns: Nanos | None, reason: str) -> None:
        """A job that was lifted off its cards leaves, and waits for others.

        An owned job only moves: it keeps its key, or jobs could change places with each other for ever.
        """
        key = job.key_at(self.now)
        self.running_of(job).remove(job)
        if job.is_owned:
            self.touch(self.pool_of(job))
        if job.state is State.COMING:
            job.is_owned = False
            self.occupancy.forget_places(job)
            self.begin_waiting(job)
            return
        if self.order.seats > 1:
            self.send_guests_off(job, reason=f"{reason} of its host")
        self.effects.append(SuspendJob(job=job.id, wanted_by=by, by_ns=by_ns, reason=reason))
        if self.settings.parks_at_once:
            self.park(job, key=key if job.is_owned else None)
            return
        if job.is_owned:
            job.key = key
            self.pool_of(job).moving.append(job)
        self._begin_leaving(job, by_ns=by_ns)

    def _begin_leaving(self, job: ClusterJob, *, by_ns: Nanos | None) -> None:
        job.is_owned = False
        job.state = State.LEAVING
        self.leaving.add(job)
        self.leave_by(job, by_ns)

    def leave_by(self, job: ClusterJob, by_ns: Nanos | None) -> None:
        """A leaving job is taken off its cards then; None: never."""
        job.leave_by_ns = by_ns
        job.changes += 1
        if by_ns is not None:
            heappush(self.wakeups, (by_ns, job.number, job.changes, job))

    def park(self, job: ClusterJob, *, key: Key | None = None) -> None:
        """A job is off its cards and waits; it keeps a key that is given."""
        self.charge(job)
        job.queued_why = ""
        self.occupancy.forget_places(job)
        job.is_owned = False
        job.state = State.WAITING
        if key is not None:
            job.key = key
        else:
            self._ask_key(job)
        self.begin_waiting(job)

    def has_left(self, job: ClusterJob) -> None:
        """A leaving job came to its boundary, or its time was over."""
        self.free_cards_of(job)
        self.park(job)
        self.touch(self.pool_of(job))

    def free_cards_of(self, job: ClusterJob) -> None:
        """A leaving job is gone: those that were to have its cards begin."""
        moving = self.pool_of(job).moving
        if job in moving:
            moving.remove(job)
        self.leaving.remove(job)
        for node in dict.fromkeys(place.node for place in job.places):
            for other in self.occupancy.on_node[node]:
                if other.state is State.COMING and not self.leaving.keep_waiting(other):
                    running = self.running_of(other)
                    running.remove(other)
                    self.begin(other)
                    running.add(other, self.speed(other), self.now)

    def lose_node(self, node: int) -> None:
        """The node is gone: whoever was on it, with any of its members, waits again."""
        for job in list(self.occupancy.on_node[node]):
            self.send_guests_off(job, reason="the node of its host is gone")
            self.running_of(job).remove(job)
            self.occupancy.lift(job)
            self.touch(self.pool_of(job))
            if job.state is State.RUNNING:
                self.effects.append(RevokeJob(job=job.id))
            self.park(job)
        for job in self.leaving.on_node(node):
            self.effects.append(RevokeJob(job=job.id))
            self.has_left(job)

    def queue_there(self, job: ClusterJob, why: str) -> None:
        """The node of a job keeps it in a queue, or with "" lets it run. Time in that queue is no run time."""
        self.charge(job)
        running, key = self.running_of(job), job.key_at(self.now)
        running.remove(job)
        job.key = key
        job.queued_why = why
        running.add(job, self.speed(job), self.now)
        self.wake_later(job)

    def take_off(self, job: ClusterJob, reason: str) -> None:
        """A job is off its cards as a matter of fact: it waits again."""
        self.touch(self.pool_of(job))
        if job.state is State.LEAVING:
            self.has_left(job)
            return
        if job.state is State.RIDING:
            self.part(job)
        else:
            self.send_guests_off(job, reason=reason)
            self.running_of(job).remove(job)
            self.occupancy.lift(job)
        self.park(job)

    def want_other(self, job: ClusterJob, members: Members) -> None:
        """A waiting job wants something else from now on."""
        waiting = self.pool_of(job).waiting
        waiting.remove(job)
        job.members = members
        is_lendable = job.turn_ns <= self.settings.deadline_ns
        job.shape = self.shapes.setdefault((members, is_lendable), len(self.shapes))
        waiting.add(job)

    def remove(self, job: ClusterJob) -> None:
        """Take an ended job out of all accounts."""
        if job.state is State.WAITING:
            self.pool_of(job).waiting.remove(job)
        elif job.state is State.RIDING:
            self.part(job)
        elif job.state is State.LEAVING:
            self.free_cards_of(job)
        else:
            self.send_guests_off(job, reason="its host ended")
            self.running_of(job).remove(job)
            self.occupancy.lift(job)
        job.state = State.ENDED
        job.changes += 1
        del self.jobs[job.id]
        pool = self.pool_of(job)
        del pool.jobs[job]
        if self.has_shares and not pool.jobs and pool.tenant not in self.shares_milli:
            del self.pools[pool.tenant]

    # --- side by side ----------------------------------------------------------------------------------------------

    def join(self, job: ClusterJob, host: ClusterJob) -> None:
        """A waiting job begins on the cards of another."""
        self.pool_of(job).waiting.remove(job)
        self.effects.append(JoinJob(job=job.id, host=host.id))
        self.ride(job, host)

    def ride(self, job: ClusterJob, host: ClusterJob) -> None:
        """A job is on the cards of another from now on."""
        job.host = host
        host.guests.append(job)
        self.rates.note_trial([host, *host.guests])
        self.regrouped[host] = None
        job.state = State.RIDING
        job.wait_kind = ""
        job.settled_ns = self.now
        job.changes += 1

    def part(self, job: ClusterJob) -> None:
        """A guest is no longer on its host's cards."""
        host = job.host
        if host is None:
            raise InternalError(f"job {job.id} rides on nobody")
        self.charge(job)
        host.guests.remove(job)
        self.regrouped[host] = None
        job.host = None

    def leave_host(self, job: ClusterJob, *, reason: str) -> None:
        """A guest goes back to waiting only."""
        if job.host is None:
            raise InternalError(f"job {job.id} rides on nobody")
        self.effects.append(LeaveJob(job=job.id, host=job.host.id, reason=reason))
        self.part(job)
        job.state = State.WAITING
        self._ask_key(job)
        self.begin_waiting(job)

    def send_guests_off(self, host: ClusterJob, *, reason: str) -> None:
        self.hosts.get(host.shape, {}).pop(host, None)
        for guest in list(host.guests):
            self.leave_host(guest, reason=reason)
            self.touch(self.pool_of(guest))

    # --- shares ----------------------------------------------------------------------------------------------------

    def own(self, pool: Pool, job: ClusterJob, *, key: Key | None = None) -> None:
        """A loan becomes owned where it stands; with the key it has now, if that is given."""
        pool.loans.remove(job)
        if key is not None:
            job.key = key
        job.is_owned = True
        pool.owned.add(job, self.speed(job), self.now)

    def disown_last(self, pool: Pool) -> ClusterJob:
        """The last of the owned jobs becomes a loan."""
        last = pool.owned.last(self.now)
        if last is None:
            raise InternalError(f"O1: {pool.tenant} owns nothing it could give up")
        key, job = last
        pool.owned.remove(job)
        job.key = key
        job.is_owned = False
        pool.loans.add(job, self.speed(job), self.now)
        return job

    def move_to_pools(self) -> None:
        """Somebody was given the first share, or lost the last: all jobs go where they belong now, as loans."""
        old = list(self.pools.values())
        self.has_shares = bool(self.shares_milli)
        self.pools = {tenant: Pool(tenant, 0) for tenant in self.shares_milli}
        if not self.has_shares:
            self.need_pool(EVERYBODY)
        self.touched.clear()
        self.owed.clear()
        self.merged_in_vain.clear()
        for pool in old:
            for job in pool.jobs:
                self.need_pool(job.tenant).jobs[job] = None
            for job in pool.waiting:
                self.pool_of(job).waiting.add(job)
            for job in (*pool.owned, *pool.loans):
                job.key = job.key_at(self.now)
                job.is_owned = False
                self.pool_of(job).loans.add(job, self.speed(job), self.now)
            for job in pool.moving:
                self.pool_of(job).moving.append(job)

    # --- accounts and keys -----------------------------------------------------------------------------------------

    def charge(self, job: ClusterJob) -> None:
        """Count what the job has run up to now."""
        if job.is_running:
            if not job.queued_why:
                job.attained_ns += (self.now - job.settled_ns) * job.rate_milli // 1000
            job.settled_ns = self.now

    def set_rate(self, job: ClusterJob, rate_milli: int) -> None:
        """From now on the job goes at another speed."""
        self.charge(job)
        job.rate_milli = rate_milli
        self.wake_later(job)

    def rekey(self, job: ClusterJob) -> None:
        """Ask the order anew for the key of a job that runs."""
        if job.state is State.RIDING:
            self._ask_key(job)
        elif job.state in ON_CARDS:
            running = self.running_of(job)
            running.remove(job)
            self._ask_key(job)
            running.add(job, self.speed(job), self.now)
        else:
            return
        self.wake_later(job)
        self.rekeyed.append(job)

    def confirm_keys(self) -> None:
        """Ask again for those that kept their cards with a new key: some orders rank them as running only now."""
        for job in self.rekeyed:
            if job.state is State.RUNNING and not job.is_starved:
                key = self.order.key(job, now=self.now)
                if key != job.key:
                    running = self.running_of(job)
                    running.remove(job)
                    job.key = key
                    running.add(job, self.speed(job), self.now)
        self.rekeyed.clear()

    def speed(self, job: ClusterJob) -> int:
        if not self.order.asks_speed or job.state is not State.RUNNING or job.is_starved or job.queued_why:
            return 0
        return self.order.speed(job)

    def wake_later(self, job: ClusterJob) -> None:
        job.changes += 1
        rest_ns = None if job.is_starved else self.order.rest_ns(job)
        if rest_ns is not None:
            wake_ns = self.now - (-rest_ns * 1000 // job.rate_milli)
            heappush(self.wakeups, (wake_ns, job.number, job.changes, job))

    def _ask_key(self, job: ClusterJob) -> None:
        if not job.is_starved:
            job.key = self.order.key(job, now=self.now)
