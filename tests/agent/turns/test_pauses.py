"""T6 to T9: what follows a point is foretold from what followed it before; each test runs with C and with Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from carpool.agent.memory import Memory
from carpool.agent.turns.pauses import LIKELY
from carpool.agent.turns.turn_taking import Turns
from carpool.wire import messages as m
from carpool.wire import page
from tests.agent.fake_daemon import FakeDaemon
from tests.agent.turns.test_turn_taking import POINT, FakeSource, first_turn, learn

LONG_SECONDS = 0.02


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def turns(daemon: FakeDaemon, source: FakeSource, implementation: str) -> Iterator[Turns]:
    link = daemon.link()
    made = Turns(link, Memory(source, overhead_bytes=0))
    first_turn(daemon, made)
    learn(daemon, made)
    yield made
    link.close()
    link.page.close()


def iterate(turns: Turns, *, pause: float = 0.0) -> None:
    turns.begin()
    turns.boundary(POINT)
    time.sleep(pause)


def sleep_until(turns: Turns, is_learnt: Callable[[], bool]) -> None:
    """Pauses in which this thread sleeps, until one is seen: on a busy machine many are none, as it wanted to go on
    before it could (T7)."""
    for _ in range(500):
        iterate(turns, pause=LONG_SECONDS)
        turns.begin()
        if is_learnt():
            return
    raise AssertionError("no pause was idle")


def pause_from(daemon: FakeDaemon) -> int:
    return daemon.words[daemon.base + page.S_PAUSE_FROM]


def test_a_pause_is_shown_from_a_boundary_to_the_next_begin_point(daemon: FakeDaemon, turns: Turns) -> None:
    turns.begin()
    assert pause_from(daemon) == 0
    before = time.monotonic_ns()
    turns.boundary(POINT)
    assert before - page.PAUSE_BITS <= pause_from(daemon) <= time.monotonic_ns()
    assert not pause_from(daemon) & page.PAUSE_BITS
    turns.begin()
    assert pause_from(daemon) == 0


def test_t6_a_program_that_slept_after_its_steps_gives_the_turn_back_there_if_somebody_waits(
    daemon: FakeDaemon, turns: Turns
) -> None:
    sleep_until(turns, lambda: turns.state.after_step >= LIKELY)
    assert daemon.is_silent(), "nobody waits"
    assert turns.state.after_step >= LIKELY
    daemon.words[page.H_WAITERS] = 1
    turns.boundary(POINT)
    assert daemon.take() == m.Return(steps=daemon.steps, wants_more=False)
    with daemon.playing(lambda: daemon.answer(m.Ask)):
        turns.begin()  # and asks again by itself
    assert daemon.lease == page.LEASE_HELD


def test_t6_t8_a_program_that_goes_on_at_once_keeps_its_turn_and_reads_no_clock_of_its_processor_time(
    daemon: FakeDaemon, turns: Turns
) -> None:
    daemon.words[page.H_WAITERS] = 1
    for _ in range(20):
        iterate(turns)
    assert daemon.is_silent()
    assert (turns.state.after_step, turns.state.is_timed, turns.state.pause_cpu_ns) == (0, False, 0)


def test_t6_one_pause_among_many_short_ones_changes_nothing(daemon: FakeDaemon, turns: Turns) -> None:
    for _ in range(5):
        iterate(turns)
    iterate(turns, pause=LONG_SECONDS)
    daemon.words[page.H_WAITERS] = 1
    for _ in range(5):
        iterate(turns)
    assert daemon.is_silent()


def test_t7_a_pause_in_which_the_program_computes_is_not_idle(daemon: FakeDaemon, turns: Turns) -> None:
    for _ in range(5):
        iterate(turns)
        until = time.process_time_ns() + int(LONG_SECONDS * 1e9)
        while time.process_time_ns() < until:
            pass
    turns.begin()
    assert turns.state.after_step < LIKELY
    assert daemon.words[daemon.base + page.S_PAUSE_NS] == 0


def test_t7_a_pause_in_which_the_daemon_took_the_turn_is_idle_and_counts_until_then(
    daemon: FakeDaemon, turns: Turns
) -> None:
    iterate(turns)
    time.sleep(LONG_SECONDS)
    daemon.words[daemon.base + page.S_TAKEN_NS] = pause_from(daemon) + 5_000_000
    daemon.recall(page.LAPSED)
    before = turns.state.after_step
    with daemon.playing(lambda: daemon.answer(m.Ask)):
        turns.begin()
    assert turns.state.after_step == before + 1
    assert daemon.words[daemon.base + page.S_PAUSE_NS] == 5_000_000


def test_d16_a_pause_in_which_the_turn_was_taken_for_memory_teaches_nothing(daemon: FakeDaemon, turns: Turns) -> None:
    iterate(turns)
    time.sleep(LONG_SECONDS)
    daemon.words[daemon.base + page.S_TAKEN_NS] = 0
    daemon.recall(page.LAPSED)
    before = turns.state.after_step
    with daemon.playing(lambda: daemon.answer(m.Ask)):
        turns.begin()
    assert turns.state.after_step == before
    assert daemon.words[daemon.base + page.S_PAUSE_NS] == 0


def test_an_idle_pause_with_the_turn_held_is_counted_in_the_page(daemon: FakeDaemon, turns: Turns) -> None:
    def counted() -> int:
        return daemon.words[daemon.base + page.S_PAUSE_NS]

    sleep_until(turns, lambda: counted() > 0)
    assert counted() > LONG_SECONDS * 1e9 / 2


def test_d15_a_wait_for_input_with_the_turn_held_is_no_part_of_the_iteration(turns: Turns) -> None:
    turns.begin()
    before = turns.state.iterated_ns
    turns.before_data()
    turns.after_data(40_000_000)
    assert turns.state.iterated_ns - before == 40_000_000


def test_t6_an_explicit_block_goes_back_at_its_end_if_somebody_waits_until_the_next_ones_follow_at_once(
    daemon: FakeDaemon, turns: Turns
) -> None:
    daemon.words[page.H_WAITERS] = 1
    with turns.turn():
        pass
    assert daemon.take_until(m.Return) == m.Return(steps=daemon.steps, wants_more=False)
    daemon.words[page.H_WAITERS] = 0
    likely = []
    with daemon.playing(lambda: daemon.answer(m.Ask)):
        turns.begin()
    for _ in range(20):
        with turns.turn():
            likely.append(turns.state.after_block)
    assert min(likely) < LIKELY, "a tight loop of blocks keeps its turn"


def test_t9_where_work_is_in_flight_one_try_decides(
    daemon: FakeDaemon, source: FakeSource, implementation: str
) -> None:
    source.is_synchronous = False
    link = daemon.link()
    turns = Turns(link, Memory(source, overhead_bytes=0))
    first_turn(daemon, turns)
    learn(daemon, turns)
    iterate(turns, pause=LONG_SECONDS)  # perhaps the device worked all the while
    assert pause_from(daemon) == 0, "nobody else may judge by it"
    turns.begin()
    daemon.words[page.H_WAITERS] = 1
    turns.boundary(POINT)
    assert daemon.take() == m.Return(steps=daemon.steps, wants_more=False)
    with daemon.playing(lambda: daemon.answer(m.Ask)):
        turns._pauses.restart()  # whatever kept this test from a processor until now
        turns.begin()  # at once: it did
    for _ in range(3):
        iterate(turns, pause=LONG_SECONDS)
    assert daemon.is_silent(), "it is not tried again"
    link.close()
    link.page.close()
