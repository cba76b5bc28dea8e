"""Whatever shares jobs ask for and however long their steps are: nobody has more than his limit, and everybody who is
guaranteed something has it, within a step and three hundredths of the time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.core.node.turns.shares import BURST_NS
from carpool.units import MIB, MS, SECOND
from tests.core.node.driver import CoreDriver, needs

SPAN = 5 * SECOND
LEEWAY = 3 * SPAN // 100


@st.composite
def jobs(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Guarantee, limit and length of a step; a tenth of the device is nobody's, for steps that run over."""
    left, made = 900, []
    for _ in range(draw(st.integers(1, 4))):
        least = draw(st.integers(0, left))
        left -= least
        made.append((least, draw(st.integers(max(50, least), 1000)), draw(st.integers(1, 30)) * MS))
    return made


@settings(max_examples=25)
@given(asked=jobs(), policy=st.sampled_from(["fair", "fifo", "las", "priority"]))
def test_shares_are_kept(asked: list[tuple[int, int, int]], policy: str) -> None:
    core = CoreDriver(policy)
    lengths = {f"j{number}": step_ns for number, (_, _, step_ns) in enumerate(asked)}
    for job, (least, most, _) in zip(lengths, asked, strict=True):
        core.submit_known(job, needs(100 * MIB, 10 * MIB), guaranteed_milli=least, limit_milli=most)
        core.ask(job)
    core.run(SECOND, step_ns=lengths)
    before = {job: core.served_ns(job) for job in lengths}
    core.run(SPAN, step_ns=lengths)
    longest = max(lengths.values())
    for job, (least, most, step_ns) in zip(lengths, asked, strict=True):
        had = core.served_ns(job) - before[job]
        assert had <= most * (SPAN + BURST_NS) // 1000 + 2 * step_ns
        assert had >= least * SPAN // 1000 - LEEWAY - 2 * longest
