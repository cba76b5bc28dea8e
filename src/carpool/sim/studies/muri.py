"""Muri's four traces on 64 cards: published schedulers reproduced, then carpool's own beside them.

The yardstick is "Multi-Resource Interleaving" (Zhao et al., SIGCOMM 2022): average completion times of the result
files of Rivendile/Muri @4e69a78. Its cost model: 8 nodes of 8 cards; a job runs 1.015 times its iterations ×
iteration time; whenever a job comes, ends or changes its queue, every running job loses the seconds it takes to
start it again.

Side by side its model lets up to four jobs of equal size share their cards: a job loads data, computes and
communicates, each on another resource, and the group's iteration is one round in which everybody has had every
resource. What sharing itself costs is a measured factor: 1.33, 1.5 or 1.37 for two, three or four jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations

from carpool.core.cluster.model import ClusterSettings
from carpool.core.cluster.placement.requests import NodeSpec
from carpool.sim.engine import Plan, Result, simulate
from carpool.sim.report import Study, Table, Target
from carpool.sim.traces import TraceJob, load
from carpool.units import SECOND

TRACES = (1, 2, 3, 4)
NODES = tuple(NodeSpec(name=f"node{number}", cards=8) for number in range(8))
ALONE_PERMILLE = 1015
TOGETHER_FACTOR = {2: 1.33 / 1.015, 3: 1.5 / 1.015, 4: 1.37 / 1.015}
SEATS = 4
DAY = 86_400 * SECOND

# Seconds to start a program again, by cards; the table of the published simulator.
CARDS = (1, 2, 4, 8, 16, 32)
RESTART_S = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "bert": (10, 10, 10, 10, 10, 10),
    "gpt2": (10, 10, 10, 10, 10, 10),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}

PUBLISHED_S = {
    "srtf": (1_370_603, 2_665_607, 193_082, 581_983),
    "srsf": (980_141, 2_213_950, 185_022, 487_167),
    "tiresias": (3_330_371, 7_396_369, 347_213, 1_319_383),
    "muri-s": (867_706, 1_342_400, 85_503, 365_468),
    "muri-l": (1_072_010, 2_544_642, 88_687, 429_175),
}
GAP_MAX = {"srtf": 0.001, "srsf": 0.001, "tiresias": 0.01}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: how a scheduler is simulated, and which published figure stands beside it."""

    name: str
    plan: Plan
    beside: str


def restart_ns(job: TraceJob) -> int:
    """What the published simulator takes off a running job whenever anything happens."""
    return RESTART_S[job.program][CARDS.index(job.cards)] * SECOND


def together(jobs: Sequence[TraceJob]) -> tuple[int, ...]:
    """How fast each job goes beside the others, in thousandths of its speed alone."""
    round_ns = _best_round_ns(tuple(sorted(job.stages_ns for job in jobs)))
    return tuple(max(1, min(1000, int(1000 * job.service_ns / job.iterations / round_ns))) for job in jobs)


THEIRS = Plan(nodes=NODES, order="tiresias", shake_cost=restart_ns)
ROWS = (
    Row(name="srtf, their cost", plan=replace(THEIRS, order="srtf", knows_lengths=True), beside="srtf"),
    Row(name="srsf, their cost", plan=replace(THEIRS, order="srsf", knows_lengths=True), beside="srsf"),
    Row(name="tiresias, their cost", plan=THEIRS, beside="tiresias"),
    Row(name="las", plan=Plan(nodes=NODES, order="las"), beside="tiresias"),
    Row(name="pack", plan=Plan(nodes=NODES, order="pack", rates=together), beside="muri-l"),
    Row(
        name="pack, gangs wait a day at most",
        plan=Plan(nodes=NODES, order="pack", rates=together, settings=ClusterSettings(gang_wait_ns=DAY)),
        beside="muri-l",
    ),
)


def run(say: Callable[[str], None], *, quick: bool) -> Study:
    """All four traces; quick: trace 3 only."""
    traces = (3,) if quick else TRACES
    seen: dict[str, list[Result]] = {}
    for row in ROWS:
        for trace in traces:
            say(f"muri: {row.name} on trace {trace}")
            seen.setdefault(row.name, []).append(simulate(read_jobs(trace), row.plan))
    names = tuple(f"trace {trace}" for trace in traces)
    means = [tuple(round(each.mean_completion_ns / SECOND) for each in seen[row.name]) for row in ROWS]
    return Study(
        name="muri",
        title="Muri's traces on 64 cards, average completion time in seconds",
        tables=(
            Table(
                title="Ours",
                columns=("scheduler", *names),
                rows=tuple((row.name, *cells) for row, cells in zip(ROWS, means, strict=True)),
            ),
            Table(
                title="Over the published figure",
                columns=("scheduler", "beside", *names),
                rows=tuple((row.name, row.beside, *_ratios(row, seen[row.name], traces)) for row in ROWS),
            ),
        ),
        targets=tuple(target for row in ROWS for target in _targets(row, seen[row.name], traces)),
        notes=(
            "las and pack know no lengths and pay nothing for parking; pack measures each mixture of programs once",
            "a bound on the wait of gangs helps trace 3 and hurts trace 2, where five times the cluster is asked for",
        ),
    )


def read_jobs(trace: int) -> list[TraceJob]:
    """The jobs as the published simulator runs them alone."""
    return [replace(job, service_ns=job.service_ns * ALONE_PERMILLE // 1000) for job in load(f"muri{trace}").jobs]


def _ratios(row: Row, results: list[Result], traces: Sequence[int]) -> list[float]:
    published = [PUBLISHED_S[row.beside][trace - 1] for trace in traces]
    return [result.mean_completion_ns / SECOND / wanted for result, wanted in zip(results, published, strict=True)]


def _targets(row: Row, results: list[Result], traces: Sequence[int]) -> list[Target]:
    ratios = _ratios(row, results, traces)
    if row.plan.settings.gang_wait_ns is not None:
        return []  # shown as what not to do
    gap_max = GAP_MAX.get(row.plan.order)
    if gap_max is not None:
        worst = max(abs(ratio - 1) for ratio in ratios)
        return [Target(name=f"{row.name}: farthest from published", seen=worst, limit=gap_max)]
    return [Target(name=f"{row.name}: highest over {row.beside}", seen=max(ratios), limit=1.0)]


@cache
def _best_round_ns(stages: tuple[tuple[int, ...], ...]) -> float:
    """The shortest round over all orders of the jobs, with what sharing costs."""
    round_ns = min(_round_ns(order) for order in permutations(stages))
    if len(stages) == 2:
        (load_a, compute_a, send_a), (load_b, compute_b, send_b) = stages
        round_ns = min(round_ns, max(load_a, compute_b + send_b) + max(load_b, compute_a + send_a))
    return round_ns * TOGETHER_FACTOR[len(stages)]


def _round_ns(order: Sequence[tuple[int, ...]]) -> float:
    """The length of a round once it repeats. Four seats take turns in slots.

    In each slot one seat sends, the next computes, and the one after ends loading, which it began a slot earlier. A
    slot is over when all of that is. Two rounds from a standing start are followed, as in the published simulator.
    """
    ends = [0]
    for slot in range(2 * SEATS):
        now, before = ends[slot], ends[slot - 1] if slot else None
        end = 0
        for offset, stage, begun in ((1, 2, now), (2, 1, now), (3, 0, before)):
            seat = (slot + offset) % SEATS
            if seat < len(order) and begun is not None:
                end = max(end, begun + order[seat][stage])
        ends.append(end)
        if slot >= SEATS:
            this, last = ends[-1] - ends[-1 - SEATS], ends[-2] - ends[-2 - SEATS]
            if abs(this - last) <= 0.001 * max(this, last):
                return this
    return ends[-1] - ends[-1 - SEATS]
