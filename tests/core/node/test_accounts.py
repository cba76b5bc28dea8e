"""Device time: charged once (A1), and steps measured only while the same jobs ran (A3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carpool.core.kernel.ids import DeviceId, JobId, Nanos, TenantId
from carpool.core.node.events import DeviceAdded, HistoryLoaded, JobSubmitted, LeaseAsked, Tick
from carpool.core.node.model import HELD_ONLY, Departure, History, Job, JobSpec, Why
from carpool.core.node.node import is_leaving
from carpool.core.node.scheduler import Scheduler
from carpool.core.policies.base import Rank
from carpool.core.policies.fair import Fair
from carpool.core.policies.view import JobView
from carpool.units import GIB, MS, SECOND
from tests.core.node.driver import EXACT, CoreDriver, MakeCore, needs

KNOWN = needs(GIB, GIB)


def test_a1_held_time_is_charged_to_the_nanosecond_and_only_to_the_holder(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    for span in (1, 999, 123_456_789):
        core.wait(span)
        core.report("a", steps=0)
    assert core.served_ns("a") == 123_457_789
    assert core.served_ns("b") == 0
    core.give_back("a", wants_more=False)
    core.wait(77)
    assert (core.served_ns("a"), core.served_ns("b")) == (123_457_789, 77)


def test_a1_time_held_and_time_waited_add_up_to_the_wall_clock(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    core.run(7 * SECOND + 7)
    assert core.served_ns("a") + core.served_ns("b") == core.now
    for job in "ab":
        assert core.served_ns(job) + core.job(job).waited_ns == core.now


def test_a1_the_time_of_a_turn_that_ended_otherwise_is_charged_too(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.wait(5)
    core.detach("a")
    core.settle_in("b", KNOWN)
    core.settle_in("c", KNOWN)
    core.look_for(500 * MS)
    core.wait(3)
    core.exit("c", 1)
    assert core.served_ns("a") == 5
    assert core.served_ns("b") == 500 * MS, "its turn lapsed"
    assert core.served_ns("c") == 3


def test_time_between_turns_is_nobodys(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.wait(10)
    core.give_back("a", wants_more=False)
    core.wait(1000)
    core.ask("a")
    core.wait(1)
    assert core.served_ns("a") == 11
    assert core.job("a").waited_ns == 0


def test_a3_a_step_is_as_long_as_the_device_time_it_took_not_the_wall_time(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    for _ in range(6):
        core.wait(100 * MS)
        core.give_back("a", steps=core.steps.get("a", 0) + 10)
        core.wait(100 * MS)
        core.give_back("b", steps=core.steps.get("b", 0) + 4)
    assert core.job("a").step_ns == 10 * MS
    assert core.job("b").step_ns == 25 * MS


def test_a3_a_step_time_follows_a_job_that_became_slower(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.wait(100 * MS)
    core.report("a", steps=10)
    assert core.job("a").step_ns == 10 * MS
    for round_ in range(2, 62):
        core.wait(100 * MS)
        core.report("a", steps=5 * round_ + 5)
    step_ns = core.job("a").step_ns
    assert step_ns is not None and 19 * MS < step_ns <= 20 * MS


def test_a3_a_few_slow_steps_change_little_and_quick_ones_make_up_for_them(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.wait(100 * MS)
    core.report("a", steps=10)
    core.wait(240 * MS)
    core.report("a", steps=16)  # 40 ms each: something else kept the machine busy
    slow_ns = core.job("a").step_ns
    assert slow_ns is not None and 10 * MS < slow_ns < 13 * MS
    for _ in range(3):
        core.wait(100 * MS)
        core.report("a", steps=core.steps["a"] + 10)
    quick_ns = core.job("a").step_ns
    assert quick_ns is not None and quick_ns < 10.5 * MS


def test_a_step_count_that_goes_back_is_ignored(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.wait(100 * MS)
    core.report("a", steps=10)
    core.report("a", steps=3)
    assert core.job("a").steps == 10


def test_a3_a_neighbour_that_comes_or_goes_begins_the_measurement_anew(make_core: MakeCore) -> None:
    core = make_core("pack")
    core.settle_in("a", KNOWN)
    core.wait(100 * MS)
    core.report("a", steps=10)
    core.settle_in("b", KNOWN)
    core.wait(100 * MS)
    core.report("a", steps=12)
    core.give_back("b", wants_more=False)
    core.wait(90 * MS)
    core.report("a", steps=21)
    step_ns = core.job("a").step_ns
    assert step_ns is not None and step_ns < 30 * MS, "the last nine steps took ten milliseconds each"


def test_a_picture_counts_up_to_the_moment_it_is_taken(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.settle_in("b", KNOWN)
    core.wait(40 * MS)
    assert (core.job("a").served_ns, core.job("b").waited_ns) == (40 * MS, 40 * MS)
    assert core.job("a").silent_ns == 40 * MS
    assert core.job("b").silent_ns is None


class Watching(Fair):
    """Fair, and remembers what it was shown."""

    by_tenant = False  # else it is shown only the jobs of one tenant

    def __init__(self) -> None:
        self.seen: dict[JobId, JobView] = {}

    def rank(self, view: JobView, *, now: Nanos) -> Rank:
        self.seen[view.id] = view
        return super().rank(view, now=now)


def test_a_policy_is_shown_each_job_as_it_is() -> None:
    policy = Watching()
    scheduler = Scheduler(policy, EXACT)
    scheduler.handle(DeviceAdded(device=DeviceId("gpu0"), capacity_bytes=16 * GIB), now=0)
    history = History(needs=KNOWN, steps=9, step_ns=7 * MS, served_ns=SECOND)
    scheduler.handle(HistoryLoaded(fingerprint="f", history=history), now=0)
    spec = JobSpec(name="first", tenant=TenantId("red"), priority=3, weight_milli=500, fingerprint="f")
    for at_ms, job, made in (
        (1, "a", spec),
        (2, "b", replace(spec, name="second", tenant=TenantId("blue"), steps=5)),
    ):
        scheduler.handle(JobSubmitted(job=JobId(job), spec=made), now=at_ms * MS)
        scheduler.handle(LeaseAsked(job=JobId(job)), now=at_ms * MS + MS)
    scheduler.handle(Tick(), now=202 * MS)
    waiting, holding = policy.seen[JobId("b")], policy.seen[JobId("a")]
    assert waiting._asdict() == {
        "id": "b",
        "name": "second",
        "tenant": "blue",
        "priority": 3,
        "arrived_ns": 2 * MS,
        "is_holding": False,
        "held_ns": 0,
        "waited_ns": 199 * MS,
        "served_ns": 0,
        "remaining_ns": 5 * 7 * MS,
        "remaining_is_known": True,
        "level": 0,
        "tenant_level": MS,  # what the other had had when it came (A2)
        "size_milli": 1000,
        "is_early": False,
        "quantum_ns": 0,
    }
    assert holding._asdict() == {
        "id": "a",
        "name": "first",
        "tenant": "red",
        "priority": 3,
        "arrived_ns": MS,
        "is_holding": True,
        "held_ns": 200 * MS,
        "waited_ns": 0,
        "served_ns": 200 * MS,
        "remaining_ns": 800 * MS,
        "remaining_is_known": True,
        "level": 400 * MS,
        "tenant_level": 200 * MS,
        "size_milli": 1000,
        "is_early": False,
        "quantum_ns": 100 * MS,
    }


@pytest.mark.parametrize("why", list(Why))
def test_e1_who_leaves_or_shrinks_is_held_back(why: Why) -> None:
    job = Job(id=JobId("a"), spec=JobSpec(name="a"), arrived_ns=0)
    assert (bool(job.departures), is_leaving(job)) == (False, False)
    job.departures[why] = Departure()
    assert (bool(job.departures), is_leaving(job)) == (True, why not in HELD_ONLY)
    job.departures[Why.SHRINKS] = Departure()
    assert is_leaving(job) is (why not in HELD_ONLY)
