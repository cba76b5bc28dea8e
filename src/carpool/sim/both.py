"""One cluster's scheduler and the schedulers of its nodes together, in virtual time: the contract, driven.

The cluster's scheduler says which card of which node a job has; the node's scheduler says when it runs there. Neither
knows of the other: this driver turns orders of the one into facts for the other, as core/kernel/contract.py lists
them. Each card of a node is a device of the node's scheduler, by the same id. A job has one member and one card here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from carpool.core.cluster import effects as orders
from carpool.core.cluster import events as facts
from carpool.core.cluster.model import ClusterSettings, State
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.placer import Placer
from carpool.core.cluster.placement.requests import NodeSpec, Request
from carpool.core.cluster.placement.rules import make_rule
from carpool.core.cluster.placer_inventory import PlacerInventory
from carpool.core.cluster.scheduler import ClusterScheduler
from carpool.core.kernel.ids import DeviceId, JobId
from carpool.core.node import effects as node_orders
from carpool.core.node import events as node_facts
from carpool.core.node.model import ENDED, JobSpec
from carpool.core.node.scheduler import Scheduler
from carpool.core.policies.base import Policy
from carpool.errors import InternalError
from carpool.units import SECOND

STEP_NS = SECOND // 10
MOVE_NS = SECOND // 2  # what it takes to get a job's memory off its card


@dataclass(slots=True, kw_only=True)
class Work:
    """A job that the cluster places: what it wants of a card, and how long it runs."""

    id: str
    card_bytes: int
    run_ns: int
    card_milli: int = 100
    at_ns: int = 0
    priority: int = 0
    leaves_ns: int | None = None  # then its node sends it away, once, without being asked to


@dataclass(slots=True)
class _Live:
    work: Work
    left_ns: int
    node: str = ""
    card: str = ""
    since_ns: int | None = None  # computes since
    version: int = 0
    is_queued: bool = False
    is_over: bool = False

    def done_ns(self, now: int) -> int:
        since_ns = now if self.since_ns is None else self.since_ns
        return self.work.run_ns - self.left_ns + now - since_ns


@dataclass(slots=True)
class Story:
    """What happened, in the order in which it did: when, to whom, what."""

    lines: list[tuple[int, str, str]] = field(default_factory=list)

    def of(self, job: str) -> list[str]:
        return [what for _, who, what in self.lines if who == job]


class Both:
    """Drives all schedulers. `run` goes on until nothing is left to happen."""

    def __init__(
        self, nodes: Sequence[NodeSpec], policy: Policy, *, true_bytes: dict[str, int] | None = None
    ) -> None:
        """`true_bytes`: what cards really have, where the cluster was told something else."""
        self._policy, self._true_bytes = policy, true_bytes or {}
        self.now = 0
        self.cluster = ClusterScheduler(
            PlacerInventory(Placer(Fleet([]), make_rule("best_fit"))),
            policy,
            ClusterSettings(parks_at_once=False, explains=True),
        )
        self.nodes: dict[str, Scheduler] = {}
        self.jobs: dict[str, _Live] = {}
        self.story = Story()
        self._clock: list[tuple[int, int, str, str, int]] = []  # when, number, what, who, version
        self._pushed = 0
        self._told: deque[tuple[str, facts.Event | node_facts.Event]] = deque()  # to "" (the cluster) or to a node
        for spec in nodes:
            self.add_node(spec)

    # --- what a test or a study says -----------------------------------------------------------------------------

    def add_node(self, spec: NodeSpec) -> None:
        self.nodes[spec.name] = Scheduler(self._policy)
        for card in spec.card_specs:
            capacity = self._true_bytes.get(card.id, card.card_bytes)
            self._tell(spec.name, node_facts.DeviceAdded(device=DeviceId(card.id), capacity_bytes=capacity))
        self._tell("", facts.NodeAdded(node=spec))

    def submit(self, work: Work) -> None:
        self.jobs[work.id] = _Live(work, work.run_ns)
        self._push(work.at_ns, "arrive", work.id)
        if work.leaves_ns is not None:
            self._push(work.leaves_ns, "leave", work.id)

    def submit_locally(self, node: str, work: Work, card: str) -> None:
        """A job that a user gave to a node itself: the cluster does not know of it."""
        self.jobs[work.id] = _Live(work, work.run_ns, node=node, card=card)
        self._submit_there(self.jobs[work.id])

    def lose_node_at(self, node: str, at_ns: int) -> None:
        self._push(at_ns, "lose", node)

    def drain_at(self, node: str, at_ns: int) -> None:
        self._push(at_ns, "drain", node)

    def run(self) -> Story:
        while True:
            schedulers: dict[str, ClusterScheduler | Scheduler] = {"": self.cluster, **self.nodes}
            wakes = {name: wake for name, each in schedulers.items() if (wake := each.next_wakeup()) is not None}
            next_ns = min([*wakes.values(), *(entry[0] for entry in self._clock[:1])], default=None)
            if next_ns is None:
                return self.story
            self.now = max(self.now, next_ns)
            if self._clock and self._clock[0][0] <= self.now:
                _, _, what, who, version = heappop(self._clock)
                self._happen(what, who, version)
                continue
            for name, wake_ns in wakes.items():
                if wake_ns <= self.now:
                    self._look_at(name)
                    self._tell(name, facts.Tick())

    def disagreements(self) -> list[str]:
        """Cards of which the cluster and the node say different jobs; empty if they agree."""
        found = []
        for machine in self.cluster.picture(now=self.now).nodes:
            there = self.nodes[machine.name].picture(now=self.now).jobs
            for card in machine.cards:
                mine = {job for job in card.jobs if self.cluster.state_of(job) is not State.COMING}
                theirs = {job.id for job in there if job.device == card.id and job.state not in ENDED}
                queued = {job.id for job in there if self.jobs[job.id].card == card.id and job.state not in ENDED}
                local = {JobId(job) for job in self.jobs if self.cluster.state_of(JobId(job)) is None}
                if mine != (theirs | queued) - local:
                    found.append(f"{card.id}: the cluster says {sorted(mine)}, the node {sorted(theirs | queued)}")
        return found

    # --- time ------------------------------------------------------------------------------------------------------

    def _push(self, at_ns: int, what: str, who: str, version: int = 0) -> None:
        self._pushed += 1
        heappush(self._clock, (at_ns, self._pushed, what, who, version))

    def _happen(self, what: str, who: str, version: int) -> None:
        if what == "lose":
            del self.nodes[who]
            for live in self.jobs.values():
                if live.node == who:
                    self._stop(live)
                    live.node = live.card = ""
            self._tell("", facts.NodeRemoved(name=who))
            return
        if what == "drain":
            self._tell("", facts.NodeDrained(name=who))
            return
        live = self.jobs[who]
        if what == "arrive":
            request = Request(cards=1, card_milli=live.work.card_milli, card_bytes=live.work.card_bytes)
            priority = live.work.priority
            self._tell("", facts.JobArrived(job=JobId(who), members=(request,), priority=priority))
        elif what == "leave" and live.node:
            self._take_away(live, "its node sent it away")
            self._tell("", facts.JobLeft(job=JobId(who), reason="its node sent it away"))
        elif what == "end" and version == live.version:
            self._end(live)
        elif what == "parked" and version == live.version:
            node = live.node
            moved = live.work.card_bytes
            parked = node_facts.JobParked(job=JobId(who), parked_bytes=moved, resident_bytes=0, move_ns=MOVE_NS)
            self._tell(node, parked)
            self._take_away(live, "parked, to go on elsewhere")
            self._tell("", facts.JobSuspended(job=JobId(who)))

    # --- facts and orders ------------------------------------------------------------------------------------------

    def _tell(self, to: str, event: facts.Event | node_facts.Event) -> None:
        """One fact after the other: what an order leads to is told when its turn comes."""
        self._told.append((to, event))
        if len(self._told) > 1:
            return
        while self._told:
            to, event = self._told[0]
            if not to:
                for order in self.cluster.handle(event, now=self.now):  # type: ignore[arg-type]  # the cluster's
                    self._perform(order)
            elif to in self.nodes:
                for effect in self.nodes[to].handle(event, now=self.now):  # type: ignore[arg-type]  # the node's
                    self._perform_there(to, effect)
            self._told.popleft()

    def _perform(self, order: orders.Effect) -> None:
        if isinstance(order, orders.RejectEvent):
            raise InternalError(f"the cluster rejected {order.event} of {order.job}: {order.reason}")
        live = self.jobs[order.job]
        match order:
            case orders.PlaceJob():
                live.node, live.card = order.places[0].node, order.places[0].cards[0]
                self._note(live, f"placed on {live.card}")
                self._submit_there(live)
            case orders.SuspendJob():
                self._note(live, f"to leave {live.card}: {order.reason}")
                self._tell(live.node, node_facts.SuspendAsked(job=order.job))
                if live.is_queued:  # it has nothing on the card yet
                    self._take_away(live, "taken out of the queue")
                    self._tell("", facts.JobSuspended(job=order.job))
            case orders.RevokeJob():
                if live.node:
                    self._take_away(live, "revoked")
                self._note(live, "revoked")
            case orders.RefuseJob():
                live.is_over = True
                self._note(live, f"refused: {order.reason}")
            case orders.ExplainWait():
                self._note(live, f"waits: {order.reason}")
            case orders.JoinJob() | orders.LeaveJob():
                raise InternalError("side by side on a card is the node's business here; use a policy without lanes")

    def _perform_there(self, node: str, effect: node_orders.Effect) -> None:
        if isinstance(effect, node_orders.ResizeLane | node_orders.RememberJob):
            return
        if effect.job is None or effect.job not in self.jobs:
            raise InternalError(f"node {node} orders {effect}")
        live, is_placed = self.jobs[effect.job], self.cluster.state_of(effect.job) is not None
        match effect:
            case node_orders.RefuseJob():
                self._note(live, f"refused there: {effect.reason}")
                live.node = live.card = ""
                self._tell("", facts.JobRefused(job=effect.job, node=node, reason=effect.reason))
            case node_orders.ExplainWait():
                if is_placed and not live.is_queued:
                    self._tell("", facts.JobQueued(job=effect.job, reason=effect.reason))
                live.is_queued = True
                self._note(live, f"queued there: {effect.reason}")
            case node_orders.StartJob():
                if is_placed and live.is_queued:
                    self._tell("", facts.JobStarted(job=effect.job))
                live.is_queued = False
                self._note(live, "starts")
                self._tell(node, node_facts.LeaseAsked(job=effect.job))
            case node_orders.GrantLease():
                live.since_ns = self.now
                live.version += 1
                self._push(self.now + live.left_ns, "end", effect.job, live.version)
            case node_orders.RecallLease() | node_orders.RevokeLease():
                steps = live.done_ns(self.now) // STEP_NS
                self._stop(live)
                if isinstance(effect, node_orders.RecallLease):
                    self._tell(node, node_facts.LeaseReturned(job=effect.job, wants_more=True, steps=steps))
                else:
                    self._tell(node, node_facts.LeaseAsked(job=effect.job))
            case node_orders.ParkJob():
                self._stop(live)
                self._push(self.now + MOVE_NS, "parked", effect.job, live.version)
            case _:
                pass  # caps, sizes, words about turns: nothing here depends on them

    # --- jobs on nodes ---------------------------------------------------------------------------------------------

    def _submit_there(self, live: _Live) -> None:
        spec = JobSpec(name=live.work.id, device=DeviceId(live.card), cap_bytes=live.work.card_bytes)
        live.is_queued = False
        self._tell(live.node, node_facts.JobSubmitted(job=JobId(live.work.id), spec=spec))

    def _look_at(self, node: str) -> None:
        """Tell a node how far those are that compute there, or it takes them for stuck."""
        for live in self.jobs.values():
            if live.node == node and live.since_ns is not None:
                done_ns = live.done_ns(self.now)
                seen = node_facts.ProgressSeen(
                    job=JobId(live.work.id), steps=done_ns // STEP_NS, cpu_ns=done_ns, live_bytes=live.work.card_bytes
                )
                self._tell(node, seen)

    def _stop(self, live: _Live) -> None:
        if live.since_ns is not None:
            live.left_ns -= self.now - live.since_ns
        live.since_ns = None
        live.version += 1

    def _end(self, live: _Live) -> None:
        job = JobId(live.work.id)
        self._stop(live)
        live.is_over = True
        self._note(live, "ends")
        self._take_away(live, "done")
        if self.cluster.state_of(job) is not None:
            self._tell("", facts.JobEnded(job=job))

    def _take_away(self, live: _Live, why: str) -> None:
        """Its process there is over; the node forgets it."""
        self._stop(live)
        node, job = live.node, JobId(live.work.id)
        live.node = live.card = ""
        live.is_queued = False
        self._tell(node, node_facts.JobExited(job=job, code=0, reason=why))
        self._tell(node, node_facts.JobForgotten(job=job))

    def _note(self, live: _Live, what: str) -> None:
        self.story.lines.append((self.now, live.work.id, what))
