"""Jobs on a device that is too small for all of them: the books are right, everybody gets on, nobody thrashes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.core.node.model import AWAY, ENDED, JobState
from carpool.core.node.settings import Settings
from carpool.units import GIB, MS, SECOND
from tests.core.node.driver import CoreDriver, needs

pytestmark = pytest.mark.slow

QUARTER = GIB // 4
WARM_UP_SECONDS, SECONDS = 10, 25
size = st.tuples(st.integers(1, 40), st.integers(0, 8), st.integers(0, 2))  # in quarters of a GiB, of 16 GiB


@settings(max_examples=30)
@given(
    sizes=st.lists(size, min_size=2, max_size=5),
    policy=st.sampled_from(["fair", "las", "pack"]),
    host=st.sampled_from([None, 8, 24, 48]),
    move_ns=st.sampled_from([MS, 20 * MS, 80 * MS]),
)
def test_everybody_gets_on_within_every_budget(
    sizes: list[tuple[int, int, int]], policy: str, host: int | None, move_ns: int
) -> None:
    limit = host * GIB if host is not None else None
    core = CoreDriver(policy, settings=Settings(margin_percent=0, host_bytes_max=limit, quantum_ns=500 * MS))
    core.move_ns = move_ns
    jobs = [f"job{index}" for index in range(len(sizes))]
    for job, (persistent, ephemeral, overhead) in zip(jobs, sizes, strict=True):
        core.submit_known(job, needs(persistent * QUARTER, ephemeral * QUARTER, overhead_bytes=overhead * QUARTER))
    run(core, jobs, WARM_UP_SECONDS, limit)
    before = {job: core.served_ns(job) for job in jobs}
    moving = sum(core.job(job).spent_ns.get("move", 0) for job in jobs)
    run(core, jobs, SECONDS, limit)
    moved = sum(core.job(job).spent_ns.get("move", 0) for job in jobs) - moving
    assert moved <= 0.15 * len(jobs) * SECONDS * SECOND
    late = [job for job in jobs if core.state(job) is not JobState.QUEUED and core.served_ns(job) == before[job]]
    if policy != "pack" and limit is None:
        assert late == [], [f"{job} is {core.state(job)}: {core.reason(job)}" for job in late]
    for job in late:  # where little can move, or jobs run side by side, it may have to wait until others end
        for other in jobs:
            if other != job and core.state(other) not in ENDED:
                core.exit(other)
        run(core, jobs, WARM_UP_SECONDS, limit)
        assert core.served_ns(job) > before[job], f"{job} is {core.state(job)}: {core.reason(job)}"
        break


def run(core: CoreDriver, jobs: list[str], seconds: int, limit: int | None) -> None:
    """The driver checks every rule after every event; here, what is said of bytes that are away."""
    for _ in range(seconds * 2):
        core.run(500 * MS)
        for job in jobs:
            if core.state(job) is JobState.STARTING:
                core.ask(job)
        pictures = [core.job(job) for job in jobs]
        assert limit is None or sum(job.parked_bytes for job in pictures) <= limit
        assert all(not job.parked_bytes or job.state in AWAY for job in pictures)
        assert all(job.lane is None for job in pictures if job.state is JobState.PARKED)
