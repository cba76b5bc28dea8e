"""How many decisions a second one node's scheduler makes, with a thousand jobs in the queue.

Eight jobs take turns on one device; a thousand more are queued because they do not fit. Each turn that comes back is
one decision: the books, the choice of the next job, its grant. CPU time of the thread.
"""

from __future__ import annotations

import time

from carpool.bench.report import Report, Say, Target
from carpool.core.kernel.ids import DeviceId, JobId, TenantId
from carpool.core.node.events import DeviceAdded, JobSubmitted, LeaseAsked, LeaseReturned
from carpool.core.node.model import JobSpec, JobState
from carpool.core.node.scheduler import Scheduler
from carpool.core.node.settings import Settings
from carpool.policies import POLICIES
from carpool.units import GIB, MS

RESIDENT = 8
QUEUED = 1000
TURNS = 20_000
QUICK_TURNS, QUICK_QUEUED = 500, 50  # each job that is queued costs a look at all before it
MEASURED = ("fair", "srtf")


def measure_node(report: Report, say: Say, *, quick: bool) -> None:
    turns, queued = (QUICK_TURNS, QUICK_QUEUED) if quick else (TURNS, QUEUED)
    for policy in MEASURED:
        say(f"sim: {turns:,} turns of {RESIDENT} jobs under {policy}, {queued:,} jobs queued")
        name = "node_decisions_per_s" if policy == MEASURED[0] else f"node_decisions_per_s_{policy}"
        report.add(name, turns / _spend(policy, turns, queued), Target(limit=20_000, is_least=True))


def _spend(policy: str, turns: int, queued: int) -> float:
    scheduler = Scheduler(POLICIES[policy], Settings())
    scheduler.handle(DeviceAdded(device=DeviceId("gpu0"), capacity_bytes=16 * GIB), now=0)
    for number in range(RESIDENT + queued):
        job = JobId(f"job{number}")
        cap_bytes = GIB if number < RESIDENT else 15 * GIB
        spec = JobSpec(name=job, tenant=TenantId(f"tenant{number % 4}"), cap_bytes=cap_bytes)
        scheduler.handle(JobSubmitted(job=job, spec=spec), now=0)
        if scheduler.state_of(job) is JobState.STARTING:
            scheduler.handle(LeaseAsked(job=job), now=0)
    began = time.thread_time()
    for number in range(turns):
        (holder,) = scheduler.holders()
        scheduler.handle(LeaseReturned(job=holder, wants_more=True, steps=number + 1), now=(number + 1) * 100 * MS)
    return time.thread_time() - began
