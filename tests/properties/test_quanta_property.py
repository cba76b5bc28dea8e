"""Whatever a change of turn costs each job and however long its steps are: who comes new has its first turn within
the bound, and who takes turns with equals waits no longer than it for the next."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.core.node.accounts import TURN_NS
from carpool.units import MIB, MS, SECOND
from tests.core.node.driver import EXACT, CoreDriver, needs

KNOWN = needs(100 * MIB, 10 * MIB)


@settings(max_examples=25, deadline=None)
@given(
    costs_ms=st.lists(st.integers(-10, 300), min_size=1, max_size=6),
    steps_ms=st.lists(st.integers(1, 50), min_size=7, max_size=7),
    latency_ms=st.integers(300, 4000),
    policy=st.sampled_from(["fair", "las", "priority"]),
    arrives_ms=st.integers(0, 3000),
)
def test_d9_nobody_waits_longer_than_the_bound(
    costs_ms: list[int], steps_ms: list[int], latency_ms: int, policy: str, arrives_ms: int
) -> None:
    core = CoreDriver(policy, settings=replace(EXACT, latency_ns=latency_ms * MS))
    jobs = [f"j{number}" for number in range(len(costs_ms))]
    lengths = {job: step * MS for job, step in zip([*jobs, "new"], steps_ms, strict=False)}
    for job, cost_ms in zip(jobs, costs_ms, strict=True):
        core.change_ns[job] = cost_ms * MS
        core.settle_in(job, KNOWN)
    core.run(12 * SECOND + arrives_ms * MS, step_ns=lengths)
    core.settle_in("new", KNOWN)
    came_ns = core.now
    core.run(10 * SECOND, step_ns=lengths)
    longest = max(lengths.values())
    bound_ns = max(latency_ms * MS, len(jobs) * (TURN_NS + longest)) + longest * (len(jobs) + 1)
    first = next(turn.granted_ns for turn in core.turns if turn.job == "new")
    assert first - came_ns <= bound_ns
    if policy != "las":  # which lets a newcomer catch up with what the others have had
        for job in jobs:
            assert core.longest_gap_ns(job, since_ns=came_ns) <= bound_ns + 2 * SECOND + 2 * longest
