"""W1 to W4: an allocation in the middle of a turn waits for memory, and others go on."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.core.effects import GrantLease, ParkJob, RevokeLease, SetCap
from carpool.core.model import JobId, JobState
from carpool.core.node import Settings
from carpool.core.waiting import Part, is_safe
from carpool.units import GIB, MS, SECOND
from tests.core.driver import CoreDriver, MakeCore, needs, only

A = JobId("a")
SMALL = needs(GIB, GIB)


def blocked(core: CoreDriver, job: str = "a") -> None:
    """x has 10 GiB of 16; the job holds 4 GiB and asks for 3 more. b wants turns too."""
    core.submit("x", cap_bytes=10 * GIB)
    core.settle_in(job, needs(2 * GIB, GIB))
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


def test_where_all_wait_and_none_can_go_on_the_reason_says_what_to_do(core: CoreDriver) -> None:
    for job in ("a", "b"):
        core.settle_in(job, needs(7 * GIB, GIB))
    core.block("a", 8 * GIB, 3 * GIB)
    assert "none can go on" not in core.reason("a"), "b still runs"
    core.block("b", 8 * GIB, 3 * GIB)
    assert {core.state("a"), core.state("b")} == {JobState.BLOCKED}
    advice = "all jobs of gpu0 wait like this and none can go on: end one of them (carpool cancel)"
    assert core.reason("a").endswith(advice)
    assert core.reason("b").endswith(advice)


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
    core.submit("a", cap_bytes=4 * GIB)
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


def test_w3_two_half_filled_jobs_do_not_wait_for_each_other(make_core: MakeCore) -> None:
    """a came first; but given the 5 GiB that are free it would need one more, and b four: nobody could end."""
    core = make_core("fifo")
    core.settle_in("a", needs(2 * GIB, 10 * GIB))
    core.settle_in("b", needs(2 * GIB, 5 * GIB))
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
    core = make_core("fifo")
    core.submit("x", cap_bytes=4 * GIB)
    core.settle_in("a", needs(2 * GIB, 6 * GIB))
    core.settle_in("b", needs(2 * GIB, 4 * GIB))
    core.block("a", 4 * GIB, 7 * GIB)
    core.block("b", 4 * GIB, 7 * GIB)
    assert (core.state("a"), core.state("b"), core.holders()) == (JobState.BLOCKED, JobState.BLOCKED, [])
    core.exit("x")
    assert core.holders() == ["a"]
    assert core.state("b") is JobState.BLOCKED


def test_w5_nobody_is_started_into_the_same_trouble_and_the_youngest_makes_room(core: CoreDriver) -> None:
    core.settle_in("a", needs(4 * GIB, 6 * GIB))
    core.settle_in("b", needs(4 * GIB, 6 * GIB))
    core.block("a", 11 * GIB, 3 * GIB)
    assert core.holders() == [], "b has no room for its turn any more"
    assert [order.reason for order in only(core.effects, ParkJob)] == ["b makes room for an allocation that waits"]
    core.parked("b", 4 * GIB)
    assert core.holders() == ["a"]
    core.give_back("a")
    assert core.state("b") is JobState.UNPARKING, "and comes back by itself"


@pytest.mark.parametrize("is_host_full", [False, True])
def test_w5_one_that_cannot_make_room_is_free_again_and_asked_later(make_core: MakeCore, is_host_full: bool) -> None:
    core = make_core(settings=Settings(margin_percent=0, host_bytes_max=5 * GIB))
    if is_host_full:
        core.adopt("away", holding=False, known=SMALL, parked_bytes=4 * GIB, is_suspended=True)
    core.settle_in("a", needs(4 * GIB, 6 * GIB))
    core.settle_in("b", needs(4 * GIB, 6 * GIB))
    core.block("a", 11 * GIB, 3 * GIB)
    if not is_host_full:
        core.move_failed("b")
    assert (core.state("b"), core.holders()) == (JobState.WAITING, [])
    assert core.reason("b").startswith("waits for memory: "), "not stopped for good"
    if is_host_full:
        core.exit("away")
    core.tick(11 * SECOND)
    core.report("a", live_bytes=11 * GIB, pending_bytes=3 * GIB)
    assert core.state("b") is JobState.PARKING


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
