"""Guarantees and limits where memory moves: migration, rotation, jobs taken back, turns that are passed on."""

from __future__ import annotations

from carpool.core.kernel.ids import JobId
from carpool.core.node.effects import ParkJob, RejectEvent
from carpool.core.node.model import JobState
from carpool.units import GIB, MS, SECOND
from tests.core.node.driver import CoreDriver, MakeCore, needs, only

BIG = needs(12 * GIB, GIB)
SMALL = needs(GIB, GIB)


def two_devices(make_core: MakeCore) -> CoreDriver:
    """Job a, guaranteed 60 %, on gpu0; job b, guaranteed 50 %, on gpu1."""
    core = make_core(devices=2)
    core.settle_in("a", SMALL, guaranteed_milli=600, limit_milli=600)
    core.settle_in("b", SMALL, guaranteed_milli=500, limit_milli=500)
    assert (core.job("a").device, core.job("b").device) == ("gpu0", "gpu1")
    return core


def test_s3_a_job_moves_only_where_its_guarantee_has_room(make_core: MakeCore) -> None:
    core = two_devices(make_core)
    (refused,) = only(core.migrate("a", "gpu1"), RejectEvent)
    assert refused.reason == (
        "job a cannot have 60 % of gpu1: 50 % of it is not promised to others; ask for less, or give another job"
        " less: carpool resize JOB --compute SHARE"
    )
    core.share("a", 500, 500)
    assert only(core.migrate("a", "gpu1"), RejectEvent) == []


def test_s3_a_guarantee_that_was_given_away_meanwhile_sends_a_mover_back(make_core: MakeCore) -> None:
    core = two_devices(make_core)
    core.share("a", 400, 400)
    core.migrate("a", "gpu1")
    core.give_back("a")
    core.share("b", 900, 900)
    core.parked("a", GIB)
    assert (core.job("a").device, core.state("a")) == ("gpu0", JobState.UNPARKING)
    assert "40 % of gpu1" in core.job("a").move_refused


def test_v2_the_guarantee_of_a_mover_is_kept_on_the_source_until_it_has_arrived(make_core: MakeCore) -> None:
    core = two_devices(make_core)
    core.share("a", 400, 400)
    core.migrate("a", "gpu1")
    core.give_back("a")
    core.parked("a", GIB)
    assert core.job("a").kept_on == "gpu0"
    core.submit_known("c", SMALL, guaranteed_milli=700, limit_milli=700, device="gpu0")
    assert core.state("c") is JobState.QUEUED
    (refused,) = only(core.share("a", 600, 600), RejectEvent)
    assert "of gpu1" in refused.reason
    core.unparked("a")
    assert core.state("c") is JobState.STARTING


def test_nobody_is_parked_for_a_job_whose_guarantee_has_no_room(make_core: MakeCore) -> None:
    core = make_core()
    core.settle_in("a", BIG, guaranteed_milli=700)
    core.submit_known("b", BIG, guaranteed_milli=400)
    core.run(10 * SECOND)
    assert core.state("b") is JobState.QUEUED
    assert only(core.effects, ParkJob) == []
    assert "waits for compute" in core.reason("b")
    core.share("a", 600, 1000)
    core.run(10 * SECOND)
    assert [effect.job for effect in only(core.effects, ParkJob)][:1] == ["a"]


def test_s3_jobs_that_are_taken_back_have_what_the_others_leave(make_core: MakeCore) -> None:
    core = make_core()
    core.adopt("a", holding=True, known=SMALL, guaranteed_milli=700, limit_milli=800)
    core.adopt("b", holding=False, known=SMALL, guaranteed_milli=700, limit_milli=800)
    assert (core.job("a").guaranteed_milli, core.job("b").guaranteed_milli) == (700, 300)


def test_d5_a_job_at_its_limit_is_nobodys_successor(make_core: MakeCore) -> None:
    core = make_core("fair")
    core.settle_in("a", SMALL)
    core.settle_in("b", SMALL, limit_milli=50)
    core.settle_in("c", SMALL)
    named: list[tuple[str, bool]] = []
    while len(named) < 20:
        while not core.recalled:
            core.now = core.scheduler.next_wakeup() or core.now + SECOND
            for holder in core.scheduler.holders():
                core.report(holder, cpu_ns=core.now)
            core.tick()
        core.tick()  # chosen anew
        successor = core.scheduler.successor(JobId(core.recalled[0]))
        if successor is not None and core.state("b") is JobState.WAITING:
            is_at_limit = "its next turn is due in" in core.reason("b")
            named.append((successor.job, is_at_limit))
        core.now += 10 * MS
        core.give_back(core.recalled[0])
    assert ("b", True) not in named
    assert {is_at_limit for _, is_at_limit in named} == {True, False}
