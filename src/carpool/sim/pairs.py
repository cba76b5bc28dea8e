"""How fast jobs go side by side on one card: what a simulation assumes of jobs that nobody measured together.

Jobs of Muri's traces say how long each stage of an iteration takes, and its published model says what that gives.
For all others: as the median pair that Gavel measured on a P100, whatever they are and however many.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import median

from carpool.sim.engine import Rates
from carpool.sim.studies.muri import together
from carpool.sim.traces import TraceJob, data_file, read_table

MILLI = 1000


@cache
def pair_busy_milli() -> int:
    """How much of an iteration the device works: two such jobs together go as fast as Gavel's median P100 pair."""
    _, rows = read_table(data_file("gavel2020/colocation.csv.gz"))
    sums = []
    for _, row in rows:
        if row["gpu"] == "p100" and float(row["shared_a"]) > 0 and float(row["shared_b"]) > 0:
            speeds = (float(row["shared_a"]) / float(row["alone_a"]), float(row["shared_b"]) / float(row["alone_b"]))
            sums.append(sum(speeds))
    return min(MILLI, round(MILLI / median(sums)))


def as_median_pair(jobs: Sequence[TraceJob]) -> tuple[int, ...]:
    """Everybody at the same speed; together as fast as the median pair."""
    return (min(MILLI, MILLI * MILLI // (len(jobs) * pair_busy_milli())),) * len(jobs)


def rates_for(jobs: Sequence[TraceJob]) -> Rates:
    """The speeds side by side that fit these jobs."""
    return together if all(job.stages_ns and job.iterations for job in jobs) else as_median_pair
