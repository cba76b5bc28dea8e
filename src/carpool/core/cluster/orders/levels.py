"""Levels of attained service: what the orders without knowledge of lengths have in common.

Service is two-dimensional: run time × cards. Level 0 ends at FIRST, level k at FIRST × GROWTH^k. A job that outlives
its level goes behind all jobs of that level, so short jobs pass long ones without anybody knowing which is which.
Many levels need cheap parking: each job is parked about once a level (Tiresias, NSDI 2019, has two or three).

Finer levels help when lengths differ widely and hurt when many long jobs are alike: those then take turns and all end
late. docs/results.md has the figures from which 4 was chosen over 2.
"""

from __future__ import annotations

from carpool.core.cluster.model import Job
from carpool.core.kernel.ids import Nanos
from carpool.units import SECOND

FIRST = 600 * SECOND * 1000  # nanoseconds × thousandths of a card: ten minutes of one card
GROWTH = 4
ENDS: tuple[int, ...] = tuple(FIRST * GROWTH**level for level in range(40))  # beyond any job


def raise_level(job: Job) -> None:
    """Bring the job to the level of what it has attained; never down again."""
    attained = job.attained_ns * job.size_milli
    while attained >= ENDS[job.level]:
        job.level += 1


def rest_of_level(job: Job) -> Nanos:
    """How much longer the job must run to outlive its level."""
    return -((job.attained_ns * job.size_milli - ENDS[job.level]) // max(1, job.size_milli))
