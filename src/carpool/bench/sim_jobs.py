"""How fast jobs go through the cluster's scheduler in virtual time, in CPU seconds of one core.

  philly_cpu_s         all 82,247 jobs of the Philly trace on 512 cards under `las`, every placement made by the core
  philly_events_per_s  the same, as events that the scheduler handled in a second
  jobs120k_cpu_s       a month of 120,000 jobs on 2,720 cards: Philly's jobs, some of them twice, its 109 days made
                       shorter, so that the cards are as busy as Philly's 512
  growth_10x           the CPU time of that month over the mean of that of its ten tenths, each every tenth job on a
                       tenth of the cards, which are then as busy; 10 is proportional. One tenth alone is no measure:
                       long jobs are few, so tenths differ. Month and tenths in turn, twice, the best of each counts
  peak_mib             the most memory the benchmark's process had by then

Reading the files is not counted. CPU time of the thread, so that other programs on the machine do not count either.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from carpool.bench.report import Report, Say, Target
from carpool.core.cluster.placement.requests import NodeSpec
from carpool.sim.engine import Plan, Result, simulate
from carpool.sim.traces import TraceJob, load
from carpool.units import SECOND

ORDER = "las"
NODE_CARDS = 8
PHILLY_NODES = 64
MONTH_NS = 30 * 86_400 * SECOND
MONTH_JOBS = 120_000
MONTH_NODES = 340
ROUNDS = 2
QUICK_JOBS = 2_000


def measure_jobs(report: Report, say: Say, *, quick: bool) -> None:
    """Add the figures about jobs to the report."""
    philly = load("philly").jobs
    jobs = philly[:QUICK_JOBS] if quick else philly
    say(f"sim: {len(jobs):,} jobs of Philly on {PHILLY_NODES * NODE_CARDS} cards")
    spent_s, result = _time(jobs, PHILLY_NODES)
    report.add("philly_cpu_s", spent_s, Target(limit=20))
    report.add("philly_events_per_s", result.events / spent_s, Target(limit=10_000, is_least=True))
    month = make_month(philly, QUICK_JOBS if quick else MONTH_JOBS)
    tenths_s, months_s = [], []
    for part in range(1 if quick else ROUNDS):
        say(f"sim: {len(month):,} jobs of a month on {MONTH_NODES * NODE_CARDS} cards, and its tenths ({part + 1})")
        tenths_s.append([_time(month[first::10], MONTH_NODES // 10)[0] for first in range(10)])
        months_s.append(_time(month, MONTH_NODES)[0])
    tenth_s = fmean(min(each) for each in zip(*tenths_s, strict=True))
    report.add("jobs120k_cpu_s", min(months_s), Target(limit=40))
    report.add("growth_10x", min(months_s) / tenth_s, Target(limit=13))
    report.add("peak_mib", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, Target(limit=1024))


def make_month(jobs: Sequence[TraceJob], count: int) -> list[TraceJob]:
    """The first jobs of the month: the given ones at their pace made faster, and every so often one of them twice."""
    span_ns = max(1, jobs[-1].submit_ns - jobs[0].submit_ns)
    month = []
    for number in range(count):
        job = jobs[number * len(jobs) // MONTH_JOBS]
        submit_ns = (job.submit_ns - jobs[0].submit_ns) * MONTH_NS // span_ns
        month.append(replace(job, id=f"{number}", submit_ns=submit_ns))
    return month


def _time(jobs: Sequence[TraceJob], nodes: int) -> tuple[float, Result]:
    plan = Plan(nodes=tuple(NodeSpec(name=f"node{n}", cards=NODE_CARDS) for n in range(nodes)), order=ORDER)
    before = time.thread_time()
    result = simulate(jobs, plan)
    return time.thread_time() - before, result
