"""A4: a job's wall time is the sum of its rows, also when it was parked, and its waiting names who had the turn."""

from __future__ import annotations

from carpool.core.events import JobAdopted, JobSubmitted, ProgressSeen
from carpool.core.model import Account, DeviceId, JobId, JobSpec, JobState
from carpool.units import GIB, MS, SECOND
from tests.core.driver import CoreDriver, MakeCore, needs

SMALL = needs(GIB, GIB)


def wall_ns(core: CoreDriver, job: str) -> int:
    return sum(core.job(job).spent_ns.values())


def test_the_rows_of_jobs_that_share_add_up_to_the_wall_clock(core: CoreDriver) -> None:
    core.settle_in("a", SMALL)
    core.wait(SECOND)
    core.settle_in("b", SMALL)
    core.run(10 * SECOND)
    assert wall_ns(core, "a") == core.now
    assert wall_ns(core, "b") == core.now - SECOND
    for job, other in (("a", "b"), ("b", "a")):
        picture = core.job(job)
        assert picture.spent_ns["run"] == picture.served_ns
        assert set(picture.waited_for_ns) == {other}
        assert picture.spent_ns["turn"] == picture.waited_ns == picture.waited_for_ns[JobId(other)]


def test_the_rows_of_a_parked_job_add_up_to_the_wall_clock(core: CoreDriver) -> None:
    core.submit_known("a", SMALL)
    core.wait(3 * SECOND)
    core.ask("a")
    core.wait(2 * SECOND)
    core.suspend("a")
    core.wait(10 * MS)
    core.give_back("a")
    core.wait(40 * MS)
    core.parked("a", GIB)
    core.wait(7 * SECOND)
    core.resume("a")
    core.wait(60 * MS)
    core.unparked("a")
    core.wait(SECOND)
    core.exit("a")
    core.wait(5 * SECOND)
    assert core.job("a").spent_ns == {
        "start": 3 * SECOND,
        "run": 3 * SECOND + 10 * MS,
        "move": 100 * MS,
        "parked": 7 * SECOND,
    }


def test_a_job_in_the_queue_waits_for_memory(core: CoreDriver) -> None:
    core.settle_in("a", needs(10 * GIB, GIB))
    core.submit_known("b", needs(10 * GIB, GIB))
    core.wait(SECOND)
    assert core.job("b").spent_ns == {"memory": SECOND}
    assert core.job("b").waited_ns == SECOND


def test_a_job_that_outgrew_its_promise_waits_for_memory_and_then_for_a_turn(core: CoreDriver) -> None:
    core.settle_in("a", needs(7 * GIB, GIB))
    core.settle_in("b", needs(7 * GIB, GIB))
    core.measure("b", needs(9 * GIB, GIB))
    core.wait(SECOND)
    assert core.job("b").spent_ns == {"memory": SECOND}
    core.measure("a", needs(GIB, GIB))
    core.wait(2 * SECOND)
    core.report("a")
    assert core.job("b").spent_ns == {"memory": SECOND, "turn": 2 * SECOND}
    assert core.job("b").waited_for_ns == {"a": 2 * SECOND}


def test_a_suspended_job_that_cannot_leave_is_as_good_as_parked(core: CoreDriver) -> None:
    core.settle_in("a", SMALL)
    core.suspend("a")
    core.give_back("a")
    core.move_failed("a")
    core.wait(SECOND)
    assert core.job("a").spent_ns == {"parked": SECOND}


def test_its_own_input_is_a_row_of_its_own_with_and_without_a_turn(core: CoreDriver) -> None:
    core.settle_in("a", SMALL)
    core.wait(4 * SECOND)
    core.send(stalled("a", 3 * SECOND, 3 * SECOND))
    core.give_back("a", wants_more=False)
    core.wait(2 * SECOND)
    core.send(stalled("a", 4 * SECOND, 3 * SECOND))
    assert core.job("a").spent_ns == {"run": SECOND, "idle": SECOND, "input": 4 * SECOND}
    assert wall_ns(core, "a") == core.now


def stalled(job: str, stall_ns: int, held_ns: int) -> ProgressSeen:
    return ProgressSeen(
        job=JobId(job), steps=0, cpu_ns=SECOND, live_bytes=0, stall_ns=stall_ns, stall_held_ns=held_ns
    )


def handed_on(core: CoreDriver, job: str) -> Account:
    return core.scheduler.account_of(JobId(job), now=core.now)


def adopted(core: CoreDriver, account: Account, *, holding: bool) -> JobAdopted:
    return JobAdopted(
        job=JobId("b"),
        spec=JobSpec(name="b"),
        device=DeviceId("gpu0"),
        holding=holding,
        steps=9,
        live_bytes=GIB,
        needs=SMALL,
        account=account,
    )


def shared(core: CoreDriver) -> None:
    core.wait(SECOND)
    core.settle_in("a", SMALL)
    core.settle_in("b", SMALL)
    core.run(5 * SECOND)


def test_an_account_survives_the_driver_and_what_passed_without_one_is_a_row(make_core: MakeCore) -> None:
    before, after = make_core(), make_core()
    shared(before)
    account, had = handed_on(before, "b"), before.job("b")
    after.now = before.now + 3 * SECOND
    after.send(adopted(after, account, holding=False))
    now = after.job("b")
    assert now.spent_ns == {**had.spent_ns, "away": 3 * SECOND}
    assert (now.served_ns, now.waited_ns, now.waited_for_ns) == (had.served_ns, had.waited_ns, had.waited_for_ns)
    assert now.arrived_ns == had.arrived_ns == SECOND
    after.ask("b")
    after.run(SECOND)
    assert wall_ns(after, "b") == after.now - SECOND


def test_a_holder_kept_running_while_there_was_no_driver(make_core: MakeCore) -> None:
    before, after = make_core(), make_core()
    shared(before)
    before.give_back("a", wants_more=False)
    assert before.holders() == ["b"]
    account, had = handed_on(before, "b"), before.job("b")
    after.now = before.now + 3 * SECOND
    after.send(adopted(after, account, holding=True))
    assert after.job("b").served_ns == had.served_ns + 3 * SECOND == after.job("b").spent_ns["run"]
    assert wall_ns(after, "b") == after.now - SECOND


def test_the_time_in_the_queue_survives_the_driver(make_core: MakeCore) -> None:
    before, after = make_core(), make_core()
    before.settle_in("a", needs(10 * GIB, GIB))
    before.submit("b", cap_bytes=10 * GIB)
    before.wait(SECOND)
    account = handed_on(before, "b")
    after.settle_in("a", needs(10 * GIB, GIB))
    after.wait(4 * SECOND)
    after.send(JobSubmitted(job=JobId("b"), spec=JobSpec(name="b", cap_bytes=10 * GIB), account=account))
    assert after.state("b") is JobState.QUEUED
    assert after.job("b").spent_ns == {"memory": 4 * SECOND}


def test_an_account_of_another_boot_is_not_believed(core: CoreDriver) -> None:
    account = Account(
        arrived_ns=0, at_ns=9, row="run", row_since_ns=0, spent_ns={"run": 9}, waited_for_ns={}, served_ns=9
    )
    core.send(adopted(core, account, holding=True))
    assert wall_ns(core, "b") == 0
