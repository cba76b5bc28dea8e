"""What is said of tenants: taken in, refused, changed while jobs run; ceilings of jobs, devices and bytes."""

from __future__ import annotations

import pytest

from carpool.core.kernel.ids import DeviceId, TenantId
from carpool.core.node.effects import ExplainWait, RefuseJob, RejectEvent, StartJob
from carpool.core.node.model import JobState
from carpool.core.node.settings import Settings, TenantTerms
from carpool.units import GIB, MIB, SECOND
from tests.core.node.driver import CoreDriver, MakeCore, needs, only

SMALL = needs(100 * MIB, 10 * MIB)
VISION = TenantId("vision")


def with_terms(terms: TenantTerms, **others: TenantTerms) -> Settings:
    tenants = {VISION: terms, **{TenantId(name): each for name, each in others.items()}}
    return Settings(margin_percent=0, open_share_divisor=1, tenants=tenants)


def refused(core: CoreDriver, tenant: str, terms: TenantTerms | None) -> str:
    effects = core.tenant(tenant, terms)
    return only(effects, RejectEvent)[0].reason if effects else ""


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        (TenantTerms(weight_milli=0), "the weight of tenant vision must be at least 1"),
        (TenantTerms(jobs_max=-1), "the number of jobs of tenant vision must be at least 0"),
        (TenantTerms(memory_bytes_max=0), "the ceiling of memory of tenant vision must be at least 1"),
        (TenantTerms(compute_milli_max=1001), "a ceiling is at most 100 %"),
        (TenantTerms(guaranteed_milli=500, compute_milli_max=400), "a guarantee at most the ceiling"),
        (TenantTerms(priorities=(3, 1)), "go from 3 to 1; say the lower one first"),
        (TenantTerms(order="pack"), "cannot go by pack; there are fair, fifo, las, priority, srtf"),
        (TenantTerms(devices=(DeviceId("gpu9"),)), "there is no such device; there are gpu0"),
    ],
)
def test_n10_terms_that_make_no_sense_are_rejected_and_change_nothing(
    core: CoreDriver, terms: TenantTerms, said: str
) -> None:
    assert said in refused(core, "vision", terms)
    core.submit_known("a", SMALL, tenant="vision")
    assert core.state("a") is JobState.STARTING


def test_n12_more_than_the_whole_device_is_not_guaranteed(core: CoreDriver) -> None:
    assert refused(core, "vision", TenantTerms(guaranteed_milli=600)) == ""
    assert "60 % of each device: 40 % is not guaranteed" in refused(core, "nlp", TenantTerms(guaranteed_milli=600))
    assert refused(core, "nlp", TenantTerms(guaranteed_milli=400)) == ""
    assert refused(core, "vision", None) == ""
    assert refused(core, "nlp", TenantTerms(guaranteed_milli=1000)) == ""
    assert "name them" in refused(core, "", TenantTerms(guaranteed_milli=1))


def test_n11_a_priority_above_the_allowed_ones_is_refused_and_one_below_is_raised(make_core: MakeCore) -> None:
    core = make_core("priority", settings=with_terms(TenantTerms(priorities=(1, 5))))
    refusal = only(core.submit("a", tenant="vision", priority=9), RefuseJob)[0]
    assert refusal.reason == (
        "job a asks for priority 9, and tenant vision may use 1 to 5; submit it with --priority 5 or less"
    )
    core.submit("b", tenant="vision")
    core.submit("c", tenant="other", priority=9)
    assert (core.job("b").priority, core.job("c").priority) == (1, 9)


def test_n11_priorities_change_with_what_is_said_of_the_tenant(make_core: MakeCore) -> None:
    core = make_core("priority")
    core.submit_known("a", SMALL, tenant="vision", priority=9)
    core.tenant("vision", TenantTerms(priorities=(0, 5)))
    assert core.job("a").priority == 5


def test_n10_a_weight_counts_from_now_on(make_core: MakeCore) -> None:
    core = make_core(settings=Settings(margin_percent=0, tenant_weights_milli={"nlp": 1000}))
    for job, tenant in (("a", "vision"), ("b", "nlp")):
        core.settle_in(job, SMALL, tenant=tenant)
    core.run(10 * SECOND)
    assert core.served_ns("a") == pytest.approx(core.served_ns("b"), rel=0.05)
    core.tenant("vision", TenantTerms(weight_milli=3000))
    before = core.served_ns("a"), core.served_ns("b")
    core.run(20 * SECOND)
    assert (core.served_ns("a") - before[0]) / (core.served_ns("b") - before[1]) == pytest.approx(3, rel=0.1)


def test_n13_the_jobs_of_a_tenant_go_in_its_own_order(make_core: MakeCore) -> None:
    core = make_core(settings=with_terms(TenantTerms(order="fifo")))
    for job, tenant in (("a", "vision"), ("b", "vision"), ("c", "nlp"), ("d", "nlp")):
        core.settle_in(job, SMALL, tenant=tenant)
    core.run(10 * SECOND)
    assert core.served_ns("b") < SECOND < core.served_ns("a")
    assert core.served_ns("c") == pytest.approx(core.served_ns("d"), rel=0.1)
    assert "a came first" in core.reason("b") or "for its turn" in core.reason("b")


def test_n14_the_next_job_waits_while_as_many_as_its_tenant_may_have_are_started(make_core: MakeCore) -> None:
    core = make_core(settings=with_terms(TenantTerms(jobs_max=2)))
    for job in ("a", "b"):
        assert only(core.submit_known(job, SMALL, tenant="vision"), StartJob)
    effects = core.submit_known("c", SMALL, tenant="vision")
    said = "waits for tenant vision's number of jobs: 2 jobs are started, and it may have 2 at once"
    assert [each.reason for each in only(effects, ExplainWait)] == [said]
    assert core.reason("c") == said
    assert only(core.submit_known("d", SMALL, tenant="nlp"), StartJob)
    assert [each.job for each in only(core.exit("a"), StartJob)] == ["c"]


def test_n14_a_number_of_jobs_is_changed_in_both_directions(core: CoreDriver) -> None:
    for job in ("a", "b"):
        core.settle_in(job, SMALL, tenant="vision")
    core.tenant("vision", TenantTerms(jobs_max=1))
    core.submit_known("c", SMALL, tenant="vision")
    core.run(SECOND)
    assert core.served_ns("b") and core.state("c") is JobState.QUEUED
    core.exit("a")
    assert core.state("c") is JobState.QUEUED
    assert [each.job for each in only(core.tenant("vision", None), StartJob)] == ["c"]


def test_n14_a_tenant_starts_only_on_its_devices(make_core: MakeCore) -> None:
    core = make_core(settings=with_terms(TenantTerms(devices=(DeviceId("gpu1"),))), devices=2)
    assert only(core.submit_known("a", SMALL, tenant="vision"), StartJob)[0].device == "gpu1"
    refusal = only(core.submit("b", tenant="vision", device="gpu0"), RefuseJob)[0]
    assert "asks for gpu0, and tenant vision may use gpu1" in refusal.reason
    core.tenant("vision", TenantTerms(devices=(DeviceId("gpu0"),)))
    core.submit_known("c", SMALL, tenant="vision")
    assert core.job("c").device == "gpu0"
    core.ask("a")
    assert core.holders() == ["a"], "what is there goes on"


def test_n15_a_job_waits_for_its_tenants_ceiling_of_memory(make_core: MakeCore) -> None:
    core = make_core(settings=with_terms(TenantTerms(memory_bytes_max=8 * GIB)))
    core.settle_in("a", needs(3 * GIB, 2 * GIB), tenant="vision")
    core.settle_in("b", needs(2 * GIB, 2 * GIB), tenant="vision")
    core.submit_known("c", needs(2 * GIB, 2 * GIB), tenant="vision")
    assert core.reason("c") == (
        "waits for tenant vision's ceiling of 8.00 GiB: it needs 4.00 GiB, and 7.00 GiB are promised to the tenant's"
        " jobs"
    )
    core.submit_known("d", needs(2 * GIB, 2 * GIB), tenant="nlp")
    assert core.state("d") is JobState.STARTING
    core.exit("b")
    assert core.state("c") is JobState.STARTING


def test_n15_what_can_never_fit_under_the_ceiling_is_refused(make_core: MakeCore) -> None:
    core = make_core(settings=with_terms(TenantTerms(memory_bytes_max=8 * GIB)))
    refusal = only(core.submit("a", tenant="vision", cap_bytes=9 * GIB), RefuseJob)[0]
    assert "it asks for 9.00 GiB, and tenant vision may have 8.00 GiB" in refusal.reason


def test_n15_a_job_of_unknown_size_is_promised_and_may_hold_no_more_than_the_ceiling_leaves(
    make_core: MakeCore,
) -> None:
    core = make_core(settings=with_terms(TenantTerms(memory_bytes_max=8 * GIB)))
    core.submit("a", tenant="vision")
    assert core.job("a").promised_bytes == 8 * GIB
    assert core.caps["a"] == 8 * GIB
    core.ask("a")
    core.measure("a", needs(3 * GIB, GIB))
    core.settle_in("b", needs(3 * GIB, GIB), tenant="vision")
    core.run(SECOND)
    assert core.caps["a"] == 5 * GIB
