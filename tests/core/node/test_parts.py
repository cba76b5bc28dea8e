"""Tenants' parts of the time: guaranteed, at most, lent while idle, and counted."""

from __future__ import annotations

import pytest

from carpool.core.kernel.ids import TenantId
from carpool.core.node.model import JobState
from carpool.core.node.settings import Settings, TenantTerms
from carpool.units import MIB, MS, SECOND
from tests.core.node.driver import CoreDriver, MakeCore, needs

SMALL = needs(100 * MIB, 10 * MIB)
SPAN = 10 * SECOND


def with_parts(**parts: TenantTerms) -> Settings:
    tenants = {TenantId(name): terms for name, terms in parts.items()}
    return Settings(margin_percent=0, open_share_divisor=1, tenants=tenants)


def guaranteed(milli: int) -> TenantTerms:
    return TenantTerms(guaranteed_milli=milli)


def at_most(milli: int) -> TenantTerms:
    return TenantTerms(compute_milli_max=milli)


def parts(core: CoreDriver, *jobs: str, span: int = SPAN, step_ns: dict[str, int] | None = None) -> list[float]:
    """What part of the device, in percent, each had over the next while."""
    before = {job: core.served_ns(job) for job in jobs}
    core.run(span, step_ns=step_ns)
    return [(core.served_ns(job) - before[job]) * 100 / span for job in jobs]


@pytest.mark.parametrize("policy", ["fair", "fifo", "priority", "las"])
def test_n16_a_tenant_has_its_guaranteed_part_under_every_policy(make_core: MakeCore, policy: str) -> None:
    core = make_core(policy, settings=with_parts(vision=guaranteed(600), nlp=guaranteed(300)))
    for job, tenant in (("c", "other"), ("a", "vision"), ("b", "nlp")):
        core.settle_in(job, SMALL, tenant=tenant)
    core.run(2 * SECOND)
    had = parts(core, "a", "b", "c")
    assert had[0] >= 57 and had[1] >= 27
    assert sum(had) == pytest.approx(100, abs=1)


def test_n16_the_jobs_of_a_tenant_share_its_part(make_core: MakeCore) -> None:
    core = make_core(settings=with_parts(vision=guaranteed(600)))
    for job, tenant in (("a", "vision"), ("b", "vision"), ("c", "x"), ("d", "y")):
        core.settle_in(job, SMALL, tenant=tenant)
    core.run(2 * SECOND)
    had = parts(core, "a", "b", "c", "d")
    assert had == pytest.approx([30, 30, 20, 20], abs=4)


def test_n16_an_owner_that_comes_back_has_a_turn_at_the_next_boundary(make_core: MakeCore) -> None:
    core = make_core(settings=with_parts(vision=guaranteed(500)))
    core.settle_in("a", SMALL, tenant="vision")
    core.settle_in("b", SMALL, tenant="nlp")
    core.run(SECOND)
    while core.holders() != ["a"]:
        core.run(10 * MS)
    core.give_back("a", wants_more=False)
    core.run(5 * SECOND)
    core.ask("a")
    asked = core.now
    core.run(SECOND)
    assert (
        next(turn for turn in core.turns if turn.job == "a" and turn.granted_ns >= asked).granted_ns
        <= asked + SECOND // 5
    )
    assert parts(core, "a", "b") == pytest.approx([50, 50], abs=4)


def test_n16_the_reason_names_the_tenant_that_is_owed(make_core: MakeCore) -> None:
    core = make_core("fifo", settings=with_parts(vision=guaranteed(500)))
    core.settle_in("b", SMALL, tenant="nlp")
    core.settle_in("a", SMALL, tenant="vision")
    said = set()
    for _ in range(200):
        core.run(10 * MS)
        said.add(core.reason("b"))
    assert any("tenant vision is owed its 50 % of gpu0" in each for each in said), said


def test_n17_a_tenant_has_no_more_than_its_ceiling_although_nobody_else_wants_the_device(make_core: MakeCore) -> None:
    core = make_core(settings=with_parts(vision=at_most(300)))
    for job in ("a", "b"):
        core.settle_in(job, SMALL, tenant="vision")
    core.run(SECOND)
    assert sum(parts(core, "a", "b")) == pytest.approx(30, abs=2)
    waiting = [job for job in ("a", "b") if core.state(job) is JobState.WAITING]
    said = {core.reason(job) for job in waiting}
    for _ in range(100):
        core.run(10 * MS)
        said |= {core.reason(job) for job in ("a", "b") if core.state(job) is JobState.WAITING}
    assert any("tenant vision has had the 30 % of gpu0 that it may have; its next turn is due in" in s for s in said)
    assert core.job("a").spent_ns["limit"] > 2 * SECOND


def test_n17_a_ceiling_is_changed_in_both_directions(make_core: MakeCore) -> None:
    core = make_core()
    core.settle_in("a", SMALL, tenant="vision")
    core.run(SECOND)
    core.tenant("vision", at_most(200))
    core.run(SECOND)
    assert parts(core, "a") == pytest.approx([20], abs=2)
    core.tenant("vision", at_most(700))
    core.run(SECOND)
    assert parts(core, "a") == pytest.approx([70], abs=2)
    core.tenant("vision", None)
    core.run(SECOND)
    assert parts(core, "a") == pytest.approx([100], abs=1)


def test_n18_what_is_lent_is_what_is_borrowed_to_the_nanosecond(make_core: MakeCore) -> None:
    core = make_core(settings=with_parts(vision=guaranteed(500), nlp=guaranteed(250), absent=guaranteed(100)))
    core.settle_in("a", SMALL, tenant="vision")
    core.settle_in("b", SMALL, tenant="nlp")
    core.settle_in("c", SMALL, tenant="other")
    core.run(5 * SECOND)
    while core.holders() != ["a"]:
        core.run(10 * MS)
    core.give_back("a", wants_more=False)
    since = core.tenants()["vision"].lent_ns
    core.run(10 * SECOND)
    seen = core.tenants()
    assert seen["vision"].lent_ns - since == pytest.approx(5 * SECOND, rel=0.01)
    assert seen["absent"].lent_ns == pytest.approx(core.now // 10, rel=0.01)
    assert sum(each.lent_ns for each in seen.values()) == pytest.approx(
        sum(each.borrowed_ns for each in seen.values()), abs=len(seen)
    )
    assert core.job("c").borrowed_ns + core.job("b").borrowed_ns > 5 * SECOND
