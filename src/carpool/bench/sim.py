"""How fast the cluster's brain is, in CPU seconds of one core; no job runs, no clock is waited for.

Placement, on Alibaba's 2023 cluster (1,213 nodes, 6,212 cards) with the pods of the published FGD experiment:
  fgd_default_cpu_s      placing every pod of the default list loaded to 130 % of the cards, by the published rule
  placements_per_s       the same, as pods placed or found not to fit in a second
  decision_p99_us        of the 8,152 decisions for the list as it is, each with its entry into the books: the 99th
                         percentile; p50 and the longest are beside it
  placement_growth_4x    CPU time with 4 times the nodes and 4 times the pods, over that with one; 4 is proportional

Jobs through the cluster's scheduler: sim_jobs.py. Decisions of one node's scheduler: sim_node.py.

Reading the files is not counted. CPU time of the thread, so that other programs on the machine do not count either.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from carpool.bench.report import Report, Say, Target, percentile
from carpool.bench.sim_jobs import measure_jobs
from carpool.bench.sim_node import measure_node
from carpool.core.cluster.placement.base import Outlook
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.placer import Placer
from carpool.core.cluster.placement.requests import Request
from carpool.core.cluster.placement.rules import make_rule
from carpool.sim.alibaba import Problem, make_problem, read_nodes, read_pods

RULE = "fragmentation"
SEED = 42
LOAD_PERCENT = 130
GROWTH = 4
QUICK_PODS = 500


def run(say: Say, *, quick: bool) -> Report:
    report = Report(bench="sim")
    _measure_placement(report, say, quick=quick)
    measure_jobs(report, say, quick=quick)
    measure_node(report, say, quick=quick)
    return report


def _measure_placement(report: Report, say: Say, *, quick: bool) -> None:
    nodes, pods = read_nodes(), read_pods("default")
    problem = make_problem(nodes, pods, seed=SEED, percent=LOAD_PERCENT)
    arrivals = problem.requests[:QUICK_PODS] if quick else problem.requests
    say(f"sim: placing {len(arrivals):,} pods on {len(nodes):,} nodes")
    whole_s = sum(_decide_all(problem, arrivals)) / 1e9
    listed = problem.requests[: QUICK_PODS if quick else len(pods)]
    decisions_us = [spent / 1e3 for spent in _decide_all(problem, listed)]
    report.add("fgd_default_cpu_s", whole_s, Target(limit=5))
    report.add("placements_per_s", len(arrivals) / whole_s, Target(limit=2000, is_least=True))
    report.add("decision_p99_us", percentile(decisions_us, 99), Target(limit=2000))
    report.add("decision_p50_us", percentile(decisions_us, 50))
    report.add("decision_max_us", max(decisions_us))
    if not quick:
        say(f"sim: the same with {GROWTH} times the nodes and the pods")
        larger = make_problem([*nodes] * GROWTH, pods * GROWTH, seed=SEED, percent=LOAD_PERCENT)
        report.add("placement_growth_4x", sum(_decide_all(larger, larger.requests)) / 1e9 / whole_s)


def _decide_all(problem: Problem, arrivals: Sequence[Request]) -> list[int]:
    """Place one request after the other in an empty fleet; the CPU nanoseconds of each."""
    placer = Placer(Fleet(problem.nodes), make_rule(RULE, Outlook(demand=problem.demand)))
    spent = []
    for request in arrivals:
        before = time.thread_time_ns()
        placer.place(request)
        spent.append(time.thread_time_ns() - before)
    return spent
