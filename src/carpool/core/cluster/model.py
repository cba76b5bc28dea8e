"""What the cluster's scheduler knows of a job, and its settings. Plain data; the rules live in the other modules."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from carpool.core.cluster.placement.requests import Placement, Request
from carpool.core.kernel.ids import WEIGHT_ONE, JobId, Nanos, TenantId
from carpool.units import SECOND

Tie = int | tuple[int, ...]  # the further parts of a rank, and at the end a number of its own
Members = tuple[Request, ...]  # what a job wants, one for each node it wants a part of
Places = tuple[Placement, ...]  # where it is, in the same order
Key = tuple[int, Tie]  # a job's place in its order: lower goes first; no two jobs have the same
NO_KEY: Key = (-(1 << 91), -1)  # of a job whose order was not asked yet
STARVED_FIRST = -(1 << 90)  # before every key of every order
Entry = tuple[int, Tie, "ClusterJob"]  # a key as it stands among others, with its job


class State(StrEnum):
    WAITING = "waiting"  # has no cards: has not begun yet, or is parked
    COMING = "coming"  # has cards, but somebody has yet to leave them
    RUNNING = "running"  # on its cards
    RIDING = "riding"  # beside its host, on the host's cards
    LEAVING = "leaving"  # told to park, and not yet at a boundary
    ENDED = "ended"  # gone


ON_CARDS = frozenset({State.COMING, State.RUNNING})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    parks_at_once: bool = True  # the driver's SuspendJob takes no time, and no JobSuspended follows
    deadline_ns: Nanos = 60 * SECOND  # an owner's job has its cards this long after it came, at the latest
    wait_ns: Nanos | None = None  # a job that waits this long at a stretch goes before all others until it ends
    gang_wait_ns: Nanos | None = None  # the same for jobs of several members, which find room less often
    explains: bool = False  # say with ExplainWait why jobs wait, whenever that changes


@dataclass(slots=True, kw_only=True, eq=False)
class ClusterJob:
    id: JobId
    number: int  # in order of arrival
    members: Members
    size_milli: int  # of all members, in thousandths of a card
    tenant: TenantId
    priority: int
    service_ns: Nanos | None
    program: str
    turn_ns: Nanos
    arrived_ns: Nanos = 0
    weight_milli: int = WEIGHT_ONE
    state: State = State.WAITING
    attained_ns: Nanos = 0  # run time it had, as if alone
    lost_ns: Nanos = 0  # of that, what it must run again
    settled_ns: Nanos = 0  # up to when that is counted
    rate_milli: int = 1000  # of its speed alone
    level: int = 0  # of what it has had (order.py)
    counts_as_running: bool = False  # before those of its level that wait
    standing: int = 0  # among them, where the policy goes by it
    facts: tuple[object, ...] = ()  # the part of its view that never changes
    head_start: int = 0  # what it counts as served before it began, so that a newcomer does not have to catch up
    is_starved: bool = False
    is_owned: bool = False  # on cards of its tenant's share; else its cards are a loan
    key: Key = NO_KEY
    entry: Entry | None = None  # where it stands among those that wait, or that run
    speed: int = 0  # at which the first part of its key falls while it runs
    shape: int = 0  # jobs of equal shape want exactly the same, and may or may not have it as a loan
    changes: int = 0  # how often its key or state changed: tells a stale wakeup from a true one
    places: Places = ()
    queued_why: str = ""  # why its node keeps it in a queue; empty: it does not
    wait_kind: str = ""  # why it waits, as it was said last
    leave_by_ns: Nanos | None = None  # while it leaves: it is taken off its cards then
    host: ClusterJob | None = None
    guests: list[ClusterJob] = field(default_factory=list)

    @property
    def is_running(self) -> bool:
        return self.state is State.RUNNING or self.state is State.RIDING or self.state is State.LEAVING

    def key_at(self, now: Nanos) -> Key:
        """Its key now, if it stands among others: the first part falls while it runs."""
        return self.key if self.entry is None else (self.entry[0] - self.speed * now, self.entry[1])
