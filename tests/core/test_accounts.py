"""Device time: charged once (A1), and steps measured only while the same jobs ran (A3)."""

from __future__ import annotations

from carpool.units import GIB, MS, SECOND
from tests.core.driver import CoreDriver, MakeCore, needs

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


def test_a_step_time_follows_a_job_that_became_slower(core: CoreDriver) -> None:
    core.settle_in("a", KNOWN)
    core.wait(100 * MS)
    core.report("a", steps=10)
    assert core.job("a").step_ns == 10 * MS
    for round_ in range(2, 22):
        core.wait(100 * MS)
        core.report("a", steps=5 * round_ + 5)
    step_ns = core.job("a").step_ns
    assert step_ns is not None and 19 * MS < step_ns <= 20 * MS


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
