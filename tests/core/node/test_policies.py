"""What each policy promises, seen over many turns of jobs that behave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carpool.core.kernel.ids import JobId, Nanos, TenantId
from carpool.core.node import accounts
from carpool.core.node.effects import GrantLease, RecallLease
from carpool.core.node.events import ProgressSeen
from carpool.core.node.settings import Settings
from carpool.core.policies.priority import Priority
from carpool.core.policies.view import JobView
from carpool.policies import POLICIES, names_for
from carpool.units import GIB, MS, SECOND
from tests.core.node.driver import EXACT, NOBODY_MOVES, CoreDriver, MakeCore, needs, only

SMALL = needs(GIB // 8, GIB)


def share_of(core: CoreDriver, *jobs: str, since: dict[str, Nanos] | None = None) -> list[float]:
    """The parts of the device time these jobs had, since an earlier look at it."""
    earlier = since or {}
    spans = [core.served_ns(job) - earlier.get(job, 0) for job in jobs]
    return [span / sum(spans) for span in spans]


def view(job: str, *, served_ns: Nanos = 0, arrived_ns: Nanos = 0, waited_ns: Nanos = 0) -> JobView:
    return JobView(
        id=JobId(job),
        name=job,
        tenant=TenantId("default"),
        priority=0,
        arrived_ns=arrived_ns,
        is_holding=False,
        held_ns=0,
        waited_ns=waited_ns,
        served_ns=served_ns,
        remaining_ns=served_ns,
        remaining_is_known=False,
        level=served_ns,
        tenant_level=served_ns,
        size_milli=1000,
    )


@pytest.mark.parametrize("name", names_for("node"))
def test_every_policy_has_the_name_it_is_listed_under(name: str) -> None:
    assert POLICIES[name].name == name


@pytest.mark.parametrize("name", names_for("node"))
def test_every_policy_picks_nobody_of_nobody_and_the_only_one_of_one(name: str) -> None:
    assert accounts.first(POLICIES[name], [], now=0) is None
    assert accounts.first(POLICIES[name], [view("a")], now=0) == "a"


@pytest.mark.parametrize("name", names_for("node"))
def test_the_order_of_the_views_does_not_change_the_choice(name: str) -> None:
    views = [view("a", arrived_ns=2), view("b", arrived_ns=1), view("c", arrived_ns=1), view("d", served_ns=1)]
    choices = {accounts.first(POLICIES[name], order, now=0) for order in (views, views[::-1], views[2:] + views[:2])}
    assert len(choices) == 1


@pytest.mark.parametrize("name", names_for("node"))
def test_the_reason_of_a_policy_names_the_job_it_prefers_or_its_tenant(name: str) -> None:
    assert "first" in POLICIES[name].why(view("first"), view("second", served_ns=SECOND, arrived_ns=1))


def test_equals_under_fair_are_not_said_to_be_behind() -> None:
    first, second = view("first"), view("second")
    assert POLICIES["fair"].why(first, second) == "both have had their share, and first came first"
    other = second._replace(tenant=TenantId("other"))
    assert "have had the same" in POLICIES["fair"].why(first, other)


def test_srtf_says_why_it_keeps_a_longer_guess() -> None:
    holder = view("holder", served_ns=60 * MS)._replace(is_holding=True)
    other = view("other", served_ns=20 * MS)
    assert accounts.first(POLICIES["srtf"], [holder, other], now=0) == holder.id
    assert "only for what is shorter by more than 50 ms" in POLICIES["srtf"].why(holder, other)


# --- fifo ---------------------------------------------------------------------------------------------------


def test_fifo_runs_the_first_job_to_its_end(make_core: MakeCore) -> None:
    core = make_core("fifo")
    core.settle_in("a", SMALL)
    core.settle_in("b", SMALL)
    core.run(5 * SECOND)
    assert core.served_ns("b") == 0
    assert only(core.exit("a"), GrantLease)[0].job == "b"


def test_fifo_lets_others_fill_in_while_the_first_wants_no_turn(make_core: MakeCore) -> None:
    core = make_core("fifo")
    core.settle_in("a", SMALL)
    core.settle_in("b", SMALL)
    assert only(core.give_back("a", wants_more=False), GrantLease)[0].job == "b"
    core.wait(10 * MS)
    [recall] = only(core.ask("a"), RecallLease)
    assert (recall.job, recall.reason) == ("b", "fifo: a came first")
    assert only(core.give_back("b"), GrantLease)[0].job == "a"


# --- fair ---------------------------------------------------------------------------------------------------


def test_fair_gives_equal_jobs_equal_time(make_core: MakeCore) -> None:
    core = make_core("fair")
    for job in "abc":
        core.settle_in(job, SMALL)
    core.run(30 * SECOND)
    assert share_of(core, "a", "b", "c") == pytest.approx([1 / 3, 1 / 3, 1 / 3], abs=0.01)


def test_fair_gives_equal_time_whatever_the_length_of_a_step(make_core: MakeCore) -> None:
    core = make_core("fair")
    core.settle_in("a", SMALL)
    core.settle_in("b", SMALL)
    core.run(60 * SECOND, step_ns={"a": 300 * MS, "b": 5 * MS})
    assert share_of(core, "a", "b") == pytest.approx([0.5, 0.5], abs=0.02)


@pytest.mark.parametrize("weight_milli", [500, 2000, 3000])
def test_fair_gives_time_by_weight_over_many_turns(make_core: MakeCore, weight_milli: int) -> None:
    core = make_core("fair")
    core.settle_in("a", SMALL, weight_milli=weight_milli)
    core.settle_in("b", SMALL)
    core.run(60 * SECOND)
    expected = weight_milli / (weight_milli + 1000)
    assert share_of(core, "a", "b") == pytest.approx([expected, 1 - expected], abs=0.01)


def test_fair_gives_ten_jobs_of_one_tenant_one_tenants_share(make_core: MakeCore) -> None:
    core = make_core("fair")
    many = [f"many{index}" for index in range(10)]
    for job in many:
        core.settle_in(job, SMALL, tenant="crowd")
    core.settle_in("one", SMALL, tenant="single")
    core.run(60 * SECOND)
    assert share_of(core, "one", *many)[0] == pytest.approx(0.5, abs=0.01)
    assert share_of(core, *many) == pytest.approx([0.1] * 10, abs=0.01)


def test_fair_does_not_let_a_newcomer_catch_up_with_what_others_had_before_it_came(make_core: MakeCore) -> None:
    core = make_core("fair")
    core.settle_in("old", SMALL)
    core.run(100 * SECOND)
    before = core.now
    core.settle_in("new", SMALL)
    core.run(20 * SECOND)
    assert share_of(core, "old", "new", since={"old": 100 * SECOND}) == pytest.approx([0.5, 0.5], abs=0.02)
    assert core.longest_gap_ns("old", since_ns=before) <= 400 * MS


def test_fair_clamps_a_newcomer_of_another_tenant_too(make_core: MakeCore) -> None:
    core = make_core("fair")
    core.settle_in("old", SMALL, tenant="t1")
    core.run(100 * SECOND)
    before = core.now
    core.settle_in("new", SMALL, tenant="t2")
    core.run(20 * SECOND)
    assert core.longest_gap_ns("old", since_ns=before) <= 400 * MS


@pytest.mark.parametrize("jobs", [1, 3])
def test_fair_gives_tenants_by_their_weights_however_many_jobs_they_have(make_core: MakeCore, jobs: int) -> None:
    core = make_core("fair", settings=replace(EXACT, tenant_weights_milli={"ana": 2000, "cid": 500}))
    many = [f"ana{index}" for index in range(jobs)]
    for job in many:
        core.settle_in(job, SMALL, tenant="ana")
    core.settle_in("ben", SMALL, tenant="ben")
    core.run(60 * SECOND)
    assert share_of(core, "ben", *many)[0] == pytest.approx(1 / 3, abs=0.01)
    had = {job: core.served_ns(job) for job in ("ben", *many)}
    core.settle_in("cid", SMALL, tenant="cid")
    core.run(70 * SECOND)
    shares = share_of(core, "ben", "cid", *many, since=had)
    assert shares[:2] == pytest.approx([2 / 7, 1 / 7], abs=0.01)
    assert sum(shares[2:]) == pytest.approx(4 / 7, abs=0.01)


@pytest.mark.parametrize("weights", [{"t1": 3000}, {"t2": 3000}, {"t1": 3000, "t2": 2000}])
def test_fair_clamps_a_newcomer_of_a_tenant_with_another_weight_too(
    make_core: MakeCore, weights: dict[str, int]
) -> None:
    core = make_core("fair", settings=replace(EXACT, tenant_weights_milli=weights))
    core.settle_in("old", SMALL, tenant="t1")
    core.run(100 * SECOND)
    before = core.now
    core.settle_in("new", SMALL, tenant="t2")
    core.run(30 * SECOND)
    assert core.longest_gap_ns("old", since_ns=before) <= 600 * MS
    part = weights.get("t1", 1000) / (weights.get("t1", 1000) + weights.get("t2", 1000))
    assert share_of(core, "old", "new", since={"old": 100 * SECOND})[0] == pytest.approx(part, abs=0.02)


@pytest.mark.parametrize("tenant", ["same", "other"])
def test_fair_clamps_a_newcomer_that_comes_while_the_incumbent_loads_data(make_core: MakeCore, tenant: str) -> None:
    core = make_core("fair")
    core.settle_in("old", SMALL, tenant="same")
    core.run(100 * SECOND)
    core.give_back("old", wants_more=False)
    core.settle_in("new", SMALL, tenant=tenant)
    core.wait(10 * MS)
    core.ask("old")
    before = core.now
    core.run(20 * SECOND)
    assert core.longest_gap_ns("old", since_ns=before) <= 400 * MS


def test_fair_does_not_save_up_the_time_of_a_job_that_was_idle(make_core: MakeCore) -> None:
    core = make_core("fair")
    core.settle_in("a", SMALL)
    core.settle_in("b", SMALL)
    core.run(10 * SECOND)
    if core.holders() == ["b"]:
        core.give_back("b")
    core.give_back("b", wants_more=False)
    core.run(100 * SECOND)
    core.ask("b")
    before = core.now
    core.run(20 * SECOND)
    assert core.longest_gap_ns("a", since_ns=before) <= 400 * MS


def test_fair_does_not_save_up_the_time_of_a_job_that_waited_for_memory(make_core: MakeCore) -> None:
    core = make_core("fair", settings=NOBODY_MOVES)
    core.settle_in("first", needs(10 * GIB, GIB))
    core.settle_in("a", SMALL)
    core.settle_in("b", SMALL)
    core.measure("b", needs(5 * GIB, GIB))
    core.run(100 * SECOND)
    assert core.served_ns("b") == 0, "there is no room for what it has grown to"
    before = core.now
    core.exit("first")
    core.run(20 * SECOND)
    assert core.served_ns("b") == pytest.approx(10 * SECOND, rel=0.05)
    assert core.longest_gap_ns("a", since_ns=before) <= 500 * MS


def test_fair_counts_a_tenant_on_each_device_by_itself(make_core: MakeCore) -> None:
    """Else the job of a tenant that is busy elsewhere would never run beside another tenant's."""
    core = make_core("fair", devices=2)
    core.settle_in("alone", SMALL, tenant="t1", device="gpu0")
    core.settle_in("mine", SMALL, tenant="t1", device="gpu1")
    core.settle_in("yours", SMALL, tenant="t2", device="gpu1")
    core.run(30 * SECOND)
    assert share_of(core, "mine", "yours") == pytest.approx([0.5, 0.5], abs=0.02)


# --- las ----------------------------------------------------------------------------------------------------


def test_las_runs_the_job_that_has_had_the_least(make_core: MakeCore) -> None:
    core = make_core("las")
    core.settle_in("old", SMALL)
    core.run(10 * SECOND)
    core.settle_in("new", SMALL)
    core.run(9 * SECOND)
    assert core.served_ns("new") == pytest.approx(9 * SECOND, rel=0.05), "a newcomer catches up first"
    core.run(20 * SECOND)
    assert share_of(core, "old", "new") == pytest.approx([0.5, 0.5], abs=0.02)


# --- srtf ---------------------------------------------------------------------------------------------------


def test_srtf_takes_declared_steps_times_the_measured_step(make_core: MakeCore) -> None:
    core = make_core("srtf")
    core.submit("long", steps=1000, cap_bytes=GIB)
    core.submit("short", steps=200, cap_bytes=GIB)
    core.ask("long")
    core.measure("long", needs(GIB // 4, GIB // 4), step_ns=10 * MS)
    core.ask("short")
    core.tick(50 * MS)
    core.give_back("long", steps=5)
    assert core.holders() == ["short"], "nothing is known of it yet, and it has had nothing"
    core.measure("short", needs(GIB // 4, GIB // 4), step_ns=20 * MS)
    assert core.job("short").remaining_ns == 4 * SECOND
    assert core.job("long").remaining_ns == 995 * 10 * MS
    core.run(3 * SECOND)
    assert core.served_ns("long") == 50 * MS, "the shorter one runs to its end"


def burst(core: CoreDriver) -> None:
    """Three jobs that came at once and declare their steps; the first, of middle length, was measured."""
    for name, steps in (("middle", 100), ("long", 1000), ("short", 20)):
        core.submit(name, steps=steps, cap_bytes=GIB)
        core.ask(name)
    core.measure("middle", SMALL, step_ns=10 * MS)
    core.wait(30 * MS)
    core.report("middle", steps=3)


def test_srtf_measures_a_burst_of_newcomers_shortest_first(make_core: MakeCore) -> None:
    core = make_core("srtf")
    burst(core)
    core.tick(0)
    core.give_back("middle", steps=3)
    assert core.holders() == ["short"], "its 20 steps are taken to last 10 ms each"
    core.measure("short", SMALL, step_ns=10 * MS)
    core.wait(170 * MS)
    core.give_back("short", steps=20, wants_more=False)
    assert core.holders() == ["middle"], "the long one is not measured before the short ones are done"


def test_srtf_measures_a_newcomer_at_once_while_a_queue_waits_for_memory(make_core: MakeCore) -> None:
    core = make_core("srtf")
    burst(core)
    core.submit("queued", cap_bytes=15 * GIB)
    assert core.state("queued") == "queued"
    core.tick(0)
    core.give_back("middle", steps=3)
    assert core.holders() == ["long"], "it came before the short one, and measuring it may set memory free"


def test_srtf_recalls_a_long_job_for_a_shorter_one_after_its_quantum(make_core: MakeCore) -> None:
    core = make_core("srtf")
    core.remember("L", SMALL, steps=1000, step_ns=10 * MS, served_ns=10 * SECOND)
    core.remember("S", SMALL, steps=100, step_ns=10 * MS, served_ns=1 * SECOND)
    core.submit("long", fingerprint="L")
    core.submit("short", fingerprint="S")
    core.ask("long")
    core.ask("short")
    assert core.tick(9 * MS) == []
    [recall] = only(core.tick(1 * MS), RecallLease)
    assert recall.job == "long"
    assert recall.reason == "srtf: short has 1.0 s left, long has 10.0 s left"


def test_srtf_leaves_a_job_of_unknown_length_only_for_one_that_is_clearly_shorter(make_core: MakeCore) -> None:
    core = make_core("srtf")
    core.settle_in("a", SMALL)
    core.settle_in("b", SMALL)
    core.run(20 * SECOND)
    turns = len(core.turns)
    assert 20 * SECOND // (200 * MS) <= turns <= 20 * SECOND // (100 * MS)
    assert share_of(core, "a", "b") == pytest.approx([0.5, 0.5], abs=0.05)


def test_srtf_knows_a_job_by_the_history_of_its_fingerprint(make_core: MakeCore) -> None:
    core = make_core("srtf")
    core.remember("f", SMALL, steps=100, step_ns=50 * MS, served_ns=5 * SECOND)
    core.submit("a", fingerprint="f")
    core.ask("a")
    assert core.job("a").remaining_ns == 5 * SECOND
    core.tick(2 * SECOND)
    assert core.job("a").remaining_ns == 3 * SECOND


def test_srtf_knows_a_job_by_the_loops_of_its_program(make_core: MakeCore) -> None:
    core = make_core("srtf")
    core.submit("a", cap_bytes=GIB)
    core.ask("a")
    core.measure("a", SMALL, step_ns=10 * MS, steps_total=100)
    core.report("a", steps=20)
    assert core.job("a").remaining_ns == 80 * 10 * MS
    core.wait(SECOND)
    core.report("a", steps=100)
    assert core.job("a").remaining_ns is None, "it goes on after the end of its loops: nobody knows it"


def test_srtf_takes_a_job_beyond_its_loops_to_need_as_much_again(make_core: MakeCore) -> None:
    core = make_core("srtf")
    for name in ("ending", "other"):
        core.submit(name, cap_bytes=GIB)
        core.ask(name)
    core.measure("ending", SMALL, step_ns=10 * MS, steps_total=100)
    core.wait(SECOND)
    core.give_back("ending", steps=100)
    core.measure("other", SMALL, step_ns=10 * MS, steps_total=50)
    core.tick(20 * MS)
    core.give_back("other", steps=2)
    assert core.holders() == ["ending"], "its loops are over: most programs end then"
    core.run(1200 * MS)
    assert core.served_ns("other") >= 500 * MS, "it went on after them, and let the other one end first"


def test_srtf_asks_what_was_declared_then_the_last_run_and_then_the_loops(make_core: MakeCore) -> None:
    core = make_core("srtf")
    core.remember("f", SMALL, steps=100, step_ns=50 * MS, served_ns=5 * SECOND)
    core.submit("said", fingerprint="f", steps=30)
    core.submit("ran", fingerprint="f")
    for name in ("said", "ran"):
        core.ask(name)
        core.measure(name, SMALL, step_ns=10 * MS, steps_total=1000)
    assert core.job("said").remaining_ns == 30 * 10 * MS
    assert core.job("ran").remaining_ns == 5 * SECOND, "it may leave its loop before the end, as it did last time"


def test_srtf_forgets_the_length_of_steps_that_were_none(make_core: MakeCore) -> None:
    core = make_core("srtf")
    core.submit("a", cap_bytes=GIB)
    core.ask("a")
    core.measure("a", SMALL, step_ns=10 * MS, steps_total=100)
    core.wait(30 * MS)
    core.send(ProgressSeen(job=JobId("a"), steps=0, cpu_ns=0, live_bytes=0, is_recount=True))
    assert core.job("a").remaining_ns is None


@pytest.mark.parametrize("policy", ["srtf", "fair"])
def test_srtf_compares_a_job_when_it_is_measured_however_long_the_quantum(make_core: MakeCore, policy: str) -> None:
    core = make_core(policy, settings=Settings(quantum_ns=5 * SECOND))
    core.submit("long", steps=1000, cap_bytes=GIB)
    core.ask("long")
    core.submit("short", steps=5, cap_bytes=GIB)
    core.ask("short")
    core.wait(400 * MS)
    recalls = only(core.measure("long", SMALL, step_ns=200 * MS), RecallLease)
    assert [each.job for each in recalls] == (["long"] if policy == "srtf" else [])


def test_srtf_takes_the_step_time_of_the_history_for_declared_steps(make_core: MakeCore) -> None:
    core = make_core("srtf")
    core.remember("f", SMALL, steps=100, step_ns=50 * MS, served_ns=5 * SECOND)
    core.submit("a", fingerprint="f", steps=20)
    assert core.job("a").remaining_ns == 1 * SECOND


def test_srtf_falls_back_to_least_attained_service(make_core: MakeCore) -> None:
    core = make_core("srtf")
    core.submit("a", cap_bytes=GIB)
    core.submit("b", cap_bytes=GIB)
    for job in "ab":
        core.ask(job)
    core.wait(2 * SECOND)
    assert core.job("a").remaining_ns is None, "nothing is known"
    core.give_back("a")
    assert core.holders() == ["b"], "b has had nothing, a has had two seconds"
    core.measure("b", SMALL)
    core.run(1900 * MS)
    assert core.served_ns("a") == 2 * SECOND
    core.run(1 * SECOND)
    assert core.served_ns("a") > 2 * SECOND


def test_srtf_does_not_swap_two_unknown_jobs_at_every_boundary(make_core: MakeCore) -> None:
    core = make_core("srtf")
    core.settle_in("a", SMALL)
    core.settle_in("b", SMALL)
    core.run(10 * SECOND)
    spans = [turn.ended_ns - turn.granted_ns for turn in core.turns if turn.ended_ns is not None]
    assert min(spans) >= 50 * MS


# --- priority -----------------------------------------------------------------------------------------------


def test_priority_recalls_the_lower_for_the_higher_at_the_next_boundary(make_core: MakeCore) -> None:
    core = make_core("priority")
    core.settle_in("low", SMALL, priority=0)
    core.wait(MS)
    core.submit_known("high", SMALL, priority=5)
    [recall] = only(core.ask("high"), RecallLease)
    assert recall.job == "low"
    assert "high has priority 5, low 0" in recall.reason
    assert only(core.give_back("low"), GrantLease)[0].job == "high"


def test_priority_lets_equals_take_turns(make_core: MakeCore) -> None:
    core = make_core("priority")
    for job in "abc":
        core.settle_in(job, SMALL)
    core.settle_in("low", SMALL, priority=-1)
    core.run(20 * SECOND)
    assert share_of(core, "a", "b", "c") == pytest.approx([1 / 3, 1 / 3, 1 / 3], abs=0.05)
    assert core.served_ns("low") == 0
    for job in "abc":
        assert core.longest_gap_ns(job) <= 500 * MS
    assert len(core.turns) < 20 * SECOND // (100 * MS) * 1.2, "a turn among equals lasts 100 ms"


def test_priority_says_why_one_of_two_equals_goes_first() -> None:
    policy, holder = Priority(), view("holder")._replace(is_holding=True, held_ns=40 * MS, quantum_ns=100 * MS)
    assert (
        policy.why(holder, view("other", waited_ns=MS))
        == "both have priority 0, and holder keeps its turn for 100 ms"
    )
    waiting = view("waiting", waited_ns=250 * MS)
    assert policy.why(waiting, view("other")) == "both have priority 0, and waiting has waited 250 ms"
    assert policy.why(view("first"), view("second", arrived_ns=1)) == "both have priority 0, and first came first"


def test_priority_lets_nobody_wait_longer_than_the_bound(make_core: MakeCore) -> None:
    core = make_core("priority")
    core.settle_in("high", SMALL, priority=9)
    for job in ("low1", "low2", "low3"):
        core.settle_in(job, SMALL)
    core.run(200 * SECOND)
    bound = Priority.starvation_bound_ns
    for job in ("low1", "low2", "low3"):
        assert core.longest_gap_ns(job) <= bound + 3 * SECOND
        assert core.served_ns(job) < 10 * SECOND, "a starved job gets a turn, not the device"
    assert core.served_ns("high") > 150 * SECOND


# --- the quantum ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fair", "las"])
def test_a_longer_quantum_means_fewer_turns(make_core: MakeCore, policy: str) -> None:
    counts = []
    for quantum_ns in (50 * MS, 500 * MS):
        core = make_core(policy, settings=Settings(quantum_ns=quantum_ns))
        core.settle_in("a", SMALL)
        core.settle_in("b", SMALL)
        core.run(20 * SECOND)
        counts.append(len(core.turns))
        assert share_of(core, "a", "b") == pytest.approx([0.5, 0.5], abs=0.05)
    assert counts[0] > 5 * counts[1]


@pytest.mark.parametrize(("policy", "slack_ns"), [("fair", 50 * MS), ("las", 50 * MS), ("srtf", 100 * MS)])
def test_nobody_waits_much_longer_than_a_quantum_for_one_other_job(
    make_core: MakeCore, policy: str, slack_ns: int
) -> None:
    core = make_core(policy, settings=Settings(quantum_ns=100 * MS))
    core.settle_in("a", SMALL)
    core.settle_in("b", SMALL)
    core.run(20 * SECOND)
    for job in "ab":
        assert core.longest_gap_ns(job) <= 100 * MS + slack_ns
