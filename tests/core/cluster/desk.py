"""A scheduler on a few nodes of whole cards, for tests: short ways to say what happened, and what came of it."""

from __future__ import annotations

from carpool.core.cluster.effects import (
    Effect,
    ExplainWait,
    JoinJob,
    LeaveJob,
    PlaceJob,
    RefuseJob,
    RejectEvent,
    RevokeJob,
    SuspendJob,
)
from carpool.core.cluster.events import (
    DEFAULT_TENANT,
    Event,
    JobArrived,
    JobEnded,
    JobFound,
    JobSuspended,
    NodeAdded,
    NodeCordoned,
    NodeDrained,
    NodeRemoved,
    NodeUncordoned,
    RatesMeasured,
    ShareGiven,
    ShareWithdrawn,
    SyncFinished,
    SyncStarted,
    Tick,
    WeightGiven,
)
from carpool.core.cluster.inventory import CardInventory
from carpool.core.cluster.model import ClusterSettings, State
from carpool.core.cluster.placement.requests import NodeSpec, Place, Request
from carpool.core.cluster.scheduler import ClusterScheduler
from carpool.core.kernel.ids import JobId, TenantId
from carpool.policies import POLICIES
from carpool.units import SECOND


class Desk:
    """Times are seconds. Each call returns its effects as short sentences, and checks all rules."""

    def __init__(
        self, order: str, *, nodes: int = 1, cards: int = 4, settings: ClusterSettings | None = None, **shares: int
    ) -> None:
        specs = [NodeSpec(name=f"n{number}", cards=cards) for number in range(nodes)]
        self.scheduler = ClusterScheduler(CardInventory(specs), POLICIES[order], settings)
        self.now = 0
        for tenant, share in shares.items():
            self.tell(ShareGiven(tenant=TenantId(tenant), share_milli=1000 * share))

    def tell(self, event: Event, at: float = 0) -> list[str]:
        self.now = int(at * SECOND)
        effects = self.scheduler.handle(event, now=self.now)
        self.scheduler.check_invariants()
        return [say(effect) for effect in effects]

    def come(
        self,
        job: str,
        *cards: int,
        at: float = 0,
        run: float | None = None,
        tenant: str = DEFAULT_TENANT,
        priority: int = 0,
        program: str = "",
        turn: float = 0,
        weight: float = 1,
    ) -> list[str]:
        arrived = JobArrived(
            job=JobId(job),
            members=tuple(Request(cards=each, card_milli=1000) for each in cards or (1,)),
            tenant=TenantId(tenant),
            priority=priority,
            service_ns=None if run is None else int(run * SECOND),
            program=program,
            turn_ns=int(turn * SECOND),
            weight_milli=int(weight * 1000),
        )
        return self.tell(arrived, at)

    def weigh(self, tenant: str, weight: float) -> list[str]:
        return self.tell(WeightGiven(tenant=TenantId(tenant), weight_milli=int(weight * 1000)), self.now / SECOND)

    def add_node(self, name: str, cards: int, *, at: float = 0) -> list[str]:
        return self.tell(NodeAdded(node=NodeSpec(name=name, cards=cards)), at)

    def lose_node(self, name: str, *, at: float = 0) -> list[str]:
        return self.tell(NodeRemoved(name=name), at)

    def cordon(self, name: str, card: str | None = None, *, at: float = 0) -> list[str]:
        return self.tell(NodeCordoned(name=name, card=card), at)

    def drain(self, name: str, card: str | None = None, *, by: float | None = None, at: float = 0) -> list[str]:
        return self.tell(NodeDrained(name=name, card=card, by_ns=None if by is None else int(by * SECOND)), at)

    def uncordon(self, name: str, card: str | None = None, *, at: float = 0) -> list[str]:
        return self.tell(NodeUncordoned(name=name, card=card), at)

    def find(
        self,
        job: str,
        *places: str,
        at: float = 0,
        tenant: str = DEFAULT_TENANT,
        had: float = 0,
        priority: int = 0,
        program: str = "",
        is_leaving: bool = False,
        host: str | None = None,
    ) -> list[str]:
        """A job that runs already; a place is written n0:0,1 or n0:GPU-a."""
        found = JobFound(
            job=JobId(job),
            members=tuple(Request(cards=len(_cards(place)), card_milli=1000) for place in places),
            places=tuple(Place(node=place.partition(":")[0], cards=_cards(place)) for place in places),
            tenant=TenantId(tenant),
            attained_ns=int(had * SECOND),
            priority=priority,
            program=program,
            is_leaving=is_leaving,
            host=None if host is None else JobId(host),
        )
        return self.tell(found, at)

    def share(self, tenant: str, cards: float, *, at: float = 0) -> list[str]:
        return self.tell(ShareGiven(tenant=TenantId(tenant), share_milli=int(1000 * cards)), at)

    def withdraw(self, tenant: str, *, at: float = 0) -> list[str]:
        return self.tell(ShareWithdrawn(tenant=TenantId(tenant)), at)

    def begin_sync(self, *, at: float = 0) -> list[str]:
        return self.tell(SyncStarted(), at)

    def end_sync(self, *, at: float = 0) -> list[str]:
        return self.tell(SyncFinished(), at)

    def end(self, job: str, *, at: float = 0) -> list[str]:
        return self.tell(JobEnded(job=JobId(job)), at)

    def parked(self, job: str, *, at: float = 0) -> list[str]:
        return self.tell(JobSuspended(job=JobId(job)), at)

    def tick(self) -> tuple[float, list[str]]:
        """Wake the scheduler when it wants to be; returns when that was."""
        wake_ns = self.scheduler.next_wakeup()
        assert wake_ns is not None
        effects = self.scheduler.handle(Tick(), now=wake_ns)
        self.scheduler.check_invariants()
        return wake_ns / SECOND, [say(effect) for effect in effects]

    def measure(self, cards: int, at: float = 0, **rates: int) -> list[str]:
        """Rates by program, in thousandths; two of a kind are written a and a2."""
        programs = sorted(rates)
        event = RatesMeasured(
            size_milli=1000 * cards,
            programs=tuple(name[:1] for name in programs),
            rates_milli=tuple(rates[name] for name in programs),
        )
        return self.tell(event, at)

    def state(self, job: str) -> State | None:
        return self.scheduler.state_of(JobId(job))


def _cards(place: str) -> tuple[str, ...]:
    node, _, cards = place.partition(":")
    return tuple(f"{node}/{card}" if card.isdigit() else card for card in cards.split(","))


def short(place: Place) -> str:
    """Node n1 with cards n1/0 and n1/2 as 1:0,2; other names as they are."""
    cards = ",".join(card.removeprefix(f"{place.node}/") for card in place.cards)
    return f"{place.node.removeprefix('n') or 0}:{cards}"


def say(effect: Effect) -> str:
    match effect:
        case PlaceJob():
            where = " ".join(map(short, effect.places))
            return f"{'lend' if effect.is_loan else 'place'} {effect.job} {where}"
        case SuspendJob():
            return f"park {effect.job} for {effect.wanted_by or effect.reason}"
        case JoinJob():
            return f"join {effect.job} {effect.host}"
        case LeaveJob():
            return f"leave {effect.job} {effect.host}"
        case RevokeJob():
            return f"revoke {effect.job}"
        case RefuseJob():
            return f"refuse {effect.reason}"
        case ExplainWait():
            return f"{effect.job} waits: {effect.reason}"
        case RejectEvent():
            return f"reject {effect.event}: {effect.reason}"
