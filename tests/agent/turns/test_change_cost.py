"""What a change of turn costs a program, as its own iterations show it: in C and in Python, and the same in both."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from carpool.agent.turns import hot_path
from carpool.units import MS
from carpool.wire import page
from carpool.wire.protocol import CHANGE_STEPS

BASE = page.SLOT_WORDS
KINDS = ["python", pytest.param("c", marks=pytest.mark.skipif(hot_path.native is None, reason="no compiler"))]


class Loop:
    """A program's iterations on a clock of its own."""

    def __init__(self, kind: str) -> None:
        words = memoryview(bytearray(2 * page.SLOT_WORDS * 8)).cast("Q")
        self.state: Any = hot_path.PlainTurnState(words) if kind == "python" else hot_path.native.TurnState(words)
        self.slot = page.Slot(words, BASE)
        self.state.base = BASE
        self.now = 1_000_000 * MS

    def turn(self, *steps_ns: int, drained_ns: int = 0) -> None:
        """One whole turn, after others had the device."""
        self.now += 500 * MS
        self.state.turn_began(self.now)
        self.run(*steps_ns)
        self.state.turn_ended(drained_ns)

    def run(self, *steps_ns: int) -> None:
        for step_ns in steps_ns:
            self.now += step_ns
            self.state.iterated(self.now)

    @property
    def booked(self) -> tuple[int, int]:
        return self.slot.changes, self.slot.change_ns


@pytest.fixture(params=KINDS)
def loop(request: pytest.FixtureRequest) -> Loop:
    return Loop(request.param)


def test_a_program_that_keeps_its_turn_books_nothing(loop: Loop) -> None:
    loop.state.turn_began(loop.now)
    loop.run(*[10 * MS] * 200)
    assert loop.booked == (0, 0)


def test_what_the_first_iterations_take_longer_is_what_the_change_cost(loop: Loop) -> None:
    loop.turn(*[10 * MS] * 50)
    loop.turn(30 * MS, 20 * MS, *[10 * MS] * 50)
    assert loop.booked == (1, 30 * MS)
    loop.turn(15 * MS, *[10 * MS] * 50)
    assert loop.booked == (2, 35 * MS)


def test_a_short_turn_is_booked_at_its_end(loop: Loop) -> None:
    loop.turn(*[10 * MS] * 50)
    loop.turn(30 * MS, 20 * MS, 10 * MS)
    assert loop.booked == (1, 30 * MS)


def test_a_turn_without_an_iteration_says_nothing(loop: Loop) -> None:
    loop.turn(*[10 * MS] * 50)
    loop.turn(drained_ns=5 * MS)
    assert loop.booked == (0, 0)


def test_what_the_host_ran_ahead_at_first_is_paid_by_the_wait_at_the_end(loop: Loop) -> None:
    loop.turn(*[10 * MS] * 50)
    loop.turn(2 * MS, 6 * MS, *[10 * MS] * (CHANGE_STEPS - 2), drained_ns=15 * MS)
    count, cost_ns = loop.booked
    assert count == 1
    assert cost_ns == 3 * MS


def test_a_program_that_was_slow_only_at_its_start_is_not_taken_for_a_slow_one(loop: Loop) -> None:
    loop.turn(80 * MS)
    for _ in range(40):
        loop.turn(12 * MS, *[10 * MS] * 7)
    before = loop.booked
    loop.turn(12 * MS, *[10 * MS] * 7)
    assert MS < loop.booked[1] - before[1] < 4 * MS


def test_one_iteration_that_holds_an_evaluation_counts_for_little(loop: Loop) -> None:
    loop.turn(*[10 * MS] * 50)
    loop.turn(60_000 * MS, *[10 * MS] * 30)
    assert loop.booked == (1, 160 * MS)


def test_faster_than_usual_is_less_than_nothing(loop: Loop) -> None:
    loop.turn(*[10 * MS] * 50)
    loop.turn(*[9_900_000] * CHANGE_STEPS)
    assert loop.booked == (1, -CHANGE_STEPS * 100_000)


def test_d15_a_program_that_waits_for_input_in_each_iteration_does_not_gain_by_a_change_of_turn(loop: Loop) -> None:
    def stalling(count: int) -> None:
        for _ in range(count):
            loop.now += 40 * MS
            loop.state.waited(40 * MS)
            loop.run(10 * MS)

    loop.state.held, loop.state.taker = True, threading.get_ident()
    loop.state.turn_began(loop.now)
    stalling(50)
    loop.state.turn_ended(0)
    loop.now += 500 * MS
    loop.state.turn_began(loop.now)  # its input was there before it asked
    loop.run(12 * MS)
    loop.state.turn_ended(0)
    assert loop.booked == (1, 2 * MS)
    loop.state.turn_began(loop.now)
    loop.run(12 * MS)
    stalling(CHANGE_STEPS)
    assert loop.booked == (2, 4 * MS), "nor does it lose by it"


def test_d15_waits_without_the_turn_and_of_other_threads_are_no_part_of_it(loop: Loop) -> None:
    loop.turn(*[10 * MS] * 50)
    loop.state.turn_began(loop.now)
    loop.state.held, loop.state.taker = True, threading.get_ident() + 1
    loop.state.waited(10 * MS)
    loop.state.held, loop.state.taker = False, threading.get_ident()
    loop.state.waited(10 * MS)
    loop.run(10 * MS)
    loop.state.turn_ended(0)
    assert loop.booked == (1, 0)


def test_without_a_slot_nothing_is_written(loop: Loop) -> None:
    loop.state.base = 0
    loop.turn(*[10 * MS] * 50)
    loop.turn(*[20 * MS] * 50)
    assert loop.booked == (0, 0)


@pytest.mark.skipif(hot_path.native is None, reason="no compiler")
@pytest.mark.parametrize("seed", range(5))
def test_c_and_python_book_the_same(seed: int) -> None:
    source, loops = random.Random(seed), [Loop("python"), Loop("c")]
    for _ in range(60):
        steps = [source.randrange(MS, 40 * MS) for _ in range(source.randrange(0, 40))]
        drained_ns = source.randrange(0, 3 * MS)
        for loop in loops:
            loop.turn(*steps, drained_ns=drained_ns)
    assert loops[0].booked == loops[1].booked
