"""Memory that tenants are guaranteed: lent while it is idle, given back in time; ceilings that are lowered."""

from __future__ import annotations

import pytest

from carpool.core.kernel.ids import TenantId
from carpool.core.node.effects import ExplainWait, ParkJob, StartJob, StopJob
from carpool.core.node.model import JobState, Needs, Why
from carpool.core.node.settings import Settings, TenantTerms
from carpool.units import GIB, MIB, MS, SECOND
from tests.core.node.driver import CoreDriver, MakeCore, SpecFields, needs, only

STEP_NS = 10 * MS


def with_parts(**parts: int) -> Settings:
    tenants = {TenantId(name): TenantTerms(guaranteed_milli=milli) for name, milli in parts.items()}
    return Settings(margin_percent=0, tenants=tenants)


def known(
    core: CoreDriver, job: str, size: Needs, tenant: str, *, step_ns: int = STEP_NS, may_park: bool = True
) -> None:
    """A job whose program ran before: how much it needs and how long its steps are is known."""
    core.remember(f"program of {job}", size, step_ns=step_ns, served_ns=SECOND)
    fields: SpecFields = {"tenant": tenant, "fingerprint": f"program of {job}", "may_park": may_park}
    core.submit(job, **fields)
    if core.state(job) is JobState.STARTING:
        core.ask(job)


def borrowers(core: CoreDriver, *jobs: str) -> None:
    """Jobs of a tenant without a guarantee take all of the device."""
    for job in jobs:
        known(core, job, needs(5 * GIB, GIB), "vision")
    core.run(2 * SECOND)


def test_n19_what_is_idle_is_lent(make_core: MakeCore) -> None:
    core = make_core(settings=with_parts(nlp=500))
    borrowers(core, "a", "b", "c")
    assert [core.state(job) is not JobState.QUEUED for job in ("a", "b", "c")] == [True] * 3
    assert sum(core.served_ns(job) for job in ("a", "b", "c")) == pytest.approx(2 * SECOND, rel=0.01)


@pytest.mark.parametrize("policy", ["fair", "fifo", "las", "priority"])
def test_n22_an_owner_that_comes_has_its_part_in_time_and_borrowers_lose_no_iteration(
    make_core: MakeCore, policy: str
) -> None:
    core = make_core(policy, settings=with_parts(nlp=500))
    borrowers(core, "a", "b", "c")
    steps = dict(core.steps)
    known(core, "o", needs(7 * GIB, GIB), "nlp")
    asked = core.now
    assert core.state("o") is JobState.QUEUED
    assert "left the device, being parked for it at the next boundary" in core.reason("o")
    while core.state("o") is JobState.QUEUED:
        core.run(10 * MS)
    assert core.now - asked <= 200 * MS
    core.ask("o")
    core.run(3 * SECOND)
    assert core.served_ns("o") >= 1.4 * SECOND, "its half of the time, too"
    parked = [job for job in ("a", "b", "c") if core.state(job) is JobState.PARKED]
    assert len(parked) >= 1
    assert all(core.job(job).parked_bytes == 5 * GIB for job in parked)
    assert not only(core.effects, StopJob)
    assert all(core.steps[job] >= steps[job] for job in steps)
    core.exit("o")
    core.run(SECOND)
    assert all(core.state(job) is not JobState.PARKED for job in ("a", "b", "c")), "they come back by themselves"


def test_n22_as_few_as_needed_are_parked_and_first_of_the_tenant_furthest_above_its_part(make_core: MakeCore) -> None:
    core = make_core(settings=with_parts(nlp=400, lab=250))
    known(core, "own", needs(3 * GIB, 0), "lab")
    known(core, "far1", needs(5 * GIB, 0), "vision")
    known(core, "far2", needs(4 * GIB, 0), "vision")
    known(core, "near", needs(3 * GIB, 0), "audio")
    core.run(2 * SECOND)
    known(core, "o", needs(4 * GIB, 0), "nlp")
    assert [job for job in ("own", "far1", "far2", "near") if Why.LENT in core.job(job).departures] in (
        ["far2"],
        ["far1"],
    )
    core.run(SECOND)
    assert core.state("o") is not JobState.QUEUED
    assert core.state("own") is not JobState.PARKED


def test_n19_nobody_parks_an_owned_job_of_another_tenant(make_core: MakeCore) -> None:
    core = make_core(settings=with_parts(nlp=500))
    known(core, "own", needs(7 * GIB, GIB), "nlp")
    known(core, "a", needs(6 * GIB, GIB), "vision")
    known(core, "b", needs(6 * GIB, GIB), "vision")
    for _ in range(60):
        core.run(SECOND // 2)
        if core.state("b") is JobState.STARTING:
            core.ask("b")
    assert core.job("own").spent_ns.get("parked", 0) == core.job("own").spent_ns.get("move", 0) == 0
    assert core.served_ns("own") >= 14 * SECOND
    assert core.served_ns("a") > SECOND and core.served_ns("b") > SECOND, "the others rotate among each other"


def test_n20_while_somebody_is_owed_room_nobody_else_is_given_any(make_core: MakeCore) -> None:
    core = make_core(settings=with_parts(nlp=500))
    borrowers(core, "a", "b")
    known(core, "o", needs(8 * GIB, 0), "nlp")
    assert core.state("o") is JobState.QUEUED
    core.submit("late", tenant="vision", cap_bytes=GIB)
    assert core.state("late") is JobState.QUEUED
    assert "room is being made for o" in core.reason("late")
    core.run(SECOND)
    assert core.state("o") is not JobState.QUEUED


def test_n21_a_job_that_cannot_promise_a_boundary_gets_no_loan(make_core: MakeCore) -> None:
    core = make_core(settings=with_parts(nlp=750))
    core.submit("new", tenant="vision", cap_bytes=6 * GIB)
    known(core, "slow", needs(6 * GIB, 0), "vision", step_ns=60 * SECOND)
    known(core, "fixed", needs(6 * GIB, 0), "vision", may_park=False)
    for job in ("new", "slow", "fixed"):
        assert core.state(job) is JobState.QUEUED
        assert "4.00 GiB of gpu0 is guaranteed to nobody, and with it 6.00 GiB would be held by jobs" in core.reason(
            job
        )
        assert "give it back within 10.0 s" in core.reason(job)
    known(core, "good", needs(6 * GIB, 0), "vision")
    core.submit("small", tenant="vision", cap_bytes=4 * GIB)
    assert core.state("good") is JobState.WAITING or core.state("good") is JobState.RUNNING
    assert core.state("small") is JobState.STARTING, "what is guaranteed to nobody is for everybody"


def test_n21_a_new_program_has_the_common_part_and_more_once_it_was_measured(make_core: MakeCore) -> None:
    core = make_core(settings=with_parts(nlp=750))
    core.submit("first", tenant="vision", cap_bytes=4 * GIB)
    core.submit("second", tenant="vision", cap_bytes=4 * GIB)
    assert core.state("second") is JobState.QUEUED
    core.ask("first")
    core.report("first", steps=2, live_bytes=GIB)
    core.measure("first", needs(3 * GIB, GIB), step_ns=STEP_NS)
    core.run(100 * MS)
    assert core.state("second") is JobState.STARTING


def test_n23_a_borrower_that_rests_is_parked_the_moment_it_asks(make_core: MakeCore) -> None:
    core = make_core(settings=with_parts(nlp=500))
    borrowers(core, "a", "b")
    core.run(10 * MS)
    for job in ("a", "b"):
        if core.state(job) is JobState.WAITING:
            core.run(2 * SECOND)
    core.give_back(core.holders()[0], wants_more=False)
    core.give_back(core.holders()[0], wants_more=False)
    core.look_for(5 * SECOND)
    known(core, "o", needs(7 * GIB, GIB), "nlp")
    held = [job for job in ("a", "b") if Why.LENT in core.job(job).departures]
    assert held and core.state("o") is JobState.QUEUED
    assert "its memory is lent to it by tenant nlp, which wants it back" in core.reason(held[0])
    assert [each.job for each in only(core.ask(held[0]), ParkJob)] == [held[0]]
    core.run(SECOND)
    assert core.state("o") is not JobState.QUEUED


def test_n25_memory_that_is_lent_is_counted_exactly(make_core: MakeCore) -> None:
    core = make_core(settings=with_parts(nlp=500, lab=250))
    borrowers(core, "a", "b")
    known(core, "own", needs(2 * GIB, 0), "lab")
    core.run(SECOND)
    seen = core.tenants()
    assert seen["vision"].borrowed_bytes == 7 * GIB, "11 GiB, of which 4 are guaranteed to nobody"
    assert seen["lab"].lent_bytes == pytest.approx(7 * GIB * 2 // 10, abs=1), "it has 2 of its 4"
    assert seen["nlp"].lent_bytes == pytest.approx(7 * GIB * 8 // 10, abs=1)
    since = core.now
    core.run(SECOND)
    more = core.tenants()["vision"].borrowed_byte_ns - seen["vision"].borrowed_byte_ns
    assert more == 7 * GIB * (core.now - since)
    known(core, "o", needs(8 * GIB, 0), "nlp")
    core.run(2 * SECOND)
    seen = core.tenants()
    assert sum(each.lent_byte_ns for each in seen.values()) == sum(each.borrowed_byte_ns for each in seen.values())
    assert seen["nlp"].lent_bytes == 0
    for tenant in ("nlp", "lab"):
        core.tenant(tenant, None)
    before = core.tenants()["vision"].borrowed_byte_ns
    core.run(SECOND)
    assert core.tenants()["vision"].borrowed_byte_ns == before, "where nobody is guaranteed anything nobody borrows"


def test_n24_who_is_above_a_lowered_ceiling_leaves_at_its_boundary_and_comes_back(make_core: MakeCore) -> None:
    core = make_core(settings=Settings(margin_percent=0))
    for job in ("a", "b", "c"):
        known(core, job, needs(3 * GIB, GIB), "vision")
    known(core, "x", needs(GIB, GIB), "nlp")
    core.run(SECOND)
    core.tenant("vision", TenantTerms(memory_bytes_max=7 * GIB + MIB))
    core.run(SECOND)
    assert [core.state(job) is JobState.PARKED for job in ("a", "b", "c")] == [False, False, True]
    assert "waits for tenant vision's ceiling of memory, which was lowered" in core.reason("c")
    effects = core.submit("d", tenant="vision", cap_bytes=MIB)
    assert [each.reason for each in only(effects, ExplainWait)] == [
        "waits for tenant vision's ceiling of 7.00 GiB: c of the same tenant is held back by it and goes first"
    ]
    core.exit("a")
    core.run(SECOND)
    assert core.state("c") is not JobState.PARKED
    assert [each.job for each in only(core.effects, StartJob)][-1] == "d"
    assert not only(core.effects, StopJob)
