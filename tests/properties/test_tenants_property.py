"""Tenants on one device, whatever they are guaranteed and whoever borrows: who owns a part has it in time, nobody is
ended for it, ceilings are kept, and what was lent is what was borrowed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.core.kernel.ids import TenantId
from carpool.core.node.effects import StopJob
from carpool.core.node.model import ENDED, JobState
from carpool.core.node.settings import Settings, TenantTerms
from carpool.units import GIB, MS, SECOND
from tests.core.node.driver import CoreDriver, SpecFields, needs, only
from tests.properties.effort import share_of_profile

pytestmark = pytest.mark.slow

RETURN_NS = Settings().return_ns
OWNERS = ("ana", "ben")
size = st.tuples(st.integers(1, 6), st.integers(0, 2))  # GiB that stay, GiB that come and go


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, int]:
    """What two of three tenants are guaranteed; a quarter at least is nobody's, where programs are first measured."""
    first = draw(st.integers(0, 15)) * 50
    return {"ana": first, "ben": draw(st.integers(0, (750 - first) // 50)) * 50}


def settings_of(parts: dict[str, int]) -> Settings:
    tenants = {TenantId(name): TenantTerms(guaranteed_milli=milli) for name, milli in parts.items()}
    return Settings(margin_percent=0, tenants=tenants)


def submit(core: CoreDriver, job: str, tenant: str, wanted: tuple[int, int], step_ns: int) -> None:
    program = f"program of {job}"
    core.remember(program, needs(wanted[0] * GIB, wanted[1] * GIB), step_ns=step_ns, served_ns=SECOND)
    fields: SpecFields = {"tenant": tenant, "fingerprint": program}
    core.submit(job, **fields)


def go_on(core: CoreDriver, span_ns: int, steps: dict[str, int]) -> None:
    """Everybody behaves; programs that were started ask for their turns."""
    end = core.now + span_ns
    while core.now < end:
        core.run(min(100 * MS, end - core.now), step_ns=steps)
        for job in core.scheduler.picture(now=core.now).jobs:
            if job.state is JobState.STARTING:
                core.ask(job.id)


@settings(max_examples=share_of_profile(30))
@given(
    parts=nodes(),
    borrowers=st.lists(st.tuples(size, st.integers(1, 80)), min_size=2, max_size=5),
    owner=st.sampled_from(OWNERS),
    policy=st.sampled_from(["fair", "fifo", "las", "priority"]),
    move_ns=st.sampled_from([MS, 100 * MS]),
)
def test_n22_who_is_owed_its_part_has_it_within_the_deadline_and_nobody_is_ended(
    parts: dict[str, int],
    borrowers: list[tuple[tuple[int, int], int]],
    owner: str,
    policy: str,
    move_ns: int,
) -> None:
    core = CoreDriver(policy, settings=settings_of(parts))
    core.move_ns = move_ns
    steps = {f"b{index}": length * MS for index, (_, length) in enumerate(borrowers)}
    for index, (wanted, length) in enumerate(borrowers):
        submit(core, f"b{index}", "other" if index % 3 else OWNERS[index % 2], wanted, length * MS)
    go_on(core, 3 * SECOND, steps)
    made = {job: core.job(job).steps for job in steps}
    part_gib = parts[owner] * 16 // 1000
    if part_gib:
        for each in [job for job in core.scheduler.picture(now=core.now).jobs if job.tenant == owner]:
            core.exit(each.id)  # its part is its newcomer's alone
        submit(core, "owner", owner, (part_gib, 0), 10 * MS)
        go_on(core, RETURN_NS, {**steps, "owner": 10 * MS})
        assert core.state("owner") is not JobState.QUEUED, core.reason("owner")
        go_on(core, 5 * SECOND, {**steps, "owner": 10 * MS})
        assert core.job("owner").spent_ns.get("parked", 0) == 0, "what is owned is not parked for others"
        had, span = core.served_ns("owner"), core.job("owner").spent_ns
        wanted_ns = span.get("turn", 0) + span.get("run", 0)
        assert had >= parts[owner] * wanted_ns // 1000 - SECOND // 2
    assert not only(core.effects, StopJob)
    assert all(core.job(job).steps >= made[job] for job in steps), "no iteration is lost"
    seen = core.tenants().values()
    assert sum(each.lent_byte_ns for each in seen) == sum(each.borrowed_byte_ns for each in seen)
    lent, borrowed = sum(each.lent_ns for each in seen), sum(each.borrowed_ns for each in seen)
    assert abs(lent - borrowed) <= len(seen), "to the nanosecond, but for what is rounded of each"


@settings(max_examples=share_of_profile(20))
@given(
    ceilings=st.lists(st.integers(2, 16), min_size=1, max_size=4),
    sizes=st.lists(size, min_size=2, max_size=6),
    jobs_max=st.none() | st.integers(1, 3),
)
def test_n15_n24_ceilings_are_kept_also_when_they_are_lowered_and_nobody_starves(
    ceilings: list[int], sizes: list[tuple[int, int]], jobs_max: int | None
) -> None:
    core = CoreDriver("fair", settings=Settings(margin_percent=0))
    jobs = [f"j{index}" for index in range(len(sizes))]
    for job, wanted in zip(jobs, sizes, strict=True):
        submit(core, job, "ana", wanted, 10 * MS)
    for gib in ceilings:
        core.tenant("ana", TenantTerms(memory_bytes_max=gib * GIB, jobs_max=jobs_max))
        go_on(core, 3 * SECOND, {})
        assert core.tenants()["ana"].promised_bytes <= gib * GIB
        for each in core.scheduler.picture(now=core.now).jobs:
            assert each.state is not JobState.QUEUED or "tenant ana" in each.reason or "memory" in each.reason
    assert not only(core.effects, StopJob)
    core.tenant("ana", None)
    for _ in range(40):
        go_on(core, SECOND, {})
        for each in core.scheduler.picture(now=core.now).jobs:
            if each.state not in ENDED and each.served_ns > SECOND // 4:
                core.exit(each.id)
        if all(core.state(job) in ENDED for job in jobs):
            break
    assert [job for job in jobs if core.state(job) not in ENDED] == []
