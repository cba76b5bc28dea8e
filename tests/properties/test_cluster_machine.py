"""The cluster under everything at once: parts of cards, CPU, memory, labels, tenants, slow parking, changing nodes.

All rules hold after every event, and what the effects add up to never asks a machine for more than it has.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    JobSuspended,
    NodeAdded,
    NodeRemoved,
    RatesMeasured,
    ShareGiven,
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
        self.fleet = Fleet([self._spec(name) for name in self.names])
        self.scheduler = ClusterScheduler(
            PlacerInventory(Placer(self.fleet, make_rule("best_fit"))),
            POLICIES[self.order],
            ClusterSettings(parks_at_once=not is_slow),
        )
        self.is_slow = is_slow
        self.now = 0
        self.count = 0
        self.holding: dict[str, Holding] = {}
        self.riding: dict[str, str] = {}
        self.requests: dict[str, tuple[Request, ...]] = {}
        self.unmeasured: list[RatesMeasured] = []
        self.tenants: tuple[str, ...] = TENANTS
        if shares and self.order != "fair" and sum(shares) * 1000 <= self.fleet.capacity_milli:
            self.tenants = TENANTS[: len(shares)]
            for tenant, share in zip(self.tenants, shares, strict=True):
                self.tell(ShareGiven(tenant=TenantId(tenant), share_milli=1000 * share))

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


@pytest.mark.slow
@pytest.mark.parametrize("order", ["fifo", "las", "fair", "priority", "srtf", "pack"])
def test_no_rule_of_the_cluster_is_ever_broken_and_no_machine_overfull(order: str) -> None:
    machine = type(f"Machine_{order}", (ClusterMachine,), {"order": order})
    run_machine(machine, settings=settings(max_examples=share_of_profile(45), stateful_step_count=40, deadline=None))
