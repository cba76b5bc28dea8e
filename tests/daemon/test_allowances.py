"""What one user may ask of the machine's daemon (rules I50 to I52)."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.core.node.model import JobState
from carpool.daemon.allowances import BURST_NS, LOOP_PERCENT, Allowances
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
    """A connection that only notes that it is read."""

    def __init__(self, uid: int, *, takes_turns: bool = False) -> None:
        self.uid = uid
        self.takes_turns = takes_turns
        self.reads = 0
        self.on_read: Callable[[], None] = lambda: None

    def go_on(self) -> None:
        self.reads += 1
        self.on_read()


class House:
    """Allowances with a clock and timers of the test's own."""

    def __init__(self, *, connections: int = 4096, jobs: int = 0, queued: int = 1000) -> None:
        self.clock = Clock()
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self.in_force = in_force(UserLimits(connections=connections, jobs=jobs, queued=queued))
        self.allowances = Allowances(self.clock, self.in_force, self._call_later)

    def _call_later(self, seconds: float, call: Callable[[Any], None], use: Any) -> None:
        self.timers.append((self.clock.now_ns + round(seconds * SECOND), lambda: call(use)))

    def come(self, uid: int, *, takes_turns: bool = False) -> Somebody:
        made = Somebody(uid, takes_turns=takes_turns)
        assert self.allowances.come(made) == ""
        return made

    def wait(self, span_ns: int) -> None:
        """Let so much time pass; timers ring when it is their time."""
        until = self.clock.now_ns + span_ns
        while due := [timer for timer in self.timers if timer[0] <= until]:
            timer = min(due, key=lambda each: each[0])
            self.timers.remove(timer)
            self.clock.now_ns = max(self.clock.now_ns, timer[0])
            timer[1]()
        self.clock.now_ns = until


def in_force(limits: UserLimits) -> InForce:
    settings = MachineSettings(limits=limits)
    return InForce(settings, settings.daemon)


def test_i50_one_connection_too_many_is_refused_and_those_before_it_stay() -> None:
    allowances = House(connections=2).allowances
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
    allowances = House(connections=1).allowances
    for uid in (0, os.geteuid()):
        assert [allowances.come(Somebody(uid)) for _ in range(5)] == [""] * 5


def test_i50_settings_that_are_read_again_count_at_once() -> None:
    house = House(connections=1)
    allowances = house.allowances
    allowances.come(Somebody(ANA))
    assert allowances.come(Somebody(ANA)) != ""
    house.in_force.settings = in_force(UserLimits(connections=2)).settings
    assert allowances.come(Somebody(ANA)) == ""


def test_i51_who_sends_too_much_waits_and_so_do_his_commands_but_not_his_programs_that_take_turns() -> None:
    house = House()
    flooder, command, other = house.come(ANA), house.come(ANA), house.come(BEN)
    program = house.come(ANA, takes_turns=True)
    may = house.allowances.may_go_on
    house.allowances.charge(flooder, BURST_NS)
    assert may(flooder)
    house.allowances.charge(flooder, 10 * MS)
    assert not may(flooder) and not may(command)
    assert may(program) and may(other)
    house.allowances.charge(program, BURST_NS + MS)
    assert not may(program), "a program that sends too much itself waits too"
    house.wait(10 * MS * 100 // LOOP_PERCENT - MS)
    assert not flooder.reads
    house.wait(10 * SECOND)
    assert (flooder.reads, command.reads, program.reads) == (1, 1, 1)


def test_i51_those_who_wait_are_read_one_after_the_other_in_their_order() -> None:
    house = House()
    guests = [house.come(ANA) for _ in range(3)]
    house.allowances.charge(guests[0], BURST_NS + MS)
    assert not any(house.allowances.may_go_on(guest) for guest in guests)
    order = []
    for _ in range(200):
        house.wait(MS)
        for guest in guests:
            if guest.reads:
                order.append(guests.index(guest))
                guest.reads = 0
                house.allowances.charge(guest, 2 * MS)
    assert order == [0, 1, 2]


def test_i51_whoever_comes_later_waits_behind_those_who_wait() -> None:
    house = House()
    first, second = house.come(ANA), house.come(ANA)
    house.allowances.charge(first, BURST_NS + MS)
    assert not house.allowances.may_go_on(first)
    house.clock.now_ns += SECOND  # no timer has rung yet
    assert not house.allowances.may_go_on(second)
    house.wait(0)
    assert (first.reads, second.reads) == (1, 1) and house.allowances.may_go_on(second)


def test_i51_a_user_cannot_get_rid_of_what_he_cost_by_hanging_up() -> None:
    house = House()
    flooder = house.come(ANA)
    house.allowances.charge(flooder, SECOND)
    house.allowances.leave(flooder)
    assert not house.allowances.may_go_on(house.come(ANA))


@given(st.lists(st.tuples(st.integers(1, 4 * MS), st.integers(0, 20 * MS)), max_size=300))
def test_i52_a_user_who_costs_less_than_his_part_never_waits(spans: list[tuple[int, int]]) -> None:
    house = House()
    somebody = house.come(ANA)
    for cost_ns, pause_ns in spans:
        house.clock.now_ns += max(pause_ns, cost_ns * 100 // LOOP_PERCENT)
        assert house.allowances.may_go_on(somebody)
        house.allowances.charge(somebody, cost_ns)


@given(st.lists(st.integers(1, 50 * MS), min_size=20, max_size=200), st.integers(1, 5))
def test_i51_however_much_is_sent_the_loop_spends_its_part_on_it_and_a_burst(costs_ns: list[int], many: int) -> None:
    """Each guest sends again as soon as it was read."""
    house, left, spent_ns = House(), list(costs_ns), 0
    sending = {house.come(ANA) for _ in range(many)}

    def read(guest: Somebody) -> None:
        nonlocal spent_ns
        sending.add(guest)
        cost_ns = left.pop() if left else 0
        house.clock.now_ns += cost_ns
        spent_ns += cost_ns
        house.allowances.charge(guest, cost_ns)

    for guest in sending:
        guest.on_read = functools.partial(read, guest)
    while left:
        for guest in sorted(sending, key=id):
            if house.allowances.may_go_on(guest):
                read(guest)
            else:
                sending.remove(guest)
        house.wait(MS)
    assert spent_ns <= BURST_NS + house.clock.now_ns * LOOP_PERCENT // 100 + 50 * MS


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
    allowances = House(jobs=2, queued=0).allowances
    known = [Known(ANA, JobState.WAITING), Known(ANA, JobState.QUEUED), Known(BEN, JobState.QUEUED)]
    check(allowances, BEN, known)
    with pytest.raises(RefusedError, match=r"have 2 jobs, and may have 2"):
        check(allowances, ANA, known)


def test_i50_only_jobs_that_wait_to_be_started_count_as_queued() -> None:
    allowances = House(queued=2).allowances
    check(allowances, ANA, [Known(ANA, JobState.WAITING), Known(ANA, JobState.PARKED), Known(ANA, JobState.QUEUED)])
    with pytest.raises(RefusedError, match=r"2 of your .* jobs wait to be started, and 2 may"):
        check(allowances, ANA, [Known(ANA, JobState.QUEUED), Known(ANA, JobState.QUEUED)])
