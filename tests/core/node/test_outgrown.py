"""Resident jobs whose bytes changed: detached from turns, outgrown (M5, D2), shrunk."""

from __future__ import annotations

import pytest

from carpool.core.kernel.ids import DeviceId, JobId
from carpool.core.node.effects import GrantLease, RecallLease, StartJob
from carpool.core.node.model import JobState
from carpool.core.node.settings import Settings
from carpool.units import GIB, MIB, MS, SECOND
from tests.core.node.driver import NOBODY_MOVES, CoreDriver, MakeCore, needs, only


def started(job: str) -> StartJob:
    return StartJob(job=JobId(job), device=DeviceId("gpu0"))


# --- detached jobs -------------------------------------------------------------------------------------------


def test_a_detached_job_keeps_its_bytes_but_leaves_its_lane(core: CoreDriver) -> None:
    core.settle_in("a", needs(2 * GIB, 4 * GIB))
    core.settle_in("b", needs(2 * GIB, 3 * GIB))
    effects = core.detach("a", "it forked")
    assert only(effects, GrantLease)[0].job == "b"
    assert core.state("a") is JobState.UNMANAGED
    assert core.reason("a") == "runs outside carpool's turns: it forked"
    assert core.job("a").promised_bytes == 6 * GIB, "it may hold both kinds at any time"
    assert core.lanes() == [{"b"}]
    assert core.device().lanes_bytes == 3 * GIB


def test_a_detached_job_of_unknown_size_keeps_twice_what_it_holds(core: CoreDriver) -> None:
    core.submit("a")
    core.report("a", live_bytes=3 * GIB)
    core.detach("a")
    assert core.job("a").promised_bytes == 6 * GIB
    core.submit("b")
    assert core.job("b").promised_bytes == 10 * GIB


def test_a_detached_capped_job_keeps_its_cap(core: CoreDriver) -> None:
    core.submit("a", cap_bytes=4 * GIB)
    core.detach("a")
    assert core.job("a").promised_bytes == 4 * GIB


def test_a_detached_job_is_promised_what_it_needs_as_soon_as_there_is_room(core: CoreDriver) -> None:
    core.settle_in("a", needs(2 * GIB, 6 * GIB))
    core.settle_in("b", needs(4 * GIB, 6 * GIB))
    core.detach("a")
    assert core.job("a").promised_bytes == 6 * GIB, "two of eight GiB are missing"
    core.exit("b")
    assert core.job("a").promised_bytes == 8 * GIB


def test_nobody_is_told_that_a_detached_job_is_being_measured(core: CoreDriver) -> None:
    core.submit("a")
    core.report("a", live_bytes=8 * GIB)
    core.detach("a")
    core.submit("b")
    assert "measured" not in core.reason("b")


def test_a_detached_job_that_asks_again_takes_turns_again(core: CoreDriver) -> None:
    core.settle_in("a", needs(2 * GIB, 4 * GIB))
    core.detach("a")
    core.settle_in("b", needs(2 * GIB, 3 * GIB))
    core.ask("a")
    assert core.state("a") is JobState.WAITING
    assert (core.job("a").promised_bytes, core.lane_of("a").bytes) == (2 * GIB, 4 * GIB)
    core.wait(10 * MS)
    assert only(core.give_back("b"), GrantLease)[0].job == "a"


# --- outgrown jobs (M5, D2) -----------------------------------------------------------------------------------


def test_a_job_that_grew_within_what_is_free_just_goes_on(core: CoreDriver) -> None:
    core.settle_in("a", needs(2 * GIB, 4 * GIB))
    core.settle_in("b", needs(2 * GIB, 4 * GIB))
    core.measure("a", needs(4 * GIB, 6 * GIB))
    assert core.holders() == ["a"]
    assert (core.job("a").promised_bytes, core.lane_of("a").bytes) == (4 * GIB, 6 * GIB)


def test_m5_a_job_that_outgrew_its_promise_gets_no_turn_until_it_is_covered(core: CoreDriver) -> None:
    core.settle_in("old", needs(8 * GIB, 4 * GIB))
    core.settle_in("young", needs(2 * GIB, 4 * GIB))
    core.wait(100 * MS)
    core.give_back("old")
    assert core.holders() == ["young"]
    [recall] = only(core.measure("young", needs(6 * GIB, 4 * GIB)), RecallLease)
    assert recall.job == "young"
    assert recall.reason == (
        "waits for memory: it has grown to 10.0 GiB, was promised 2.00 GiB, and 2.00 GiB is unpromised on gpu0"
    )
    assert only(core.give_back("young"), GrantLease)[0].job == "old"
    core.run(10 * SECOND)
    assert core.holders() == ["old"]
    assert core.reason("young").startswith("waits for memory: it has grown to 10.0 GiB, was promised 2.00 GiB")
    assert core.job("young").promised_bytes == 2 * GIB, "it keeps what it was promised"
    assert only(core.exit("old"), GrantLease)[0].job == "young"
    assert core.job("young").promised_bytes == 6 * GIB


def test_the_oldest_job_can_always_run_however_large_it_grew(make_core: MakeCore) -> None:
    core = make_core(settings=NOBODY_MOVES)
    core.settle_in("old", needs(2 * GIB, 4 * GIB))
    core.settle_in("young", needs(8 * GIB, 4 * GIB))
    assert not only(core.measure("old", needs(10 * GIB, 4 * GIB)), RecallLease)
    core.run(10 * SECOND)
    assert core.served_ns("old") == pytest.approx(5 * SECOND, rel=0.1)
    assert core.served_ns("young") == pytest.approx(5 * SECOND, rel=0.1)


def test_somebody_can_run_even_if_everybody_outgrew_their_promise(make_core: MakeCore) -> None:
    core = make_core(settings=NOBODY_MOVES)
    for job in "abc":
        core.settle_in(job, needs(4 * GIB, GIB))
    for job in "abc":
        core.measure(job, needs(8 * GIB, GIB))
    core.run(SECOND)
    assert core.holders() == ["a"]
    core.exit("a")
    core.run(SECOND)
    assert core.holders() == ["b"]
    core.exit("b")
    core.run(SECOND)
    assert core.holders() == ["c"]


def test_the_older_of_two_outgrown_jobs_is_covered_first(core: CoreDriver) -> None:
    core.settle_in("first", needs(6 * GIB, GIB))
    core.wait(1)
    core.settle_in("a", needs(2 * GIB, GIB))
    core.wait(1)
    core.settle_in("b", needs(2 * GIB, GIB))
    core.measure("b", needs(8 * GIB, GIB))
    core.measure("a", needs(8 * GIB, GIB))
    core.exit("first")
    assert core.job("a").promised_bytes == 8 * GIB
    assert core.job("b").promised_bytes == 2 * GIB


def test_freed_bytes_go_to_outgrown_jobs_before_the_queue(core: CoreDriver) -> None:
    core.settle_in("first", needs(6 * GIB, GIB))
    core.settle_in("a", needs(6 * GIB, GIB))
    core.measure("a", needs(12 * GIB, GIB))
    core.submit("b", cap_bytes=5 * GIB)
    assert core.exit("first") and core.job("a").promised_bytes == 12 * GIB
    assert core.state("b") is JobState.QUEUED


def test_a_job_that_shrank_gives_bytes_back(core: CoreDriver) -> None:
    core.settle_in("a", needs(8 * GIB, 6 * GIB))
    core.submit("b", cap_bytes=6 * GIB)
    assert core.state("b") is JobState.QUEUED
    assert started("b") in core.measure("a", needs(4 * GIB, 4 * GIB))


@pytest.mark.parametrize(
    ("measured_mib", "promised_mib"),
    [(1000, 1100), (1050, 1100), (1100, 1100), (1200, 1320), (500, 550)],
)
def test_growth_within_the_margin_is_not_an_outgrowth(
    make_core: MakeCore, measured_mib: int, promised_mib: int
) -> None:
    core = make_core(settings=Settings(margin_percent=10))
    core.submit("a")
    core.ask("a")
    core.measure("a", needs(1000 * MIB, GIB))
    assert core.job("a").promised_bytes == 1100 * MIB
    core.measure("a", needs(measured_mib * MIB, GIB))
    assert core.job("a").promised_bytes == promised_mib * MIB
