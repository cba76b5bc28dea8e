"""Philly on 512 cards: how close to an oracle an order comes that knows no lengths.

All 82,247 jobs of Microsoft's Philly trace (Jeon et al., USENIX ATC 2019, as cleaned by the Pollux authors) on 64
nodes of 8 cards. `srsf` is told how long each job runs; `las`, `fifo` and `tiresias` are not. Parking costs nothing
here; the same with 30 seconds of work done again for each resumption stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable

from carpool.core.cluster.placement.requests import NodeSpec
from carpool.sim.engine import Plan, simulate
from carpool.sim.report import Cell, Study, Table, Target, percentile
from carpool.sim.traces import TraceJob, load
from carpool.units import SECOND

NODES = tuple(NodeSpec(name=f"node{number}", cards=8) for number in range(64))
QUICK_JOBS = 5_000
RATIO_MAX = 1.25
RESTART_NS = 30 * SECOND


def restart_ns(_: TraceJob) -> int:
    return RESTART_NS


PLANS = {
    "srsf (oracle)": Plan(nodes=NODES, order="srsf", knows_lengths=True),
    "las": Plan(nodes=NODES, order="las"),
    "las, 30 s/park": Plan(nodes=NODES, order="las", restart_cost=restart_ns),
    "tiresias": Plan(nodes=NODES, order="tiresias"),
    "fifo": Plan(nodes=NODES, order="fifo"),
}


def run(say: Callable[[str], None], *, quick: bool) -> Study:
    """The whole trace; quick: its first jobs."""
    jobs = load("philly").jobs[: QUICK_JOBS if quick else None]
    rows: list[tuple[Cell, ...]] = []
    means_ns: dict[str, int] = {}
    for name, plan in PLANS.items():
        say(f"philly: {name}, {len(jobs):,} jobs")
        result = simulate(jobs, plan)
        means_ns[name] = result.mean_completion_ns
        ordered = sorted(outcome.completion_ns for outcome in result.ended)
        tail_ns = [percentile(ordered, percent) for percent in (50, 95, 99)]
        oracle_ns = means_ns["srsf (oracle)"]
        rows.append(
            (
                name,
                *(round(span / SECOND) for span in (result.mean_completion_ns, *tail_ns, result.mean_queue_ns)),
                result.parks,
                result.mean_completion_ns / oracle_ns,
            )
        )
    return Study(
        name="philly",
        title=f"Philly on 512 cards, {len(jobs):,} jobs, seconds",
        tables=(
            Table(
                title="Completion time and queueing; ratio: mean over srsf's",
                columns=("order", "mean", "p50", "p95", "p99", "queue", "parks", "ratio"),
                rows=tuple(rows),
            ),
        ),
        targets=(Target(name="las over srsf", seen=means_ns["las"] / means_ns["srsf (oracle)"], limit=RATIO_MAX),),
    )
