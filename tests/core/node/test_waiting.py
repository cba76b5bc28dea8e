"""W1 to W8: an allocation waits for memory: others go on, make room, or it is told that there will be none."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.core.kernel.ids import JobId
from carpool.core.node.effects import DenyMemory, GrantLease, ParkJob, RevokeLease, SetCap, StopJob
from carpool.core.node.memory.waiting import Part, is_safe
from carpool.core.node.model import ENDED, HOLDING, JobState
from carpool.core.node.settings import Settings
from carpool.units import GIB, MS, SECOND
from tests.core.node.driver import NOBODY_MOVES, CoreDriver, MakeCore, needs, only

A = JobId("a")
SMALL = needs(GIB, GIB)
DAY = 24 * 3600 * SECOND


def blocked(core: CoreDriver, job: str = "a") -> None:
    """x has 10 GiB of 16; the job holds 4 GiB and asks for 3 more. b wants turns too."""
    core.submit("x", cap_bytes=10 * GIB)
    core.settle_in(job, needs(2 * GIB, GIB), wait_memory_ns=DAY)
    core.settle_in("b", SMALL)
    core.block(job, 4 * GIB, 3 * GIB)


def caps(core: CoreDriver, job: str = "a") -> list[int]:
    return [cap.cap_bytes for cap in only(core.effects, SetCap) if cap.job == job]


def test_w1_its_turn_is_taken_and_what_it_holds_is_promised_to_it(core: CoreDriver) -> None:
    blocked(core)
    assert core.state("a") is JobState.BLOCKED
    assert [each.job for each in only(core.effects, RevokeLease)] == ["a"]
    assert core.holders() == ["b"], "others go on"
    assert core.job("a").promised_bytes == 4 * GIB
    assert core.reason("a") == (
        "an allocation of 3.00 GiB waits for memory: the job holds 4.00 GiB, was promised 4.00 GiB, and 0 B of"
        " 16.0 GiB is unpromised on gpu0 (15.0 GiB to jobs, 1.00 GiB in lanes)"
    )
    assert caps(core)[-1] == 4 * GIB, "nothing slips through meanwhile"


def test_w1_a_job_that_waits_for_memory_is_not_parked_where_it_stands(core: CoreDriver) -> None:
    blocked(core)
    core.suspend("a")
    core.run(SECOND)
    assert core.state("a") is JobState.BLOCKED
    core.exit("x")
    core.run(SECOND)
    assert core.state("a") in (JobState.PARKING, JobState.PARKED), "it ended its turn first"


def test_a_cap_that_was_raised_meanwhile_costs_nobody_his_turn(core: CoreDriver) -> None:
    core.settle_in("a", SMALL)
    core.report("a", live_bytes=2 * GIB, pending_bytes=GIB)
    assert core.state("a") is JobState.RUNNING
    core.report("a", live_bytes=3 * GIB)
    assert core.state("a") is JobState.RUNNING


def test_w2_it_gets_its_memory_with_its_turn_and_not_before(core: CoreDriver) -> None:
    blocked(core)
    effects = core.exit("x")
    assert core.job("a").promised_bytes == 7 * GIB
    assert [cap for cap in only(effects, SetCap) if cap.job == "a"] == []
    assert core.reason("a").endswith("; there is room now, and it waits for its turn")
    effects = core.give_back("b")
    assert [type(effect) for effect in effects] == [GrantLease, SetCap]
    assert caps(core)[-1] >= 7 * GIB
    assert core.state("a") is JobState.RUNNING


def test_d5_nobody_but_the_core_may_hand_it_its_turn_because_bytes_come_with_it(core: CoreDriver) -> None:
    blocked(core)
    core.exit("x")
    core.tick(100 * MS)
    assert core.recalled == ["b"]
    assert core.scheduler.successor(JobId("b")) is None
    granted = only(core.give_back("b"), GrantLease)
    assert [grant.job for grant in granted] == ["a"]


def test_d5_nobody_follows_a_holder_whose_return_frees_the_bytes_it_waited_for(core: CoreDriver) -> None:
    core.settle_in("a", needs(2 * GIB, 2 * GIB))
    core.settle_in("b", SMALL)
    core.block("a", 3 * GIB, 2 * GIB)
    core.tick(100 * MS)
    core.give_back("b")
    assert (core.holders(), core.job("a").promised_bytes) == (["a"], 5 * GIB)
    core.tick(100 * MS)
    assert core.recalled == ["a"]
    assert core.scheduler.successor(A) is None, "its lane grows again with its return"
    [grant] = only(core.give_back("a"), GrantLease)
    assert (grant.job, grant.lane_bytes) == ("b", 2 * GIB)
    core.tick(200 * MS)
    following = core.scheduler.successor(JobId("b"))
    assert following is not None and only(core.give_back("b"), GrantLease) == [following], "then as ever"


def test_its_wall_time_is_waiting_for_memory_and_then_for_a_turn(core: CoreDriver) -> None:
    blocked(core)
    before = core.job("a").spent_ns
    core.run(3 * SECOND)
    spent = core.job("a").spent_ns
    assert spent["memory"] - before.get("memory", 0) == 3 * SECOND
    assert sum(spent.values()) == core.now


def test_an_allocation_that_gave_up_leaves_the_job_without_a_turn_until_it_asks(core: CoreDriver) -> None:
    blocked(core)
    core.report("a", live_bytes=4 * GIB)
    assert core.state("a") is JobState.IDLE
    core.ask("a")
    assert core.state("a") is JobState.WAITING


def test_w4_a_job_at_its_own_cap_waits_for_a_larger_one(core: CoreDriver) -> None:
    core.submit("a", cap_bytes=4 * GIB, wait_memory_ns=DAY)
    core.ask("a")
    core.measure("a", SMALL)
    core.block("a", 3 * GIB, 2 * GIB)
    assert core.reason("a") == (
        "an allocation of 2.00 GiB waits for memory: the job holds 3.00 GiB and may hold 4.00 GiB;"
        " go on with: carpool resize a --memory SIZE"
    )
    effects = core.resize("a", 6 * GIB)
    assert [type(effect) for effect in effects if not isinstance(effect, SetCap)][:1] == [GrantLease]
    assert SetCap(job=A, cap_bytes=6 * GIB) in effects


def test_w4_one_that_was_not_told_to_wait_fails_at_once_at_a_cap_that_was_drawn_meanwhile(core: CoreDriver) -> None:
    core.submit("x", cap_bytes=10 * GIB)
    core.settle_in("a", needs(2 * GIB, GIB))
    core.block("a", 4 * GIB, 3 * GIB)
    assert only(core.effects, DenyMemory) == [], "x may end"
    effects = core.resize("a", 5 * GIB)
    assert [each.reason for each in only(effects, DenyMemory)] == [
        "memory cap reached: job a may hold 5.00 GiB, holds 4.00 GiB and asked for 3.00 GiB more; raise the cap with"
        " carpool resize a --memory SIZE"
    ]
    core.run(SECOND)
    assert len(only(core.effects, DenyMemory)) == 1


def test_w3_two_half_filled_jobs_do_not_wait_for_each_other(make_core: MakeCore) -> None:
    """a came first; but given the 5 GiB that are free it would need one more, and b four: nobody could end."""
    core = make_core("fifo", settings=NOBODY_MOVES)
    core.settle_in("a", needs(2 * GIB, 10 * GIB), wait_memory_ns=DAY)
    core.settle_in("b", needs(2 * GIB, 5 * GIB), wait_memory_ns=DAY)
    core.block("a", 6 * GIB, 5 * GIB)
    assert core.holders() == ["b"]
    core.block("b", 5 * GIB, 4 * GIB)
    assert core.device().free_bytes == GIB, "5 GiB were free, b has been given 4 of them"
    assert (core.job("a").promised_bytes, core.job("b").promised_bytes) == (6 * GIB, 9 * GIB)
    assert core.holders() == ["b"]
    core.measure("b", needs(2 * GIB, 7 * GIB))
    core.give_back("b", wants_more=False)
    core.exit("b")
    assert core.holders() == ["a"]


def test_w3_where_there_is_no_safe_order_the_first_gets_what_there_is(make_core: MakeCore) -> None:
    core = make_core("fifo", settings=NOBODY_MOVES)
    core.submit("x", cap_bytes=4 * GIB)
    core.settle_in("a", needs(2 * GIB, 6 * GIB), wait_memory_ns=DAY)
    core.settle_in("b", needs(2 * GIB, 4 * GIB), wait_memory_ns=DAY)
    core.block("a", 4 * GIB, 7 * GIB)
    core.block("b", 4 * GIB, 7 * GIB)
    assert (core.state("a"), core.state("b"), core.holders()) == (JobState.BLOCKED, JobState.BLOCKED, [])
    core.exit("x")
    assert core.holders() == ["a"]
    assert core.state("b") is JobState.BLOCKED


def test_w5_somebody_who_waits_at_a_boundary_makes_room_at_once(core: CoreDriver) -> None:
    """Nobody has to ask for it: a was not told to wait for memory."""
    core.settle_in("a", needs(4 * GIB, GIB))
    core.settle_in("b", needs(4 * GIB, GIB))
    core.block("a", 11 * GIB, 3 * GIB)
    assert core.holders() == [], "b could run, and would only grow itself"
    assert [order.reason for order in only(core.effects, ParkJob)] == ["b makes room for an allocation that waits"]
    core.parked("b", 4 * GIB)
    assert core.holders() == ["a"]
    assert only(core.effects, DenyMemory) == []


def test_w5_who_made_room_comes_back_when_the_device_was_quiet_and_at_once_when_it_is_free(core: CoreDriver) -> None:
    core.settle_in("a", needs(4 * GIB, 6 * GIB))
    core.settle_in("b", needs(4 * GIB, 6 * GIB))
    core.block("a", 11 * GIB, 3 * GIB)
    core.parked("b", 4 * GIB, move_ns=100 * MS)
    core.give_back("a")
    assert (core.state("b"), core.holders()) == (JobState.PARKED, ["a"]), "a job that grew is likely to grow on"
    assert "comes back by itself" in core.reason("b")
    core.run(1800 * MS)
    assert core.state("b") is JobState.PARKED
    core.run(200 * MS)
    assert core.state("b") is not JobState.PARKED, "19 times as long as the move took"


def test_w5_who_made_room_is_not_kept_away_from_an_empty_device(core: CoreDriver) -> None:
    core.settle_in("a", needs(4 * GIB, 6 * GIB))
    core.settle_in("b", needs(4 * GIB, 6 * GIB))
    core.block("a", 11 * GIB, 3 * GIB)
    core.parked("b", 4 * GIB, move_ns=SECOND)
    core.exit("a")
    assert core.state("b") is JobState.UNPARKING


def test_w5_no_more_leave_than_needed_and_the_last_of_the_order_first(make_core: MakeCore) -> None:
    core = make_core("fifo")
    for job in ("a", "b", "c", "d"):
        core.settle_in(job, needs(3 * GIB, 0))
        core.wait(1)
    core.block("a", 5 * GIB, 3 * GIB)
    assert [order.job for order in only(core.effects, ParkJob)] == ["d"]
    assert core.holders() == ["b"], "others go on meanwhile"
    core.parked("d", 3 * GIB)
    assert core.recalled == ["b"]
    core.give_back("b")
    assert core.holders() == ["a"]


def test_w5_a_program_that_starts_gets_room_too_at_the_next_boundary_of_others(core: CoreDriver) -> None:
    core.settle_in("a", needs(8 * GIB, GIB))
    core.submit("b")
    core.report("b", live_bytes=6 * GIB, pending_bytes=3 * GIB)
    assert core.recalled == ["a"]
    assert core.reason("b").startswith("an allocation of 3.00 GiB waits for memory: the job holds 6.00 GiB")
    core.give_back("a")
    core.parked("a", 8 * GIB)
    assert (core.state("b"), core.job("b").promised_bytes) == (JobState.STARTING, 9 * GIB)
    assert caps(core, "b")[-1] == 16 * GIB
    core.report("b", live_bytes=9 * GIB)
    core.ask("b")
    core.measure("b", needs(9 * GIB, GIB))
    core.run(60 * SECOND)
    assert min(core.served_ns("a"), core.served_ns("b")) > 20 * SECOND, "and both get on from there"
    assert only(core.effects, DenyMemory) == []


@pytest.mark.parametrize("is_host_full", [False, True])
def test_w5_one_that_cannot_make_room_is_free_again_and_asked_later(make_core: MakeCore, is_host_full: bool) -> None:
    core = make_core(settings=Settings(margin_percent=0, host_bytes_max=5 * GIB))
    if is_host_full:
        core.adopt("away", holding=False, known=SMALL, parked_bytes=4 * GIB, is_suspended=True)
    core.settle_in("a", needs(4 * GIB, 6 * GIB), wait_memory_ns=DAY)
    core.settle_in("b", needs(4 * GIB, 6 * GIB))
    core.block("a", 11 * GIB, 3 * GIB)
    if not is_host_full:
        core.move_failed("b")
        assert core.reason("b").startswith("waits for memory: "), "not stopped for good"
        assert only(core.effects, DenyMemory) == [], "a may wait, and b is asked again"
    assert (core.state("b"), core.holders()) == (JobState.WAITING, [])
    if is_host_full:
        core.exit("away")
    core.tick(11 * SECOND)
    assert core.state("b") is JobState.PARKING


def test_w6_what_was_not_told_to_wait_fails_where_no_room_can_be_made(core: CoreDriver) -> None:
    core.submit("x", cap_bytes=10 * GIB)
    core.detach("x")
    core.settle_in("a", needs(2 * GIB, GIB))
    core.settle_in("b", SMALL)
    core.block("a", 4 * GIB, 3 * GIB)
    assert [each.reason for each in only(core.effects, DenyMemory)] == [
        "out of memory: job a holds 4.00 GiB and asked for 3.00 GiB more; of the 16.0 GiB of gpu0 it can have 4.00"
        " GiB: x has 10.0 GiB, b has 1.00 GiB and 1.00 GiB is for turns; they cannot be parked for it now: let it"
        " wait with --wait-memory, or start it when they have ended"
    ]
    core.report("a", live_bytes=4 * GIB)
    assert core.state("a") is JobState.IDLE, "its program has the error, and goes on as it likes"
    core.run(5 * SECOND)
    assert len(only(core.effects, DenyMemory)) == 1


def test_w6_it_waits_a_while_for_others_that_may_come_to_a_boundary_or_end(core: CoreDriver) -> None:
    core.settle_in("x", needs(10 * GIB, GIB))
    core.settle_in("a", needs(2 * GIB, GIB))
    core.give_back("x", wants_more=False)
    core.run(10 * SECOND)
    core.block("a", 4 * GIB, 6 * GIB)
    core.run(20 * SECOND)
    assert (core.state("a"), only(core.effects, DenyMemory)) == (JobState.BLOCKED, []), "x saves, perhaps"
    core.ask("x")
    assert core.state("x") is JobState.PARKING
    core.run(100 * MS)
    assert core.holders() == ["a"]


def test_w6_it_does_not_wait_for_them_for_ever(core: CoreDriver) -> None:
    core.settle_in("a", needs(2 * GIB, GIB))
    core.submit("x", cap_bytes=GIB)
    core.block("a", 10 * GIB, 6 * GIB)
    core.run(29 * SECOND)
    assert only(core.effects, DenyMemory) == []
    core.run(2 * SECOND)
    assert [each.job for each in only(core.effects, DenyMemory)] == ["a"]


def test_w6_what_asks_again_at_once_is_told_again(core: CoreDriver) -> None:
    core.submit("x", cap_bytes=10 * GIB)
    core.detach("x")
    core.settle_in("a", needs(2 * GIB, GIB))
    core.block("a", 4 * GIB, 9 * GIB)
    core.tick(SECOND)
    assert len(only(core.effects, DenyMemory)) == 1
    core.tick(SECOND)
    assert len(only(core.effects, DenyMemory)) == 2


def test_what_a_denied_job_can_have_is_no_more_than_others_leave_however_much_they_hold(make_core: MakeCore) -> None:
    core = make_core(settings=NOBODY_MOVES)
    for job in ("a", "b"):
        core.settle_in(job, needs(6 * GIB, GIB), wait_memory_ns=DAY)
    core.wait(20 * MS)
    core.block("a", 7 * GIB, 4 * GIB)
    core.report("a", live_bytes=11 * GIB, pending_bytes=0)  # seen while the bytes it asked for were noted as its own
    core.report("a", live_bytes=11 * GIB, pending_bytes=4 * GIB)
    core.block("b", 8 * GIB, 3 * GIB)
    core.tick(SECOND)
    [denied] = only(core.effects, DenyMemory)
    assert "of the 16.0 GiB of gpu0 it can have 6.00 GiB: a has 10.0 GiB" in denied.reason


@pytest.mark.parametrize("served", ["a", "b"])
def test_w6_of_two_half_filled_jobs_the_one_with_least_to_lose_fails_at_once(
    make_core: MakeCore, served: str
) -> None:
    core = make_core(settings=NOBODY_MOVES)
    for job in ("a", "b"):
        core.settle_in(job, needs(7 * GIB, GIB), wait_memory_ns=DAY)
    core.wait(20 * MS if served == "a" else 5 * MS)
    core.block("a", 8 * GIB, 3 * GIB)
    assert only(core.effects, DenyMemory) == [], "b still runs"
    core.wait(10 * MS)
    core.block("b", 8 * GIB, 3 * GIB)
    [denied] = only(core.effects, DenyMemory)
    loser, winner = ("b", "a") if served == "a" else ("a", "b")
    assert denied.job == loser
    assert f"job {loser} holds 8.00 GiB and asked for 3.00 GiB more" in denied.reason
    assert denied.reason.endswith(
        f": {winner} has 8.00 GiB; nobody there can go on without more, and this job has the least to lose"
        f" ({'10' if served == 'a' else '5.0'} ms of device time): start them with --memory, or one by one"
    )
    core.run(SECOND)
    assert len(only(core.effects, DenyMemory)) == 1, "the other waits for what becomes of it"
    core.exit(loser, code=1)
    assert core.holders() == [winner]
    assert core.reason(loser).startswith(f"failed: exit code 1; {denied.reason}; had the device ")


def test_w6_nobody_fails_while_somebody_may_still_free_memory(make_core: MakeCore) -> None:
    core = make_core(settings=NOBODY_MOVES)
    core.submit("x", cap_bytes=2 * GIB)
    core.detach("x")
    core.settle_in("a", needs(6 * GIB, GIB), wait_memory_ns=DAY)
    core.block("a", 8 * GIB, 7 * GIB)
    core.run(60 * SECOND)
    assert only(core.effects, DenyMemory) == []
    core.exit("x")
    assert core.holders() == ["a"]


def test_w7_at_its_deadline_it_fails_with_the_numbers(core: CoreDriver) -> None:
    core.submit("a", cap_bytes=4 * GIB, wait_memory_ns=2 * SECOND)
    core.ask("a")
    core.measure("a", SMALL)
    core.block("a", 3 * GIB, 2 * GIB)
    core.run(1999 * MS)
    assert only(core.effects, DenyMemory) == []
    core.run(300 * MS)
    assert [each.reason for each in only(core.effects, DenyMemory)] == [
        "memory cap reached: job a may hold 4.00 GiB, holds 3.00 GiB and asked for 2.00 GiB more, and waited 2.0 s,"
        " as long as --wait-memory allows; raise the cap with --memory, or while it waits with carpool resize"
    ]


def test_w8_what_waits_fails_when_somebody_wants_the_job_to_end_each_time(core: CoreDriver) -> None:
    core.submit("a", cap_bytes=4 * GIB, wait_memory_ns=DAY)
    core.ask("a")
    assert core.cancel("a", is_told=True) == [], "nothing of it waits"
    core.measure("a", SMALL)
    for more in (2 * GIB, 3 * GIB):
        core.block("a", 3 * GIB, more)
        core.run(5 * SECOND)
        denied = only(core.cancel("a", is_told=True), DenyMemory)
        assert [each.reason for each in denied] == [
            f"job a holds 3.00 GiB and asked for {more // GIB}.00 GiB more, and was told to end while it waited for"
            " that"
        ]
        core.report("a", live_bytes=3 * GIB)
        assert core.state("a") is JobState.IDLE
        core.ask("a")
    assert [type(effect) for effect in core.cancel("a")] == [StopJob]
    core.block("a", 3 * GIB, 2 * GIB)
    assert [type(effect) for effect in core.cancel("a")] == [StopJob, DenyMemory]


def test_w8_it_need_not_have_lost_its_turn_yet(core: CoreDriver) -> None:
    core.submit("a", cap_bytes=4 * GIB, wait_memory_ns=DAY)
    core.ask("a")
    core.report("a", live_bytes=3 * GIB, pending_bytes=2 * GIB)
    assert core.state("a") is JobState.PROFILING
    assert [type(effect) for effect in core.cancel("a", is_told=True)] == [DenyMemory]


def can_have(core: CoreDriver) -> int:
    """What the newest denial says, in whole GiB."""
    said = re.search(r"it can have (\d+\.0+) GiB", only(core.effects, DenyMemory)[-1].reason)
    assert said is not None, only(core.effects, DenyMemory)
    return int(float(said[1])) * GIB


def beside_lanes(core: CoreDriver) -> None:
    """x has 5 GiB and takes no turns; b needs 1 GiB and 4 more in its turns."""
    core.submit("x", cap_bytes=5 * GIB)
    core.detach("x")
    core.settle_in("a", needs(2 * GIB, GIB))
    core.settle_in("b", needs(GIB, 4 * GIB))


def while_it_starts(core: CoreDriver) -> None:
    """x has 6 GiB and takes no turns."""
    core.submit("x", cap_bytes=6 * GIB)
    core.detach("x")
    core.submit("a")


@pytest.mark.parametrize("scene", [beside_lanes, while_it_starts])
def test_what_a_denial_says_that_it_can_have_is_what_it_gets(
    make_core: MakeCore, scene: Callable[[CoreDriver], None]
) -> None:
    told = make_core(settings=NOBODY_MOVES)
    scene(told)
    told.block("a", 3 * GIB, 12 * GIB)
    told.run(31 * SECOND)
    said = can_have(told)
    for more, is_denied in ((0, False), (1, True)):
        core = make_core(settings=NOBODY_MOVES)
        scene(core)
        core.block("a", 3 * GIB, said - 3 * GIB + more)
        core.run(31 * SECOND)
        assert bool(only(core.effects, DenyMemory)) == is_denied
        assert is_denied or caps(core)[-1] >= said


def test_w3_what_another_needs_to_end_its_turn_is_not_said_to_be_there(make_core: MakeCore) -> None:
    """3 GiB are free. b has what it asked for, and may need 2 more before it gives any back."""
    core = make_core("fifo", settings=NOBODY_MOVES)
    core.settle_in("c", needs(GIB, 0))
    core.give_back("c", wants_more=False)
    core.wait(1)
    core.settle_in("a", needs(2 * GIB, 8 * GIB))
    core.settle_in("b", needs(2 * GIB, 7 * GIB))
    core.block("a", 5 * GIB, 9 * GIB)
    core.ask("c")
    core.block("b", 6 * GIB, GIB)
    assert (core.holders(), core.job("b").promised_bytes, core.device().free_bytes) == (["c"], 7 * GIB, 3 * GIB)
    core.run(31 * SECOND)
    assert can_have(core) == 5 * GIB, "what it has"


def test_a_job_that_is_alone_is_told_what_it_can_do_about_that(core: CoreDriver) -> None:
    core.settle_in("a", needs(2 * GIB, GIB))
    core.block("a", 4 * GIB, 13 * GIB)
    assert [each.reason for each in only(core.effects, DenyMemory)] == [
        "out of memory: job a holds 4.00 GiB and asked for 13.0 GiB more; of the 16.0 GiB of gpu0 it can have 16.0"
        " GiB: ask for less, or use a larger device"
    ]


def test_at_the_deadline_beside_others_it_is_told_what_can_be_done(core: CoreDriver) -> None:
    core.submit("x", cap_bytes=10 * GIB)
    core.detach("x")
    core.settle_in("a", needs(2 * GIB, GIB), wait_memory_ns=2 * SECOND)
    core.block("a", 4 * GIB, 3 * GIB)
    core.run(3 * SECOND)
    assert [each.reason for each in only(core.effects, DenyMemory)] == [
        "out of memory: job a holds 4.00 GiB and asked for 3.00 GiB more; of the 16.0 GiB of gpu0 it can have 6.00"
        " GiB: x has 10.0 GiB; it waited 2.0 s, as long as --wait-memory allows: let it wait longer, or start it when"
        " they have ended"
    ]


part = st.builds(
    lambda has, rest, kept: Part(has_bytes=has, claim_bytes=has + rest, keeps_bytes=kept),
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(0, 12),
)


@given(free=st.integers(0, 12), parts=st.lists(part, max_size=5))
def test_w3_is_what_trying_every_order_says(free: int, parts: list[Part]) -> None:
    def works(order: tuple[Part, ...]) -> bool:
        left = free
        for each in order:
            if each.claim_bytes - each.has_bytes > left:
                return False
            left += max(0, each.has_bytes - each.keeps_bytes)
        return True

    assert is_safe(free, parts) == any(works(order) for order in permutations(parts))


class Growing:
    """Jobs that grow by a step at a time, and say at each boundary what they hold; all can be parked."""

    def __init__(self, policy: str, targets: list[int], growth: int) -> None:
        self.core = CoreDriver(policy)
        self.growth = growth
        self.targets = {f"job{index}": target * GIB for index, target in enumerate(targets)}
        self.live = dict.fromkeys(self.targets, GIB)
        self.asked: dict[str, int] = {}
        for job in self.targets:
            self.core.settle_in(job, needs(GIB, 0))

    def play(self) -> None:
        """One thing happens: a move ends, a holder makes a step, or time passes."""
        core = self.core
        if core.moves:
            core.now += core.move_ns
            order = core.moves[next(iter(core.moves))]
            if isinstance(order, ParkJob):
                assert order.limit_bytes >= self.live[order.job], "P3: all it holds was reserved on the host"
            core.move(order.job)
        elif holders := core.holders():
            self.step(holders[0])
        else:
            core.now = core.scheduler.next_wakeup() or core.now + SECOND
            core.tick()
        here = [job for job in self.live if core.state(job) not in (*ENDED, JobState.PARKED)]
        assert sum(self.live[job] for job in here) <= 16 * GIB, "the device holds no more than it has"

    def step(self, job: str) -> None:
        core = self.core
        core.now += 10 * MS
        more = self.asked.pop(job, 0) or min(self.growth * GIB, self.targets[job] - self.live[job])
        if self.live[job] + more > caps(core, job)[-1]:
            self.asked[job] = more
            core.block(job, self.live[job], more)
            return
        self.live[job] += more
        if not more:
            core.exit(job)
            return
        core.measure(job, needs(self.live[job], 0))
        if core.state(job) in HOLDING and (job in core.recalled or core.steps.get(job, 0) % 2):
            core.give_back(job)


@settings(max_examples=40, deadline=None)
@given(
    policy=st.sampled_from(["fair", "fifo", "srtf", "las", "priority"]),
    targets=st.lists(st.integers(1, 16), min_size=2, max_size=4),
    growth=st.integers(1, 8),
)
def test_w5_jobs_that_each_fit_alone_and_can_be_parked_all_get_what_they_ask_for(
    policy: str, targets: list[int], growth: int
) -> None:
    growing = Growing(policy, targets, growth)
    for _ in range(3000):
        growing.play()
        if all(growing.core.state(job) in ENDED for job in growing.targets):
            break
    assert only(growing.core.effects, DenyMemory) == []
    assert growing.live == growing.targets, "all of them came to their full size"


def test_w8_who_went_on_since_it_was_seen_to_wait_is_told_nothing_when_it_is_to_end(make_core: MakeCore) -> None:
    core = make_core("fair", settings=NOBODY_MOVES)
    for job in ("a", "b"):
        core.settle_in(job, needs(2 * GIB, GIB), wait_memory_ns=DAY)
    [holder] = core.holders()
    core.wait(300 * MS)
    core.report(holder, live_bytes=4 * GIB, pending_bytes=GIB)
    core.give_back(holder)
    assert core.state(holder) is JobState.WAITING
    core.cancel(holder)
    assert only(core.effects, DenyMemory) == []
