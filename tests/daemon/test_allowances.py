"""What one user may ask of the machine's daemon (rules I50 to I52)."""

from __future__ import annotations

import os
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.core.node.model import JobState
from carpool.daemon.allowances import BURST_NS, LOOP_PERCENT, REST_NS_MAX, Allowances
from carpool.daemon.jobs import LiveJob
from carpool.daemon.reload import InForce
from carpool.daemon.settings_file import MachineSettings, UserLimits
from carpool.errors import RefusedError
from carpool.units import MS, SECOND

ANA, BEN = 64001, 64002


class Clock:
    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class Somebody:
    """A connection that only notes what becomes of it."""

    def __init__(self, uid: int, *, takes_turns: bool = False) -> None:
        self.uid = uid
        self.takes_turns = takes_turns
        self.rests_ns: list[int] = []

    def rest(self, rest_ns: int) -> None:
        self.rests_ns.append(rest_ns)


def allow(*, connections: int = 4096, jobs: int = 0, queued: int = 1000) -> tuple[Allowances, Clock]:
    clock = Clock()
    return Allowances(clock, in_force(UserLimits(connections=connections, jobs=jobs, queued=queued))), clock


def in_force(limits: UserLimits) -> InForce:
    settings = MachineSettings(limits=limits)
    return InForce(settings, settings.daemon)


def test_i50_one_connection_too_many_is_refused_and_those_before_it_stay() -> None:
    allowances, _ = allow(connections=2)
    first, second, third = (Somebody(ANA) for _ in range(3))
    assert [allowances.come(each) for each in (first, second)] == ["", ""]
    refusal = allowances.come(third)
    assert "have 2 connections" in refusal and "may have 2" in refusal and "[limits] connections" in refusal
    assert allowances.come(Somebody(BEN)) == ""
    allowances.leave(third)  # it never counted
    assert allowances.come(Somebody(ANA)) != ""
    allowances.leave(first)
    assert allowances.come(Somebody(ANA)) == ""


def test_i50_root_and_the_daemon_itself_always_get_through() -> None:
    allowances, _ = allow(connections=1)
    for uid in (0, os.geteuid()):
        assert [allowances.come(Somebody(uid)) for _ in range(5)] == [""] * 5


def test_i50_settings_that_are_read_again_count_at_once() -> None:
    known = in_force(UserLimits(connections=1))
    allowances = Allowances(Clock(), known)
    allowances.come(Somebody(ANA))
    assert allowances.come(Somebody(ANA)) != ""
    known.settings = in_force(UserLimits(connections=2)).settings
    assert allowances.come(Somebody(ANA)) == ""


def test_i51_who_sends_too_much_is_read_later_and_so_are_his_commands_but_not_his_programs_that_take_turns() -> None:
    allowances, _ = allow()
    flooder, command, program = Somebody(ANA), Somebody(ANA), Somebody(ANA, takes_turns=True)
    other = Somebody(BEN)
    for each in (flooder, command, program, other):
        allowances.come(each)
    allowances.charge(flooder, BURST_NS)
    assert not flooder.rests_ns
    allowances.charge(flooder, 10 * MS)
    assert flooder.rests_ns == command.rests_ns == [10 * MS * 100 // LOOP_PERCENT]
    assert not program.rests_ns and not other.rests_ns
    allowances.charge(program, 10 * MS)
    assert program.rests_ns, "a program that sends too much itself waits too"


def test_i51_a_new_connection_of_a_user_who_has_to_wait_waits_as_well() -> None:
    allowances, clock = allow()
    flooder, late, later = (Somebody(ANA) for _ in range(3))
    allowances.come(flooder)
    allowances.charge(flooder, 10 * SECOND)
    assert flooder.rests_ns == [REST_NS_MAX]
    clock.now_ns += REST_NS_MAX - MS
    allowances.come(late)
    assert late.rests_ns == [MS]
    clock.now_ns += MS
    allowances.come(later)
    assert not later.rests_ns


def test_i51_a_user_cannot_get_rid_of_what_he_cost_by_hanging_up() -> None:
    allowances, _ = allow()
    flooder, again = Somebody(ANA), Somebody(ANA)
    allowances.come(flooder)
    allowances.charge(flooder, SECOND)
    allowances.leave(flooder)
    allowances.come(again)
    assert again.rests_ns


@given(st.lists(st.tuples(st.integers(1, 4 * MS), st.integers(0, 20 * MS)), max_size=300))
def test_i52_a_user_who_costs_less_than_his_part_never_waits(spans: list[tuple[int, int]]) -> None:
    allowances, clock = allow()
    somebody = Somebody(ANA)
    allowances.come(somebody)
    for cost_ns, pause_ns in spans:
        clock.now_ns += max(pause_ns, cost_ns * 100 // LOOP_PERCENT)
        allowances.charge(somebody, cost_ns)
    assert not somebody.rests_ns


@given(st.lists(st.integers(1, 50 * MS), min_size=20, max_size=200))
def test_i51_however_much_is_sent_the_loop_spends_its_part_on_it_and_a_burst(costs_ns: list[int]) -> None:
    """The guest is read again as soon as it may be, and sends at once."""
    allowances, clock = allow()
    somebody = Somebody(ANA)
    allowances.come(somebody)
    spent_ns = 0
    for cost_ns in costs_ns:
        clock.now_ns += cost_ns
        spent_ns += cost_ns
        allowances.charge(somebody, cost_ns)
        while somebody.rests_ns:
            clock.now_ns += somebody.rests_ns.pop()
    assert spent_ns <= BURST_NS + clock.now_ns * LOOP_PERCENT // 100 + 50 * MS


class Known:
    """As much of a job as is looked at here."""

    def __init__(self, uid: int, state: JobState) -> None:
        self.file = self
        self.uid = uid
        self.state = state


def check(allowances: Allowances, uid: int, known: list[Known]) -> None:
    jobs = cast(list[LiveJob], known)
    allowances.check_new_job(uid, jobs, lambda live: cast(Known, live).state)


def test_i50_one_job_too_many_is_refused_with_the_number_and_others_are_not_counted() -> None:
    allowances, _ = allow(jobs=2, queued=0)
    known = [Known(ANA, JobState.WAITING), Known(ANA, JobState.QUEUED), Known(BEN, JobState.QUEUED)]
    check(allowances, BEN, known)
    with pytest.raises(RefusedError, match=r"have 2 jobs, and may have 2"):
        check(allowances, ANA, known)


def test_i50_only_jobs_that_wait_to_be_started_count_as_queued() -> None:
    allowances, _ = allow(queued=2)
    check(allowances, ANA, [Known(ANA, JobState.WAITING), Known(ANA, JobState.PARKED), Known(ANA, JobState.QUEUED)])
    with pytest.raises(RefusedError, match=r"2 of your .* jobs wait to be started, and 2 may"):
        check(allowances, ANA, [Known(ANA, JobState.QUEUED), Known(ANA, JobState.QUEUED)])
