"""The cluster under everything at once: parts of cards, CPU, memory, labels, tenants, slow parking, changing nodes.

All rules hold after every event, and what the effects add up to never asks a machine for more than it has.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from carpool.core.cluster.effects import (
    Effect,
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
)
from carpool.core.cluster.model import ClusterSettings, State
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.placer import Placer
from carpool.core.cluster.placement.requests import NodeSpec, Place, Request
from carpool.core.cluster.placement.rules import make_rule
from carpool.core.cluster.placer_inventory import PlacerInventory
from carpool.core.cluster.scheduler import ClusterScheduler
from carpool.core.kernel.ids import JobId, TenantId
from carpool.policies import POLICIES
from carpool.units import SECOND
from tests.properties.effort import share_of_profile

TENANTS = ("a", "b", "c")
specs = st.builds(
    NodeSpec,
    name=st.just("n"),
    cards=st.integers(1, 5),
    cpu_milli=st.sampled_from([8, 16]),
    memory_bytes=st.sampled_from([8, 32]),
)
members = st.builds(
    Request,
    cards=st.sampled_from([1, 1, 1, 2, 3]),
    card_milli=st.sampled_from([1000, 1000, 500, 300]),
    cpu_milli=st.sampled_from([0, 0, 3, 8]),
    memory_bytes=st.sampled_from([0, 0, 5]),
    anti_affinity=st.sampled_from(["", "", "", "x"]),
    exclusion=st.sampled_from(["", "", "", "y"]),
)
cpu_members = st.builds(Request, cards=st.just(0), card_milli=st.just(0), cpu_milli=st.sampled_from([1, 6]))


@dataclass(slots=True)
class Holding:
    """A job that computes: from PlaceJob until it is parked, revoked or over."""

    places: tuple[Place, ...]
    is_told: bool = False


class ClusterMachine(RuleBasedStateMachine):
    order = "fifo"

    @initialize(
        nodes=st.lists(specs, min_size=2, max_size=4),
        is_slow=st.booleans(),
        shares=st.sampled_from([(), (2, 2), (1, 3, 1)]),
    )
    def build(self, nodes: list[NodeSpec], is_slow: bool, shares: tuple[int, ...]) -> None:
        self.machines = {f"n{number}": each for number, each in enumerate(nodes)}
        self.names = list(self.machines)
        self.gone: set[str] = set()
        self.is_slow = is_slow
        self.make_scheduler([self._spec(name) for name in self.names])
        self.now = 0
        self.count = 0
        self.holding: dict[str, Holding] = {}
        self.riding: dict[str, str] = {}
        self.arrived: dict[str, JobArrived] = {}
        self.closed: set[str] = set()  # cards
        self.shares: dict[str, int] = {}
        self.requests: dict[str, tuple[Request, ...]] = {}
        self.unmeasured: list[RatesMeasured] = []
        self.tenants: tuple[str, ...] = TENANTS
        if shares and self.order != "fair" and sum(shares) * 1000 <= self.fleet.capacity_milli:
            self.tenants = TENANTS[: len(shares)]
            for tenant, share in zip(self.tenants, shares, strict=True):
                self.shares[tenant] = 1000 * share
                self.tell(ShareGiven(tenant=TenantId(tenant), share_milli=1000 * share))

    def make_scheduler(self, nodes: list[NodeSpec]) -> None:
        self.fleet = Fleet(nodes)
        self.scheduler = ClusterScheduler(
            PlacerInventory(Placer(self.fleet, make_rule("best_fit"))),
            POLICIES[self.order],
            ClusterSettings(parks_at_once=not self.is_slow),
        )

    def _spec(self, name: str) -> NodeSpec:
        spec = self.machines[name]
        return NodeSpec(name=name, cards=spec.cards, cpu_milli=spec.cpu_milli, memory_bytes=spec.memory_bytes)

    # --- what happens --------------------------------------------------------------------------------------------

    @rule(
        kinds=st.lists(st.one_of(members, members, cpu_members), min_size=1, max_size=2),
        tenant=st.integers(0, 2),
        turn=st.sampled_from([0, 5, 90]),
        priority=st.integers(0, 3),
    )
    def come(self, kinds: list[Request], tenant: int, turn: int, priority: int) -> None:
        self.count += 1
        job = f"j{self.count}"
        self.requests[job] = tuple(kinds)
        arrived = JobArrived(
            job=JobId(job),
            members=tuple(kinds),
            tenant=TenantId(self.tenants[tenant % len(self.tenants)]),
            priority=priority,
            turn_ns=turn * SECOND,
            program="p",
            service_ns=(1 + self.count * 7 % 50) * SECOND,
        )
        self.arrived[job] = arrived
        self.tell(arrived)

    @precondition(lambda self: self.requests)
    @rule(index=st.integers(0, 50))
    def end(self, index: int) -> None:
        job = sorted(self.requests)[index % len(self.requests)]
        del self.requests[job]
        self.holding.pop(job, None)
        self.riding.pop(job, None)
        self.tell(JobEnded(job=JobId(job)))

    @precondition(lambda self: any(each.is_told for each in self.holding.values()))
    @rule(index=st.integers(0, 50))
    def come_to_a_boundary(self, index: int) -> None:
        told = sorted(job for job, each in self.holding.items() if each.is_told)
        job = told[index % len(told)]
        del self.holding[job]
        self.tell(JobSuspended(job=JobId(job)))

    @rule(seconds=st.sampled_from([0, 1, 30, 700, 5000]))
    def let_time_pass(self, seconds: int) -> None:
        end = self.now + seconds * SECOND
        while (wake := self.scheduler.next_wakeup()) is not None and wake <= end:
            self.now = max(self.now, wake)
            self.tell(Tick())
        self.now = end

    @precondition(lambda self: len(self.gone) < len(self.names))
    @rule(index=st.integers(0, 5))
    def lose_a_node(self, index: int) -> None:
        here = [name for name in self.names if name not in self.gone]
        name = here[index % len(here)]
        self.gone.add(name)
        self.tell(NodeRemoved(name=name))
        assert all(place.node != name for each in self.holding.values() for place in each.places)

    @precondition(lambda self: self.gone or len(self.names) < 6)
    @rule(spec=specs)
    def gain_a_node(self, spec: NodeSpec) -> None:
        name = min(self.gone, default=f"n{len(self.names)}")
        if name not in self.names:
            self.names.append(name)
        self.gone.discard(name)
        self.machines[name] = spec
        self.tell(NodeAdded(node=self._spec(name)))

    # --- what comes of it ----------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        for effect in self.scheduler.handle(event, now=self.now):
            self.perform(effect)
        while self.unmeasured:
            self.tell(self.unmeasured.pop())

    def perform(self, effect: Effect) -> None:
        assert not isinstance(effect, RejectEvent), effect
        job = effect.job
        match effect:
            case PlaceJob():
                assert job not in self.holding
                self.riding.pop(job, None)
                self.holding[job] = Holding(effect.places)
                self.check_room()
            case SuspendJob():
                self.holding[job].is_told = True
                if not self.is_slow:
                    del self.holding[job]
            case RevokeJob():
                del self.holding[job]
            case RefuseJob():
                del self.requests[job]
            case JoinJob():
                assert job not in self.holding
                self.riding[job] = effect.host
                group = 1 + sum(host == effect.host for host in self.riding.values())
                size = sum(each.total_milli for each in self.requests[job])
                self.unmeasured.append(
                    RatesMeasured(size_milli=size, programs=("p",) * group, rates_milli=(1200 // group,) * group)
                )
            case LeaveJob():
                del self.riding[job]
            case _:
                raise AssertionError(effect)

    def check_room(self) -> None:
        """No machine is asked for more than it has by those that compute now, the told ones included."""
        cards: dict[tuple[str, str], int] = {}
        cpu: dict[str, int] = {}
        memory: dict[str, int] = {}
        for job, each in self.holding.items():
            for request, place in zip(self.requests[job], each.places, strict=True):
                cpu[place.node] = cpu.get(place.node, 0) + request.cpu_milli
                memory[place.node] = memory.get(place.node, 0) + request.memory_bytes
                for card in place.cards:
                    cards[place.node, card] = cards.get((place.node, card), 0) + request.card_milli
        assert all(milli <= 1000 for milli in cards.values())
        for name in self.names:
            assert cpu.get(name, 0) <= self.machines[name].cpu_milli
            assert memory.get(name, 0) <= self.machines[name].memory_bytes

    @invariant()
    def the_rules_hold_and_no_effect_is_lost(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check_invariants()
        self.fleet.check_invariants()
        for job in self.requests:
            state = self.scheduler.state_of(JobId(job))
            assert (job in self.holding) == (state in (State.RUNNING, State.LEAVING)), (job, state)
            assert (job in self.riding) == (state is State.RIDING), (job, state)
        for picture in self.scheduler.picture(now=self.now).jobs:
            assert bool(picture.places) == (picture.state is not State.WAITING), picture


class LivingClusterMachine(ClusterMachine):
    """The same with nodes and cards that are cordoned and drained, shares that change, and restarts."""

    def _cards(self, name: str) -> list[str]:
        return [f"{name}/{card}" for card in range(self.machines[name].cards)]

    def try_to_tell(self, event: Event) -> bool:
        """Tell what may be rejected; whether it was not."""
        effects = self.scheduler.handle(event, now=self.now)
        is_rejected = bool(effects) and isinstance(effects[0], RejectEvent)
        for effect in effects[1:] if is_rejected else effects:
            self.perform(effect)
        while self.unmeasured:
            self.tell(self.unmeasured.pop())
        return not is_rejected

    @precondition(lambda self: len(self.gone) < len(self.names))
    @rule(index=st.integers(0, 5), card=st.sampled_from([None, 0, 1]), is_drained=st.booleans(), by=st.booleans())
    def cordon_or_drain(self, index: int, card: int | None, is_drained: bool, by: bool) -> None:
        here = [name for name in self.names if name not in self.gone]
        name = here[index % len(here)]
        chosen = None if card is None else f"{name}/{card % self.machines[name].cards}"
        by_ns = self.now + 40 * SECOND if by else None
        event = (
            NodeDrained(name=name, card=chosen, by_ns=by_ns) if is_drained else NodeCordoned(name=name, card=chosen)
        )
        self.closed |= {chosen} if chosen else set(self._cards(name))
        self.try_to_tell(event)

    @rule(index=st.integers(0, 5), card=st.sampled_from([None, None, 0, 1]))
    def uncordon(self, index: int, card: int | None) -> None:
        name = self.names[index % len(self.names)]
        chosen = None if card is None else f"{name}/{card % self.machines[name].cards}"
        self.closed -= {chosen} if chosen else set(self._cards(name))
        self.try_to_tell(NodeUncordoned(name=name, card=chosen))

    @precondition(lambda self: self.order != "fair")
    @rule(tenant=st.sampled_from(TENANTS), cards=st.sampled_from([None, 0, 1, 2, 5]))
    def change_a_share(self, tenant: str, cards: int | None) -> None:
        name = TenantId(tenant)
        if cards is None:
            if self.try_to_tell(ShareWithdrawn(tenant=name)):
                del self.shares[tenant]
        elif self.try_to_tell(ShareGiven(tenant=name, share_milli=1000 * cards)):
            self.shares[tenant] = 1000 * cards

    @rule(lots=st.randoms(use_true_random=False))
    def restart(self, lots: Random) -> None:
        """The scheduler is gone; a new one is told what there is, in any order, and moves nobody for it."""
        self.make_scheduler([])
        facts: list[Event] = []
        for name in self.names:
            if name not in self.gone:
                facts.append(NodeAdded(node=self._spec(name), is_cordoned=set(self._cards(name)) <= self.closed))
        for tenant, share_milli in self.shares.items():
            facts.append(ShareGiven(tenant=TenantId(tenant), share_milli=share_milli))
        for job in self.requests:
            arrived = self.arrived[job]
            fields = {each.name: getattr(arrived, each.name) for each in dataclasses.fields(JobArrived)}
            if job in self.holding:
                held = self.holding[job]
                facts.append(JobFound(**fields, places=held.places, is_leaving=held.is_told and self.is_slow))
            elif job not in self.riding:
                facts.append(arrived)
        lots.shuffle(facts)
        for job, host in self.riding.items():
            fields = {each.name: getattr(self.arrived[job], each.name) for each in dataclasses.fields(JobArrived)}
            facts.append(JobFound(**fields, places=self.holding[host].places, host=JobId(host)))
        before = {job: held.places for job, held in self.holding.items()}
        riding = dict(self.riding)
        self.closed = {
            card for name in self.names for card in self._cards(name) if set(self._cards(name)) <= self.closed
        }
        for event in [SyncStarted(), *facts, SyncFinished()]:
            self.tell(event)
        assert {job: held.places for job, held in self.holding.items() if job in before} == before
        assert {job: self.riding.get(job) for job in riding} == riding


@pytest.mark.slow
@pytest.mark.parametrize("order", ["fifo", "las", "fair", "priority", "srtf", "pack"])
def test_no_rule_of_the_cluster_is_ever_broken_and_no_machine_overfull(order: str) -> None:
    machine = type(f"Machine_{order}", (ClusterMachine,), {"order": order})
    run_machine(machine, settings=settings(max_examples=share_of_profile(45), stateful_step_count=40, deadline=None))


@pytest.mark.slow
@pytest.mark.parametrize("order", ["fifo", "las", "fair", "priority", "pack"])
def test_no_rule_is_broken_by_cordons_drains_changing_shares_and_restarts(order: str) -> None:
    machine = type(f"Living_{order}", (LivingClusterMachine,), {"order": order})
    run_machine(machine, settings=settings(max_examples=share_of_profile(45), stateful_step_count=40, deadline=None))
