"""Compute shares: what each share policy makes of what jobs ask for, and turns that keep to it."""

from __future__ import annotations

import pytest

from carpool.core.node.effects import ExplainWait, RecallLease, RefuseJob, RejectEvent, SetCompute, StartJob
from carpool.core.node.model import JobSpec, JobState
from carpool.core.node.settings import Settings
from carpool.core.node.turns.shares import SHARE_POLICIES, split
from carpool.units import GIB, MIB, MS, SECOND
from tests.core.node.driver import CoreDriver, MakeCore, needs, only

SMALL = needs(100 * MIB, 10 * MIB)
SPAN = 5 * SECOND


def with_policy(share_policy: str, share_slots: int = 0) -> Settings:
    return Settings(margin_percent=0, open_share_divisor=1, share_policy=share_policy, share_slots=share_slots)


def join(core: CoreDriver, job: str, least: int = 0, most: int = 1000, *, is_paced: bool = False) -> None:
    core.submit_known(job, SMALL, guaranteed_milli=least, limit_milli=most)
    core.ask(job, is_paced=is_paced)


def parts(core: CoreDriver, *jobs: str, span: int = SPAN, step_ns: dict[str, int] | None = None) -> list[float]:
    """What part of the device, in percent, each had over the next while."""
    before = {job: core.served_ns(job) for job in jobs}
    core.run(span, step_ns=step_ns)
    return [(core.served_ns(job) - before[job]) * 100 / span for job in jobs]


# The worked examples of the cloud vendors' documents, in thousandths: (guarantee, limit) of each job.
@pytest.mark.parametrize(
    ("name", "asked", "slots", "made"),
    [
        ("fixed", (300, 600), 0, [(300, 300), (600, 600)]),
        ("fixed", (0, 0), 0, [(0, 1000), (0, 1000)]),  # native: memory only
        ("fixed", (300, 0, 0), 0, [(300, 300), (0, 1000), (0, 1000)]),  # mixed: the others share the rest
        ("equal", (0, 0, 0), 4, [(250, 250)] * 3),  # 1/max instances, although a slot is empty
        ("equal", (0, 0), 0, [(500, 500)] * 2),
        ("best-effort", (0, 0, 0, 0), 0, [(250, 1000)] * 4),  # one slot each, free slots are skipped
        ("weighted", (50, 50, 100), 0, [(250, 250), (250, 250), (500, 500)]),
        ("burst", (50, 50, 100), 0, [(250, 1000), (250, 1000), (500, 1000)]),
        ("weighted", (1, 1, 1, 1000, 1000), 0, [(0, 1)] * 3 + [(499, 499)] * 2),  # nobody is limited to nothing
    ],
)
def test_a_share_policy_is_a_row_of_settings(
    name: str, asked: tuple[int, ...], slots: int, made: list[tuple[int, int]]
) -> None:
    specs = [JobSpec(name="j", guaranteed_milli=a, limit_milli=a or 1000) for a in asked]
    assert split(SHARE_POLICIES[name], specs, slots) == made


def test_a_job_whose_part_is_less_than_a_thousandth_still_runs(make_core: MakeCore) -> None:
    core = make_core(settings=with_policy("weighted"))
    join(core, "a", 1, 1)
    join(core, "b", 1000)
    core.run(30 * SECOND)
    assert 0 < core.served_ns("a") < SECOND


@pytest.mark.parametrize("policy", ["fair", "pack"])
def test_s1_holds_for_a_job_that_nobody_measured(make_core: MakeCore, policy: str) -> None:
    core = make_core(policy)
    core.submit("a", limit_milli=100)
    core.ask("a")
    core.run(SECOND)
    assert core.state("a") is JobState.WAITING
    assert "its next turn is due in" in core.reason("a")
    assert parts(core, "a") == pytest.approx([10], abs=3)


def test_s1_an_unmeasured_job_at_its_limit_keeps_nobody_else_waiting(make_core: MakeCore) -> None:
    core = make_core("pack")
    join(core, "b")
    core.submit("a", limit_milli=100, cap_bytes=GIB)
    core.ask("a")
    core.run(2 * SECOND)
    assert parts(core, "a", "b") == pytest.approx([10, 90], abs=4)


def test_weighted_parts_alone_on_a_device_are_a_quarter_a_quarter_and_a_half(make_core: MakeCore) -> None:
    core = make_core(settings=with_policy("weighted"))
    for job, share in (("a", 50), ("b", 50), ("c", 100)):
        join(core, job, share, share)
    core.run(SECOND)
    assert parts(core, "a", "b", "c") == pytest.approx([25, 25, 50], abs=3)


def test_burst_gives_an_idle_jobs_part_to_the_others_and_back_within_100_ms(make_core: MakeCore) -> None:
    core = make_core(settings=with_policy("burst"))
    for job, share in (("a", 50), ("b", 50), ("c", 100)):
        join(core, job, share, share)
    core.run(SECOND)
    while "c" not in core.holders():
        core.run(10 * MS)
    core.give_back("c", wants_more=False)
    assert parts(core, "a", "b", "c") == pytest.approx([50, 50, 0], abs=3)
    woken = core.now
    core.ask("c")
    core.run(100 * MS)
    first = next(turn.granted_ns for turn in core.turns if turn.job == "c" and turn.granted_ns >= woken)
    assert first - woken <= 100 * MS
    assert parts(core, "a", "b", "c") == pytest.approx([25, 25, 50], abs=3)


def test_best_effort_gives_each_a_slot_and_skips_those_of_idle_jobs(make_core: MakeCore) -> None:
    core = make_core(settings=with_policy("best-effort"))
    for job in "abcd":
        join(core, job)
    core.run(SECOND)
    assert parts(core, *"abcd") == pytest.approx([25] * 4, abs=3)
    for left, had in (("abc", 33), ("ab", 50), ("a", 100)):
        idle = "abcd"[len(left)]
        while idle not in core.holders():
            core.run(10 * MS)
        core.give_back(idle, wants_more=False)
        core.run(SECOND)
        assert parts(core, *left) == pytest.approx([had] * len(left), abs=3)
    woken = core.now
    core.ask("d")
    core.run(100 * MS)
    assert any(turn.job == "d" and turn.granted_ns >= woken for turn in core.turns)
    core.run(SECOND)
    assert parts(core, "a", "d") == pytest.approx([50, 50], abs=3)


def test_best_effort_slots_are_kept_whatever_the_policy_prefers(make_core: MakeCore) -> None:
    core = make_core("fifo", settings=with_policy("best-effort"))
    for job in "abcd":
        join(core, job)
    core.run(SECOND)
    assert parts(core, *"abcd") == pytest.approx([25] * 4, abs=3)
    core.exit("d")
    core.run(SECOND)
    assert parts(core, *"abc") == pytest.approx([33] * 3, abs=3)


def test_s4_what_a_job_had_of_others_idle_time_is_not_held_against_it(make_core: MakeCore) -> None:
    core = make_core("fifo", settings=with_policy("best-effort"))
    join(core, "a")
    join(core, "b")
    core.run(100 * MS)
    while "a" not in core.holders():
        core.run(10 * MS)
    core.give_back("a", wants_more=False)
    core.run(20 * SECOND)
    core.ask("a")
    core.run(200 * MS)  # the burst that it may owe, at one half
    core.run(SECOND)
    assert parts(core, "a", "b") == pytest.approx([50, 50], abs=3), (
        "the policy would give all of it to a, who came first"
    )


def test_a_fixed_part_stays_idle_when_its_owner_is(make_core: MakeCore) -> None:
    core = make_core()
    join(core, "a", 300, 300)
    core.run(SECOND)
    assert parts(core, "a") == pytest.approx([30], abs=3)


def test_jobs_without_a_share_have_what_a_fixed_one_leaves(make_core: MakeCore) -> None:
    core = make_core()
    join(core, "a", 300, 300)
    join(core, "b")
    join(core, "c")
    core.run(SECOND)
    assert parts(core, "a", "b", "c") == pytest.approx([30, 35, 35], abs=3)


def test_s2_a_guarantee_is_had_beside_others_and_the_limit_alone(make_core: MakeCore) -> None:
    core = make_core()
    join(core, "a", 300, 600)
    core.run(SECOND)
    assert parts(core, "a") == pytest.approx([60], abs=3)
    join(core, "b", 700, 1000)
    core.run(SECOND)
    assert parts(core, "a", "b") == pytest.approx([30, 70], abs=3)


def test_a_step_that_is_longer_than_the_part_is_paid_back(make_core: MakeCore) -> None:
    core = make_core()
    join(core, "a", 200, 200)
    core.run(SECOND, step_ns={"a": SECOND})
    assert parts(core, "a", span=30 * SECOND, step_ns={"a": SECOND}) == pytest.approx([20], abs=4)


def test_s5_a_job_that_paces_itself_keeps_its_turn_beyond_the_limit(make_core: MakeCore) -> None:
    core = make_core()
    join(core, "a", 300, 300, is_paced=True)
    core.run(SECOND)
    assert parts(core, "a") == pytest.approx([100], abs=1)


def test_who_waits_for_its_limit_is_told_so_with_the_numbers(make_core: MakeCore) -> None:
    core = make_core()
    join(core, "a", 100, 250)
    while not (recalls := only(core.effects, RecallLease)):
        core.run(10 * MS)
    assert recalls[0].reason == "a has had its 25 % of gpu0"
    core.run(20 * MS)
    assert core.state("a") is JobState.WAITING
    assert "it has had the 25 % of gpu0 that it may have; its next turn is due in" in core.reason("a")


def test_a_recall_for_a_guarantee_says_whose_it_is(make_core: MakeCore) -> None:
    core = make_core("fifo")
    join(core, "a")
    core.run(300 * MS)
    join(core, "b", 400, 1000)
    core.run(100 * MS)
    assert "b is owed its 40 % of gpu0" in [recall.reason for recall in only(core.effects, RecallLease)]
    while core.state("a") is not JobState.WAITING:
        core.run(10 * MS)
    assert "b is owed its 40 % of gpu0" in core.reason("a") or "keeps it for another" in core.reason("a")


def test_guarantees_that_do_not_fit_wait_in_the_queue(make_core: MakeCore) -> None:
    core = make_core()
    join(core, "a", 700, 1000)
    core.submit_known("b", SMALL, guaranteed_milli=400, limit_milli=400)
    assert core.state("b") is JobState.QUEUED
    wait = only(core.effects, ExplainWait)[-1]
    assert (
        wait.reason == "waits for compute: it asks for 40 % of a device, and 30 % of gpu0 is not promised to others;"
        f" starts when one of them ends, or with less: carpool resize {wait.job} --compute SHARE"
    )
    core.exit("a")
    assert [effect.job for effect in only(core.effects, StartJob)] == ["a", "b"]


def test_a_share_can_be_changed_while_the_job_runs(make_core: MakeCore) -> None:
    core = make_core()
    join(core, "a", 200, 200)
    join(core, "b", 700, 700)
    core.run(SECOND)
    assert only(core.share("a", 300, 500), SetCompute) == [SetCompute(job=core.job("a").id, limit_milli=500)]
    core.run(SECOND)
    assert parts(core, "a", "b") == pytest.approx([30, 70], abs=3)
    (refused,) = only(core.share("a", 400, 500), RejectEvent)
    assert refused.reason.startswith("job a cannot have 40 % of gpu0: 30 % of it is not promised to others; ask for")
    assert (core.job("a").guaranteed_milli, core.job("a").limit_milli) == (300, 500)


def test_programs_are_told_their_limits_only_where_somebody_has_a_share(make_core: MakeCore) -> None:
    core = make_core()
    join(core, "a")
    assert only(core.effects, SetCompute) == []
    join(core, "b", 300, 300)
    told = {(effect.job, effect.limit_milli) for effect in only(core.effects, SetCompute)}
    assert told == {("a", 1000), ("b", 300)}
    core.exit("b")
    assert only(core.effects, SetCompute)[-1] == SetCompute(job=core.job("a").id, limit_milli=None)


def test_a_policy_that_divides_by_what_is_asked_needs_an_ask(make_core: MakeCore) -> None:
    core = make_core(settings=with_policy("weighted"))
    (refused,) = only(core.submit("a"), RefuseJob)
    assert "give --compute" in refused.reason
