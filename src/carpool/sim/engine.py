"""The cluster in virtual time: a clock, a trace and a cost model around the scheduler of a live cluster.

The engine makes facts out of a trace (a job came, a job ended, time passed) and performs the scheduler's orders on
paper. It knows how long each job runs and what parking costs; the scheduler does not. It decides nothing. At one
instant ends come before arrivals and arrivals before ticks; ties among jobs go by their order in the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

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
    Event,
    JobArrived,
    JobEnded,
    RatesMeasured,
    ShareGiven,
    Tick,
    WeightGiven,
    WorkLost,
)
from carpool.core.cluster.inventory import CardInventory, Inventory
from carpool.core.cluster.model import ClusterSettings
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.placer import Placer
from carpool.core.cluster.placement.requests import WHOLE_MILLI, NodeSpec, Request
from carpool.core.cluster.placement.rules import make_rule
from carpool.core.cluster.placer_inventory import PlacerInventory
from carpool.core.cluster.scheduler import ClusterScheduler
from carpool.core.kernel.ids import JobId, TenantId
from carpool.errors import InternalError, UsageError
from carpool.policies import find_policy
from carpool.sim.traces import TraceJob

NEVER = 1 << 80  # later than any time
Cost = Callable[[TraceJob], int]  # nanoseconds of work
Watch = Callable[[int, Event, list[Effect]], None]  # sees every call of the scheduler
Rates = Callable[[Sequence[TraceJob]], tuple[int, ...]]  # thousandths of the speed alone, side by side


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is simulated: a cluster, an order, and what things cost there."""

    nodes: tuple[NodeSpec, ...]
    order: str
    knows_lengths: bool = False  # the scheduler is told how long each job runs
    shares_milli: Mapping[str, int] = field(default_factory=dict)  # by tenant; empty: nobody owns anything
    weights_milli: Mapping[str, int] = field(default_factory=dict)  # of tenants, under fair
    settings: ClusterSettings = field(default_factory=ClusterSettings)
    restart_cost: Cost | None = None  # work done again each time a job goes on after it was parked
    shake_cost: Cost | None = None  # work lost by every running job whenever anything happens in the cluster
    rates: Rates | None = None  # of jobs side by side; None: as if each had its part of the time
    watch: Watch | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Outcome:
    """What became of one job."""

    job: TraceJob
    remaining_ns: int
    started_ns: int | None = None
    ended_ns: int | None = None
    parks: int = 0
    refusal: str = ""
    is_loaned: bool = False  # ran on others' cards at least once
    rate_milli: int = 0  # of its speed alone; 0 while it does not run
    counted_ns: int = 0  # up to when `remaining_ns` is counted
    version: int = 0  # tells a stale entry of the clock from a true one
    reasons: list[tuple[int, str]] = field(default_factory=list)  # why it waited, from when on, if that was asked for
    beside: list[Outcome] = field(default_factory=list)  # everybody on its cards, host first

    @property
    def completion_ns(self) -> int:
        if self.ended_ns is None:
            raise InternalError(f"job {self.job.id} never ended")
        return self.ended_ns - self.job.submit_ns

    @property
    def queue_ns(self) -> int:
        """Time neither running alone at full speed nor gone: what sharing the cluster cost it."""
        return self.completion_ns - self.job.service_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    outcomes: tuple[Outcome, ...]
    events: int  # that the scheduler handled
    parks: int
    usage: tuple[
        tuple[int, int], ...
    ] = ()  # when a job began or stopped running, and by how many thousandths of cards

    @property
    def ended(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.ended_ns is not None]

    @property
    def mean_completion_ns(self) -> int:
        return sum(outcome.completion_ns for outcome in self.ended) // max(1, len(self.ended))

    @property
    def mean_queue_ns(self) -> int:
        return sum(outcome.queue_ns for outcome in self.ended) // max(1, len(self.ended))

    @property
    def makespan_ns(self) -> int:
        return max((outcome.ended_ns or 0 for outcome in self.outcomes), default=0)


def simulate(jobs: Sequence[TraceJob], plan: Plan, *, step: Callable[[int], None] | None = None) -> Result:
    """Run a trace to its end. `step` is told, every thousand events, how many jobs have ended."""
    return _Engine(jobs, plan).run(step)


def share_equally(jobs: Sequence[TraceJob]) -> tuple[int, ...]:
    """No better than taking turns."""
    return (1000 // len(jobs),) * len(jobs)


def make_inventory(jobs: Sequence[TraceJob], nodes: Sequence[NodeSpec]) -> Inventory:
    """Counted cards where every job wants whole cards and nothing else; else a placer with the best-fit rule."""
    if all(
        job.cards
        and job.card_milli == WHOLE_MILLI
        and not (job.card_bytes or job.cpu_milli or job.memory_bytes or job.models)
        for job in jobs
    ):
        return CardInventory(nodes)
    return PlacerInventory(Placer(Fleet(nodes), make_rule("best_fit")))


def members_of(job: TraceJob, node_cards: int) -> tuple[Request, ...]:
    """A job as one request a node: as many full nodes as it needs, and one more for the rest."""

    def member(cards: int) -> Request:
        return Request(
            cards=cards,
            card_milli=job.card_milli if cards else 0,
            card_bytes=job.card_bytes,
            cpu_milli=job.cpu_milli,
            memory_bytes=job.memory_bytes,
            models=job.models,
        )

    if job.cards <= node_cards:
        return (member(job.cards),)
    full, rest = divmod(job.cards, node_cards)
    return (member(node_cards),) * full + ((member(rest),) if rest else ())


class _Engine:
    def __init__(self, jobs: Sequence[TraceJob], plan: Plan) -> None:
        self._plan = plan
        self._scheduler = ClusterScheduler(make_inventory(jobs, plan.nodes), find_policy(plan.order), plan.settings)
        self._node_cards = max(node.cards for node in plan.nodes)
        self._outcomes = [Outcome(job=job, remaining_ns=job.service_ns) for job in jobs]
        self._by_id = {JobId(outcome.job.id): outcome for outcome in self._outcomes}
        self._ends: list[tuple[int, int, int]] = []  # when, which outcome, its version
        self._number = {id(outcome): number for number, outcome in enumerate(self._outcomes)}
        self._running: dict[int, Outcome] = {}
        self._members: dict[tuple[object, ...], tuple[Request, ...]] = {}
        self._measured: set[RatesMeasured] = set()
        self._to_report: list[Event] = []  # told once the orders at hand are performed
        self._usage: list[tuple[int, int]] = []
        self._events = 0
        self._parks = 0
        self._ended = 0
        self._last_ns = 0

    def run(self, step: Callable[[int], None] | None) -> Result:
        for tenant, share_milli in self._plan.shares_milli.items():
            self._tell(ShareGiven(tenant=TenantId(tenant), share_milli=share_milli), 0)
        for tenant, weight_milli in self._plan.weights_milli.items():
            self._tell(WeightGiven(tenant=TenantId(tenant), weight_milli=weight_milli), 0)
        arrivals = iter(self._outcomes)
        coming = next(arrivals, None)
        while True:
            end_ns = self._next_end()
            wake_ns = self._scheduler.next_wakeup()
            now = coming.job.submit_ns if coming is not None else NEVER
            now = min(now, end_ns, NEVER if wake_ns is None else wake_ns)
            if now == NEVER:
                break
            if self._plan.shake_cost is not None and now > self._last_ns:
                self._shake(now, self._plan.shake_cost)
            if end_ns == now:
                self._end_first(now)
            elif coming is not None and coming.job.submit_ns == now:
                self._tell(self._arrival(coming.job), now)
                coming = next(arrivals, None)
            else:
                self._tell(Tick(), now)
            if step is not None and self._events % 1000 == 0:
                step(self._ended)
        return Result(
            outcomes=tuple(self._outcomes), events=self._events, parks=self._parks, usage=tuple(self._usage)
        )

    def _tell(self, event: Event, now: int) -> None:
        """Hand a fact to the scheduler, and then the rates that jobs side by side were found to have."""
        self._to_report.append(event)
        while self._to_report:
            self._events += 1
            told = self._to_report.pop()
            effects = self._scheduler.handle(told, now=now)
            if self._plan.watch is not None:
                self._plan.watch(now, told, effects)
            for effect in effects:
                self._perform(effect, now)

    def _arrival(self, job: TraceJob) -> JobArrived:
        shape = (job.cards, job.card_milli, job.card_bytes, job.cpu_milli, job.memory_bytes, job.models)
        members = self._members.get(shape)
        if members is None:
            members = self._members[shape] = members_of(job, self._node_cards)
        return JobArrived(
            job=JobId(job.id),
            members=members,
            tenant=TenantId(job.tenant),
            priority=job.priority,
            service_ns=job.service_ns if self._plan.knows_lengths else None,
            program=job.program,
            weight_milli=job.weight_milli,
        )

    def _next_end(self) -> int:
        ends = self._ends
        while ends and self._outcomes[ends[0][1]].version != ends[0][2]:
            heappop(ends)
        return ends[0][0] if ends else NEVER

    def _end_first(self, now: int) -> None:
        _, number, _ = heappop(self._ends)
        outcome = self._outcomes[number]
        self._stop(outcome, now)
        outcome.ended_ns = now
        self._ended += 1
        self._leave_group(outcome, now)
        self._tell(JobEnded(job=JobId(outcome.job.id)), now)

    def _shake(self, now: int, cost: Cost) -> None:
        """Every running job that does not end now loses work, at most what it did since the last time."""
        lost: dict[JobId, int] = {}
        for number, outcome in list(self._running.items()):
            self._count(outcome, now)
            if outcome.remaining_ns > 0:
                loss_ns = min(cost(outcome.job), now - self._last_ns)
                lost[JobId(outcome.job.id)] = loss_ns
                outcome.remaining_ns += loss_ns
                self._schedule_end(number, outcome, now)
        self._last_ns = now
        if lost:
            self._scheduler.handle(WorkLost(lost_ns=lost), now=now)

    # --- orders, performed on paper --------------------------------------------------------------------------------

    def _perform(self, effect: Effect, now: int) -> None:
        if isinstance(effect, RejectEvent):
            if effect.job is None:  # what the user asked for: shares, weights
                raise UsageError(effect.reason)
            raise InternalError(f"the scheduler rejected {effect.event} of job {effect.job}: {effect.reason}")
        outcome = self._by_id[effect.job]
        match effect:
            case PlaceJob():
                outcome.is_loaned |= effect.is_loan
                outcome.beside = [outcome]
                self._start(outcome, now)
            case SuspendJob() | RevokeJob():
                self._parks += 1
                outcome.parks += 1
                self._stop(outcome, now)
            case JoinJob():
                host = self._by_id[effect.host]
                host.beside.append(outcome)
                outcome.beside = host.beside
                self._start(outcome, now)
                self._set_rates(host.beside, now)
            case LeaveJob():
                self._parks += 1
                outcome.parks += 1
                self._stop(outcome, now)
                self._leave_group(outcome, now)
            case RefuseJob():
                outcome.refusal = effect.reason
            case ExplainWait():
                outcome.reasons.append((now, effect.reason))

    def _start(self, outcome: Outcome, now: int) -> None:
        if outcome.started_ns is None:
            outcome.started_ns = now
        elif self._plan.restart_cost is not None:
            cost_ns = self._plan.restart_cost(outcome.job)
            outcome.remaining_ns += cost_ns
            self._scheduler.handle(WorkLost(lost_ns={JobId(outcome.job.id): cost_ns}), now=now)
        outcome.counted_ns = now
        outcome.rate_milli = 1000
        number = self._number[id(outcome)]
        self._running[number] = outcome
        self._usage.append((now, outcome.job.cards * outcome.job.card_milli))
        self._schedule_end(number, outcome, now)

    def _stop(self, outcome: Outcome, now: int) -> None:
        self._count(outcome, now)
        outcome.rate_milli = 0
        outcome.version += 1
        if self._running.pop(self._number[id(outcome)], None) is not None:
            self._usage.append((now, -outcome.job.cards * outcome.job.card_milli))

    def _count(self, outcome: Outcome, now: int) -> None:
        outcome.remaining_ns -= (now - outcome.counted_ns) * outcome.rate_milli // 1000
        outcome.counted_ns = now

    def _schedule_end(self, number: int, outcome: Outcome, now: int) -> None:
        outcome.version += 1
        end_ns = now - (-outcome.remaining_ns * 1000 // outcome.rate_milli)
        heappush(self._ends, (max(end_ns, now), number, outcome.version))

    def _leave_group(self, outcome: Outcome, now: int) -> None:
        group = outcome.beside
        if outcome in group:
            group.remove(outcome)
        outcome.beside = []
        if group:
            self._set_rates(group, now)

    def _set_rates(self, group: list[Outcome], now: int) -> None:
        """Those on the same cards go on at the speed they have side by side; the scheduler is told what it is."""
        rates = self._plan.rates or share_equally
        ordered = sorted(group, key=lambda each: (each.job.program, each.job.id))
        speeds = rates([each.job for each in ordered]) if len(ordered) > 1 else (1000,)
        for outcome, rate_milli in zip(ordered, speeds, strict=True):
            self._count(outcome, now)
            outcome.rate_milli = rate_milli
            self._schedule_end(self._number[id(outcome)], outcome, now)
        programs = tuple(each.job.program for each in ordered)
        size_milli = ordered[0].job.cards * ordered[0].job.card_milli
        measured = RatesMeasured(size_milli=size_milli, programs=programs, rates_milli=speeds)
        if len(programs) > 1 and measured not in self._measured:
            self._measured.add(measured)
            self._to_report.append(measured)
