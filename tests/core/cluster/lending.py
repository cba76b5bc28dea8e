"""A small world of tenants in virtual time: parking takes a while, and what the contract promises is noted."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from carpool.core.cluster.effects import Effect, PlaceJob, RejectEvent, RevokeJob, SuspendJob
from carpool.core.cluster.events import Event, JobArrived, JobEnded, JobSuspended, ShareGiven, Tick
from carpool.core.cluster.inventory import CardInventory
from carpool.core.cluster.model import ClusterSettings
from carpool.core.cluster.placement.requests import NodeSpec, Request
from carpool.core.cluster.scheduler import ClusterScheduler
from carpool.core.kernel.ids import JobId, TenantId
from carpool.policies import POLICIES
from carpool.units import SECOND

DEADLINE_NS = 60 * SECOND


@dataclass(slots=True)
class Person:
    """What the world knows of one job."""

    tenant: str
    cards: int
    left_ns: int
    turn_ns: int
    number: int
    is_running: bool = False
    since_ns: int = 0
    entitled_ns: int | None = None  # since when it should have cards and has none
    ended: bool = False


@dataclass
class World:
    """One random trace of tenants; run it and look at what was noted."""

    seed: int
    order: str = "fifo"
    waits_ns: list[int] = field(default_factory=list)  # how long an entitled job was without cards
    changes: int = 0  # arrivals, ends and ticks so far: what may change who should run
    evictions: list[tuple[int, str, str]] = field(default_factory=list)  # after how many changes, who, whom
    revoked: list[str] = field(default_factory=list)
    work_ns: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draws = Random(self.seed)
        self.draws = draws
        nodes, cards = draws.randint(2, 4), draws.choice([2, 4, 8])
        self.node_cards = cards
        self.scheduler = ClusterScheduler(
            CardInventory([NodeSpec(name=f"n{number}", cards=cards) for number in range(nodes)]),
            POLICIES[self.order],
            ClusterSettings(parks_at_once=False, deadline_ns=DEADLINE_NS),
        )
        self.now = 0
        self.queue: list[tuple[int, int, Event]] = []
        self.pushed = 0
        self.jobs: dict[str, Person] = {}
        self.shares: dict[str, int] = {}
        left = nodes * cards
        for number in range(draws.randint(2, 4)):
            share = draws.randint(0, left)
            self.shares[f"t{number}"] = share
            left -= share
        for tenant, share in self.shares.items():
            self.tell(ShareGiven(tenant=TenantId(tenant), share_milli=1000 * share))
        self._draw_jobs(draws.randint(5, 25))

    def _draw_jobs(self, count: int) -> None:
        time_ns = 0
        for number in range(count):
            time_ns += self.draws.choice([0, 1, 20, 300]) * SECOND
            cards = self.draws.choice([size for size in (1, 1, 2, 4, 8) if size <= self.node_cards])
            tenant = self.draws.choice(sorted(self.shares))
            run_ns, turn_ns = self.draws.randint(1, 3000) * SECOND, self.draws.randint(1, 59) * SECOND
            self.jobs[f"j{number}"] = Person(tenant, cards, run_ns, turn_ns, number)
            self.work_ns[f"j{number}"] = run_ns
            arrived = JobArrived(
                job=JobId(f"j{number}"),
                members=(Request(cards=cards, card_milli=1000),),
                tenant=TenantId(tenant),
                turn_ns=turn_ns,
            )
            self.push(time_ns, arrived)

    def push(self, time_ns: int, event: Event) -> None:
        self.pushed += 1
        heappush(self.queue, (time_ns, self.pushed, event))

    def run(self) -> World:
        """To the end, with all rules checked after every event."""
        here: set[str] = set()
        while True:
            wake_ns = self.scheduler.next_wakeup()
            if not self.queue and wake_ns is None:
                return self
            if wake_ns is not None and (not self.queue or wake_ns < self.queue[0][0]):
                self.now = wake_ns
                self.tell(Tick())
            else:
                self.now, _, event = heappop(self.queue)
                if self._is_stale(event):
                    continue
                if isinstance(event, JobArrived):
                    here.add(event.job)
                if isinstance(event, JobEnded):
                    self._stop(self.jobs[event.job])
                    self.jobs[event.job].ended = True
                    here.discard(event.job)
                self.tell(event)
            self._note_entitled(here)

    def tell(self, event: Event) -> None:
        self.changes += not isinstance(event, JobSuspended)
        for effect in self.scheduler.handle(event, now=self.now):
            self._perform(effect)
        self.scheduler.check_invariants()

    def _perform(self, effect: Effect) -> None:
        assert not isinstance(effect, RejectEvent), effect
        person = self.jobs[effect.job]
        match effect:
            case PlaceJob():
                person.is_running, person.since_ns = True, self.now
                self.push(self.now + person.left_ns, JobEnded(job=effect.job))
            case SuspendJob():
                assert effect.wanted_by is not None
                self.evictions.append((self.changes, effect.wanted_by, effect.job))
                self.push(self.now + self.draws.randint(0, person.turn_ns), JobSuspended(job=effect.job))
            case RevokeJob():
                self.revoked.append(effect.job)
                self._stop(person)
            case _:
                raise AssertionError(effect)

    def _stop(self, person: Person) -> None:
        person.left_ns -= self.now - person.since_ns
        person.is_running = False

    def _is_stale(self, event: Event) -> bool:
        """An end that was put off by parking, or a boundary that the job's end came before."""
        if isinstance(event, JobEnded):
            person = self.jobs[event.job]
            return person.ended or not person.is_running or self.now - person.since_ns < person.left_ns
        if isinstance(event, JobSuspended):
            person = self.jobs[event.job]
            if person.ended or not person.is_running:
                return True
            self._stop(person)
        return False

    def _note_entitled(self, here: set[str]) -> None:
        """In fifo order the first jobs of a tenant that fit into its share should have cards."""
        for tenant, share in self.shares.items():
            for name in sorted(here, key=lambda each: self.jobs[each].number):
                person = self.jobs[name]
                if person.tenant != tenant:
                    continue
                is_entitled = person.cards <= share
                share -= person.cards if is_entitled else 0
                if is_entitled and not person.is_running:
                    person.entitled_ns = self.now if person.entitled_ns is None else person.entitled_ns
                elif person.entitled_ns is not None:
                    self.waits_ns.append(self.now - person.entitled_ns)
                    person.entitled_ns = None
