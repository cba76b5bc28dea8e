"""A4: a job's wall time is the sum of its rows, also when it was parked, and its waiting names who had the turn."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

import pytest

from carpool.core.kernel.ids import DeviceId, JobId
from carpool.core.node.events import JobAdopted, JobSubmitted, ProgressSeen
from carpool.core.node.lifecycle import carry_on
from carpool.core.node.model import Account, JobSpec, JobState, Why
from carpool.units import GIB, MS, SECOND
from tests.core.node.driver import CoreDriver, MakeCore, needs

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


class Found(TypedDict, total=False):
    """What the next driver finds of a job."""

    is_parked: bool
    parked_bytes: int
    held_for: tuple[Why, ...]
    is_waiting: bool


def adopted(account: Account, *, holding: bool, steps: int = 9, **found: Unpack[Found]) -> JobAdopted:
    return JobAdopted(
        job=JobId("b"),
        spec=JobSpec(name="b"),
        device=DeviceId("gpu0"),
        holding=holding,
        steps=steps,
        live_bytes=GIB,
        needs=SMALL,
        account=account,
        **found,
    )


def note_of(row: str, spent_ns: int, *, steps: int = 9) -> Account:
    """The account of a job that has done one thing since it came at 1 s."""
    return Account(
        arrived_ns=SECOND,
        at_ns=SECOND + spent_ns,
        row=row,
        row_since_ns=SECOND,
        spent_ns={row: spent_ns},
        waited_for_ns={},
        served_ns=0,
        steps=steps,
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
    after.send(adopted(account, holding=False))
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
    after.send(adopted(account, holding=True))
    assert after.job("b").served_ns == had.served_ns + 3 * SECOND == after.job("b").spent_ns["run"]
    assert wall_ns(after, "b") == after.now - SECOND


A5 = [
    # What the last note says, what the next driver finds 3 s later, and where these 3 s go.
    ("run", {"holding": True}, {"run": 3000}),
    ("parked", {"is_parked": True}, {"parked": 3000}),
    ("parked", {"held_for": (Why.SUSPENDED,), "is_waiting": True}, {"parked": 3000}),
    ("start", {"steps": 0}, {"start": 3000}),
    ("idle", {"steps": 9}, {"idle": 3000}),
    ("unmanaged", {"steps": 9}, {"unmanaged": 3000}),
    # It changed after the last note, and nobody knows when: at most half a second before the driver went.
    ("turn", {"holding": True}, {"away": 500, "run": 2500}),
    ("move", {"is_parked": True}, {"away": 500, "parked": 2500}),
    ("run", {"held_for": (Why.SUSPENDED,), "is_waiting": True}, {"away": 500, "parked": 2500}),
    # It waited for a driver, or nobody knows what it did.
    ("turn", {"is_waiting": True}, {"away": 3000}),
    ("start", {"steps": 0, "is_waiting": True}, {"away": 3000}),
    ("start", {"steps": 2}, {"away": 3000}),
    ("idle", {"steps": 12}, {"away": 3000}),
    ("run", {"steps": 9}, {"away": 3000}),
]


@pytest.mark.parametrize(("row", "found", "passed_ms"), A5)
def test_what_a_job_is_known_to_have_done_without_a_driver_stands_in_its_row(
    core: CoreDriver, row: str, found: dict[str, Any], passed_ms: dict[str, int]
) -> None:
    account = note_of(row, 7 * SECOND, steps=0 if row == "start" else 9)
    core.now = 11 * SECOND
    core.send(adopted(account, **{"holding": False, **found}))
    had_ms = {row: 7000}
    expected = {each: (had_ms.get(each, 0) + passed_ms.get(each, 0)) * MS for each in had_ms | passed_ms}
    assert core.job("b").spent_ns == expected
    assert core.job("b").served_ns == passed_ms.get("run", 0) * MS


def test_a_gap_no_longer_than_what_is_not_noted_is_unknown(core: CoreDriver) -> None:
    core.now = 8 * SECOND + 300 * MS
    core.send(adopted(note_of("turn", 7 * SECOND), holding=True))
    assert core.job("b").spent_ns == {"turn": 7 * SECOND, "away": 300 * MS}


@pytest.mark.parametrize(
    ("found", "row"),
    [
        ({"held_for": (Why.SUSPENDED,), "is_waiting": True}, "parked"),
        ({"is_waiting": True}, "away"),
        ({"steps": 9}, "idle"),
        ({"steps": 0}, "start"),
    ],
)
def test_until_it_says_itself_what_it_wants_a_job_does_what_it_was_found_at(
    core: CoreDriver, found: dict[str, Any], row: str
) -> None:
    core.now = 8 * SECOND
    core.send(adopted(note_of("turn", 7 * SECOND), **{"holding": False, **found}))
    core.wait(2 * SECOND)
    assert core.job("b").spent_ns == {"turn": 7 * SECOND, row: 2 * SECOND}
    core.ask("b")
    assert wall_ns(core, "b") == 9 * SECOND


def test_an_account_that_was_not_noted_again_goes_on_with_what_the_job_did() -> None:
    noted = note_of("run", 7 * SECOND)
    later = carry_on(noted, 20 * SECOND)
    assert (later.at_ns, later.spent_ns, later.served_ns) == (20 * SECOND, {"run": 19 * SECOND}, 12 * SECOND)
    assert carry_on(noted, 3 * SECOND) == noted
    assert carry_on(note_of("idle", 7 * SECOND), 20 * SECOND).served_ns == 0


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
    core.send(adopted(account, holding=True))
    assert wall_ns(core, "b") == 0


# --- a job's own compute limit ------------------------------------------------------------------------------


def spend_its_limit(core: CoreDriver) -> None:
    """`a` has had 100 ms of a device of which it may have a quarter: its next turn is due 420 ms after its first."""
    core.submit_known("a", SMALL, limit_milli=250)
    core.ask("a")
    core.wait(100 * MS)
    core.give_back("a")
    assert core.holders() == []


def test_time_at_its_own_limit_is_no_waiting_for_a_turn(core: CoreDriver) -> None:
    spend_its_limit(core)
    core.wait(320 * MS)
    assert core.job("a").spent_ns == {"run": 100 * MS, "limit": 320 * MS}
    core.tick()
    assert core.holders() == ["a"]
    core.wait(50 * MS)
    assert core.job("a").spent_ns == {"run": 150 * MS, "limit": 320 * MS}
    assert core.job("a").waited_ns == 320 * MS
    assert core.job("a").waited_for_ns == {}


def test_a_limit_ends_in_the_account_when_it_ends_and_not_at_the_next_event(core: CoreDriver) -> None:
    spend_its_limit(core)
    core.wait(900 * MS)
    assert core.job("a").spent_ns == {"run": 100 * MS, "limit": 320 * MS, "turn": 580 * MS}
    account = handed_on(core, "a")
    assert (account.row, account.row_since_ns) == ("turn", 420 * MS)
    assert account.spent_ns == {"run": 100 * MS, "limit": 320 * MS, "turn": 580 * MS}
    core.tick()
    core.wait(SECOND)
    assert core.job("a").spent_ns == {"run": 1100 * MS, "limit": 320 * MS, "turn": 580 * MS}


def test_only_what_comes_after_its_limit_was_waited_for_another(core: CoreDriver) -> None:
    spend_its_limit(core)
    core.settle_in("b", SMALL)
    core.wait(150 * MS)
    core.report("b")
    assert core.job("a").waited_for_ns == {}
    core.wait(750 * MS)
    core.report("b")
    assert core.job("a").spent_ns == {"run": 100 * MS, "limit": 320 * MS, "turn": 580 * MS}
    assert core.job("a").waited_for_ns == {"b": 580 * MS}
    assert core.job("b").spent_ns == {"run": 900 * MS}


def test_a_limit_that_is_lifted_meanwhile_counts_until_then(core: CoreDriver) -> None:
    spend_its_limit(core)
    core.settle_in("b", SMALL)
    core.wait(100 * MS)
    core.share("a", 0, 1000)
    core.wait(200 * MS)
    core.report("b")
    assert core.job("a").spent_ns == {"run": 100 * MS, "limit": 100 * MS, "turn": 200 * MS}
    assert core.job("a").waited_for_ns == {"b": 200 * MS}


def test_a_limit_that_is_set_while_it_waits_counts_from_then_on(core: CoreDriver) -> None:
    core.settle_in("a", SMALL, limit_milli=500)
    core.wait(100 * MS)
    core.give_back("a")
    core.settle_in("b", SMALL)
    core.wait(60 * MS)
    core.share("a", 0, 1000)
    core.wait(40 * MS)
    core.share("a", 0, 500)
    core.wait(100 * MS)
    assert core.job("a").spent_ns == {"run": 100 * MS, "limit": 80 * MS, "turn": 120 * MS}


def test_who_lacks_memory_as_well_waits_for_memory(core: CoreDriver) -> None:
    core.settle_in("older", needs(7 * GIB, GIB))
    core.give_back("older", wants_more=False)
    core.wait(MS)
    core.settle_in("a", needs(7 * GIB, GIB), limit_milli=250)
    core.wait(100 * MS)
    core.measure("a", needs(9 * GIB, GIB))
    core.give_back("a")
    core.wait(SECOND)
    assert core.job("a").spent_ns == {"run": 100 * MS, "memory": SECOND}


def test_a_job_that_ended_says_how_long_its_limit_kept_it(core: CoreDriver) -> None:
    spend_its_limit(core)
    core.tick(after_ns=320 * MS)
    core.exit("a")
    assert core.reason("a") == (
        "finished: exit code 0; had the device 100 ms, waited 0 ns for turns and 320 ms because of its compute limit"
    )
