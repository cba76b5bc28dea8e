"""ITP: ten tenants with their own cards, alone and with idle cards lent.

All 69,351 jobs of Microsoft's ITP trace (Gu et al., ASPLOS 2023); each of its ten clusters is a tenant, which owns
1.25 times the cards that its jobs use on average, in whole nodes of 8, and at least as many as its largest job wants.
Alone: each tenant has a cluster of that size. Lent: one cluster of all of them, where idle cards are lent and given
back at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean

from carpool.core.cluster.placement.requests import NodeSpec
from carpool.sim.engine import Outcome, Plan, simulate
from carpool.sim.report import Study, Table, Target
from carpool.sim.traces import TraceJob, load
from carpool.units import SECOND

NODE_CARDS = 8
QUOTA_PERCENT = 125
QUICK_JOBS = 4_000
QUEUE_S_MAX = 1_000
ORDERS_SHOWN = ("fifo", "las")

Queues = dict[str, list[int]]  # nanoseconds, by tenant


def run(say: Callable[[str], None], *, quick: bool) -> Study:
    """The whole trace under two orders; quick: its first jobs."""
    jobs = load("itp").jobs[: QUICK_JOBS if quick else None]
    quotas = find_quotas(jobs)
    tables, targets = [], []
    for order in ORDERS_SHOWN:
        say(f"itp: {order}, alone")
        alone = run_alone(jobs, quotas, order)
        say(f"itp: {order}, lent")
        lent, parks = run_lent(jobs, quotas, order)
        tables.append(_table(order, quotas, alone, lent, parks))
        worse_s = max(fmean(lent[tenant]) - fmean(alone[tenant]) for tenant in quotas) / SECOND
        targets.append(Target(name=f"{order}: mean queue when lent, s", seen=_mean_s(lent), limit=QUEUE_S_MAX))
        targets.append(Target(name=f"{order}: worst tenant, lent less alone, s", seen=worse_s, limit=0))
    return Study(
        name="itp",
        title=f"ITP, ten tenants, {sum(quotas.values()):,} cards: mean time in the queue, seconds",
        tables=tuple(tables),
        targets=tuple(targets),
        notes=(f"a quota is {QUOTA_PERCENT} % of the mean load, in nodes of {NODE_CARDS}, and the largest job fits",),
    )


def find_quotas(jobs: Sequence[TraceJob]) -> dict[str, int]:
    """The cards each tenant owns."""
    span_ns = max(1, jobs[-1].submit_ns - jobs[0].submit_ns)
    used: dict[str, int] = defaultdict(int)
    largest: dict[str, int] = defaultdict(int)
    for job in jobs:
        used[job.tenant] += job.cards * job.service_ns
        largest[job.tenant] = max(largest[job.tenant], job.cards)

    def quota(tenant: str) -> int:
        cards = max(largest[tenant], -(-used[tenant] * QUOTA_PERCENT // (100 * span_ns)))
        return -(-cards // NODE_CARDS) * NODE_CARDS

    return {tenant: quota(tenant) for tenant in sorted(used)}


def run_alone(jobs: Sequence[TraceJob], quotas: dict[str, int], order: str) -> Queues:
    """Each tenant in a cluster of its own."""
    queues: Queues = {}
    for tenant, cards in quotas.items():
        own = [job for job in jobs if job.tenant == tenant]
        queues[tenant] = [each.queue_ns for each in simulate(own, Plan(nodes=_nodes(cards), order=order)).ended]
    return queues


def run_lent(jobs: Sequence[TraceJob], quotas: dict[str, int], order: str) -> tuple[Queues, int]:
    """All tenants in one cluster, each owning its quota; and how often a job was parked."""
    shares = {tenant: 1000 * cards for tenant, cards in quotas.items()}
    plan = Plan(nodes=_nodes(sum(quotas.values())), order=order, shares_milli=shares)
    result = simulate(jobs, plan)
    queues: Queues = defaultdict(list)
    outcome: Outcome
    for outcome in result.ended:
        queues[outcome.job.tenant].append(outcome.queue_ns)
    return queues, result.parks


def _nodes(cards: int) -> tuple[NodeSpec, ...]:
    return tuple(NodeSpec(name=f"node{number}", cards=NODE_CARDS) for number in range(cards // NODE_CARDS))


def _mean_s(queues: Queues) -> float:
    return fmean(queue for own in queues.values() for queue in own) / SECOND


def _table(order: str, quotas: dict[str, int], alone: Queues, lent: Queues, parks: int) -> Table:
    rows = [
        (
            tenant,
            cards,
            len(alone[tenant]),
            round(fmean(alone[tenant]) / SECOND),
            round(fmean(lent[tenant]) / SECOND),
        )
        for tenant, cards in quotas.items()
    ]
    jobs = sum(map(len, alone.values()))
    total = ("all", sum(quotas.values()), jobs, round(_mean_s(alone)), round(_mean_s(lent)))
    title = f"{order}: mean queue in seconds; jobs were parked {parks:,} times when lent"
    return Table(title=title, columns=("tenant", "cards", "jobs", "alone", "lent"), rows=(*rows, total))
