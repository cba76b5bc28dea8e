"""A day of mixed jobs in the simulator, under every policy of a node and of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from carpool.core.cluster.model import ClusterSettings
from carpool.core.cluster.placement.requests import NodeSpec
from carpool.core.kernel.ids import DeviceId
from carpool.core.node.settings import Settings
from carpool.policies import names_for
from carpool.sim.engine import Plan, simulate
from carpool.sim.node_engine import NodeEngine
from carpool.sim.scripts import Machine, Script
from carpool.sim.traces import TraceJob
from carpool.sim.workload import lognormal, mixed, script_of
from carpool.units import GIB, SECOND
from tests.golden.recorder import Recorder
from tests.golden.under_test import CLUSTER, NODE

SEED = 14
MINUTE = 60 * SECOND
NODE_JOBS = 96
NODE_DEVICES = (("gpu0", 16 * GIB), ("gpu1", 12 * GIB))
NODE_QUANTUM_NS = 10 * SECOND
CLUSTER_JOBS = 900
CLUSTER_NODES = tuple(NodeSpec(name=f"n{number}", cards=8) for number in range(24))
PARTS_JOBS, PARTS_CARDS_MAX = 160, 4  # placing parts of cards is slower
PARTS_ORDERS = ("srtf", "pack")  # and fair
PARTS_NODES = tuple(NodeSpec(name=f"p{number}", cards=4) for number in range(6))
PACKED_RATES_MILLI = {2: 620, 3: 390, 4: 260}  # by how many jobs are side by side


def play_node(recorder: Recorder) -> None:
    """Run it under every policy of a node; the recorder takes the sessions."""
    for policy in names_for(NODE):
        recorder.where = f"a day on a node under {policy}"
        machine = Machine(devices=NODE_DEVICES, switch_ns=50_000)
        NodeEngine(policy, machine, settings=_node_settings(policy)).run(_scripts())


def play_cluster(recorder: Recorder) -> None:
    for order in names_for(CLUSTER):
        recorder.where = f"a day in a cluster under {order}"
        for plan, jobs in _plans(order):
            simulate(jobs, plan)


# --- a node ------------------------------------------------------------------------------------------------------


def _node_settings(policy: str) -> Settings:
    """Turns of seconds and looks as seldom: a day of the usual ones would be millions of events."""
    return Settings(
        quantum_ns=NODE_QUANTUM_NS,
        watch_ns=NODE_QUANTUM_NS,
        tenant_weights_milli={"tenant1": 3000},
        host_bytes_max=24 * GIB,
        move_percent=10 if policy == "las" else 5,
    )


def _scripts() -> list[Script]:
    """About a day's load for two devices, more bytes than they have; each third job says nothing of itself."""
    jobs = lognormal(NODE_JOBS, seed=SEED, mean_s=1500, load=1.7, tenants=3, fractions=True)
    return [_script(number, job) for number, job in enumerate(jobs)]


def _script(number: int, job: TraceJob) -> Script:
    made = script_of(job, is_known=number % 3 > 0, busy_milli=400 + 150 * (number % 5))
    spec = replace(
        made.spec,
        priority=number % 4,
        weight_milli=(500, 1000, 2000)[number % 3],
        cap_bytes=made.needs.total_bytes + 6 * GIB if number % 5 == 0 else None,
        device=DeviceId("gpu1") if number % 11 == 0 and made.needs.total_bytes < 6 * GIB else None,
    )
    needs = replace(made.needs, persistent_bytes=min(GIB + 6 * made.needs.persistent_bytes, 6 * GIB))
    return replace(made, spec=spec, needs=needs, start_ns=(2 + number % 9) * SECOND)


# --- a cluster ---------------------------------------------------------------------------------------------------


def _plans(order: str) -> list[tuple[Plan, Sequence[TraceJob]]]:
    jobs = mixed(CLUSTER_JOBS, seed=SEED)
    whole = [replace(job, card_milli=1000, card_bytes=0, program="abcd"[len(job.program) % 4]) for job in jobs]
    parts = [job for job in jobs if job.cards <= PARTS_CARDS_MAX][:PARTS_JOBS]
    usual = Plan(
        nodes=CLUSTER_NODES,
        order=order,
        knows_lengths=order != "tiresias",
        settings=ClusterSettings(wait_ns=600 * MINUTE, gang_wait_ns=300 * MINUTE),
        restart_cost=lambda job: 20 * SECOND,
        rates=_rates,
    )
    tenants = sorted({job.tenant for job in jobs})
    on_parts = replace(usual, nodes=PARTS_NODES)
    if order == "fair":
        weights = {tenant: 1000 * (1 + number % 3) for number, tenant in enumerate(tenants)}
        plans: list[tuple[Plan, Sequence[TraceJob]]] = [(replace(usual, weights_milli=weights), whole)]
        return [*plans, (on_parts, parts)]
    capacity = 1000 * sum(node.cards for node in CLUSTER_NODES)
    shares = {tenant: capacity // len(tenants) // 1000 * 1000 for tenant in tenants}
    plans = [(replace(usual, shares_milli=shares), whole)]
    return [*plans, (on_parts, parts)] if order in PARTS_ORDERS else plans


def _rates(jobs: Sequence[TraceJob]) -> tuple[int, ...]:
    return tuple(PACKED_RATES_MILLI.get(len(jobs), 100) + 10 * len(job.program[:4]) for job in jobs)
