"""Jobs that outlived the driver: taken back with what they hold."""

from __future__ import annotations

from carpool.core.kernel.ids import JobId
from carpool.core.node.effects import GrantLease, RecallLease, RejectEvent, RevokeLease, SetCap
from carpool.core.node.model import JobState
from carpool.units import GIB, MS, SECOND
from tests.core.node.driver import CoreDriver, MakeCore, needs, only

KNOWN = needs(2 * GIB, 3 * GIB)


def test_a_job_that_kept_its_turn_goes_on_running(core: CoreDriver) -> None:
    effects = core.adopt("a", holding=True, known=KNOWN, steps_made=40, live_bytes=4 * GIB)
    assert only(effects, GrantLease) == [], "it has its turn already"
    assert only(effects, SetCap) == [SetCap(job=JobId("a"), cap_bytes=16 * GIB)]
    job = core.job("a")
    assert (job.state, job.steps, job.live_bytes) == (JobState.RUNNING, 40, 4 * GIB)
    assert (job.promised_bytes, core.lane_of("a").bytes) == (2 * GIB, 3 * GIB)
    core.wait(SECOND)
    assert core.served_ns("a") == SECOND


def test_a_job_that_was_still_being_measured_is_measured_on(core: CoreDriver) -> None:
    core.adopt("a", holding=True, live_bytes=GIB)
    assert core.state("a") is JobState.PROFILING
    core.measure("a", KNOWN)
    assert core.state("a") is JobState.RUNNING


def test_a_job_without_a_turn_is_taken_back_and_asks(core: CoreDriver) -> None:
    core.adopt("a", holding=False, known=KNOWN)
    assert core.state("a") is JobState.STARTING
    assert only(core.ask("a"), GrantLease)[0].lane_bytes == 3 * GIB


def test_of_two_jobs_that_say_they_hold_one_lane_the_first_keeps_it(core: CoreDriver) -> None:
    core.adopt("a", holding=True, known=KNOWN)
    [revoked] = only(core.adopt("b", holding=True, known=KNOWN), RevokeLease)
    assert revoked.job == "b"
    assert core.holders() == ["a"]
    core.ask("b")
    assert core.state("b") is JobState.WAITING


def test_a_return_that_crosses_the_revocation_of_an_adopted_job_counts_as_its_wish(core: CoreDriver) -> None:
    core.adopt("a", holding=True, known=KNOWN)
    core.adopt("b", holding=True, known=KNOWN)
    core.give_back("b", wants_more=True)
    assert core.state("b") is JobState.WAITING
    core.wait(SECOND)
    assert only(core.give_back("a"), GrantLease)[0].job == "b"


def test_the_turn_of_an_adopted_job_is_recalled_like_any_other(core: CoreDriver) -> None:
    core.adopt("a", holding=True, known=KNOWN)
    core.adopt("b", holding=False, known=KNOWN)
    core.ask("b")
    assert only(core.tick(100 * MS), RecallLease)[0].job == "a"


def test_adopted_jobs_get_what_the_ledger_allows_and_the_rest_when_there_is_room(core: CoreDriver) -> None:
    core.adopt("a", holding=True, known=needs(9 * GIB, 2 * GIB))
    core.adopt("b", holding=False, known=needs(9 * GIB, 2 * GIB))
    assert core.job("b").promised_bytes == 5 * GIB, "what was free then"
    core.ask("b")
    core.run(SECOND)
    assert core.served_ns("b") == 0
    core.exit("a")
    assert core.holders() == ["b"]
    assert core.job("b").promised_bytes == 9 * GIB


def test_an_adopted_job_of_unknown_size_is_promised_what_it_holds(core: CoreDriver) -> None:
    core.adopt("a", holding=False, live_bytes=3 * GIB)
    assert core.job("a").promised_bytes == 3 * GIB
    core.adopt("b", holding=False, live_bytes=GIB, cap_bytes=4 * GIB)
    assert core.job("b").promised_bytes == 4 * GIB


def test_an_adopted_job_is_refused_by_a_device_that_is_gone(core: CoreDriver) -> None:
    rejected = RejectEvent(job=JobId("a"), event="JobAdopted", reason="device gpu9 is not here")
    assert core.adopt("a", holding=True, on="gpu9") == [rejected]
    assert core.scheduler.picture_job(JobId("a"), now=core.now) is None


def test_a_job_is_adopted_once(core: CoreDriver) -> None:
    core.adopt("a", holding=True, known=KNOWN)
    before = core.scheduler.picture(now=core.now)
    assert isinstance(core.adopt("a", holding=True, known=KNOWN)[0], RejectEvent)
    assert core.scheduler.picture(now=core.now) == before


def test_a_job_adopted_late_does_not_catch_up_with_what_others_had(core: CoreDriver) -> None:
    core.adopt("a", holding=False, known=KNOWN)
    core.ask("a")
    core.run(100 * SECOND)
    core.give_back("a", wants_more=False)
    core.adopt("b", holding=True, known=KNOWN)
    core.ask("a")
    before = core.now
    core.run(10 * SECOND)
    assert core.longest_gap_ns("a", since_ns=before) <= 400 * MS


def test_side_by_side_adopted_holders_keep_their_turns_under_pack(make_core: MakeCore) -> None:
    core = make_core("pack")
    core.adopt("a", holding=True, known=KNOWN)
    core.adopt("b", holding=True, known=KNOWN)
    assert core.holders() == ["a", "b"]
    core.run(SECOND)
    assert core.holders() == ["a", "b"]
