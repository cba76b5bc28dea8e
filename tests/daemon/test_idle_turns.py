"""A turn that its process does not use is found in the page and taken; how long it was idle, when to look again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.daemon.job_page import JobPage
from carpool.daemon.turns import IDLE_LOOK_NS, IDLE_LOOK_NS_MAX, Member, SharedTurn
from carpool.units import MS
from carpool.wire import messages as m
from carpool.wire.page import FLAG_IDLE, LAPSED, PAUSE_BITS, PAUSE_FORETOLD, PAUSE_INPUT


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]) as child:
        time.sleep(0.3)
        yield child.pid
        child.kill()


@pytest.fixture
def page(tmp_path: Path) -> JobPage:
    made = JobPage()
    made.make(tmp_path)
    return made


def granted(page: JobPage, *pids: int) -> SharedTurn:
    turn = SharedTurn(page)
    for number, pid in enumerate(pids, start=1):
        turn.members[pid] = Member(peer=None, pid=pid, slot=number, is_asking=True)
    turn.grant(m.Grant(lane_bytes=0, is_shared=True))
    return turn


def test_a_pause_in_which_the_process_sleeps_is_idle_and_its_turn_is_taken(page: JobPage, sleeper: int) -> None:
    turn, now = granted(page, sleeper), time.monotonic_ns()
    slot = page.page.slot(1) if page.page is not None else None
    assert slot is not None
    assert turn.idle_ns(now=now) == 0, "it is in a step"
    slot.pause_from = (now - 50 * MS) & ~PAUSE_BITS
    assert 50 * MS <= turn.idle_ns(now=now) <= 50 * MS + PAUSE_BITS
    assert turn.take_idle(now=now)
    assert (slot.recall, turn.is_granted) == (LAPSED, False)
    assert slot.taken_ns >= now
    slot.pause_ns = 50 * MS  # the program counts it when it comes back
    assert 50 * MS <= turn.idle_totals_ns(now=now)[1] <= 50 * MS + PAUSE_BITS, "and it is not counted twice"


def test_d16_who_waits_for_memory_in_a_pause_is_not_idle(page: JobPage, sleeper: int) -> None:
    turn, now = granted(page, sleeper), time.monotonic_ns()
    assert page.page is not None
    slot = page.page.slot(1)
    slot.pause_from = (now - 50 * MS) & ~PAUSE_BITS
    slot.pending_bytes = MS
    assert not turn.take_idle(now=now) and turn.is_granted
    turn.revoke()
    assert (slot.recall, slot.taken_ns) == (LAPSED, 0), "the program learns no pause from this"


def test_d16_one_that_has_its_memory_and_sleeps_on_is_idle(page: JobPage, sleeper: int) -> None:
    turn, now = granted(page, sleeper), time.monotonic_ns()
    assert page.page is not None
    slot = page.page.slot(1)
    slot.pause_from = (now - 50 * MS) & ~PAUSE_BITS
    slot.pending_bytes = 0
    assert turn.take_idle(now=now)
    assert slot.taken_ns >= now


def test_who_computes_between_its_steps_is_not_idle(page: JobPage) -> None:
    turn, now = granted(page, os.getpid()), time.monotonic_ns()  # this very process runs while it looks
    assert page.page is not None
    page.page.slot(1).pause_from = now - 50 * MS
    assert not turn.take_idle(now=now)


def test_a_short_pause_is_left_alone(page: JobPage, sleeper: int) -> None:
    turn, now = granted(page, sleeper), time.monotonic_ns()
    assert page.page is not None
    page.page.slot(1).pause_from = (now - MS) & ~PAUSE_BITS
    assert not turn.take_idle(now=now)


def test_t9_a_short_pause_that_was_foretold_is_taken_at_once(page: JobPage, sleeper: int) -> None:
    turn, now = granted(page, sleeper), time.monotonic_ns()
    assert page.page is not None
    page.page.slot(1).pause_from = (now & ~PAUSE_BITS) | PAUSE_FORETOLD
    assert turn.take_idle(now=now)


def test_all_processes_of_a_job_must_be_idle(page: JobPage, sleeper: int) -> None:
    turn, now = granted(page, sleeper, os.getpid()), time.monotonic_ns()
    assert page.page is not None
    for number in (1, 2):
        page.page.slot(number).pause_from = now - 50 * MS
    assert not turn.take_idle(now=now)


def test_a_wait_for_input_counts_as_input(page: JobPage, sleeper: int) -> None:
    turn, now = granted(page, sleeper), time.monotonic_ns()
    assert page.page is not None
    page.page.slot(1).pause_from = (now - 50 * MS) | PAUSE_INPUT
    stall_ns, held_ns, pause_ns = turn.waits_ns(now=now)
    assert (stall_ns, pause_ns) == (held_ns, 0) and held_ns >= 49 * MS


def test_the_cuda_guest_says_itself_that_it_is_idle(page: JobPage) -> None:
    turn, now = granted(page, os.getpid()), time.monotonic_ns()
    assert page.page is not None
    slot = page.page.slot(1)
    slot.boundary_ns = now - 2 * MS
    slot.raise_flag(FLAG_IDLE)
    assert turn.take_idle(now=now)
    assert turn.idle_totals_ns(now=now)[1] == 2 * MS


def test_a_job_that_computes_is_looked_at_ever_more_seldom(page: JobPage) -> None:
    turn, looks = granted(page, os.getpid()), 0
    spans = [turn.look_again_ns()]
    while (span := turn.look_again_ns()) is not None:
        turn.found_busy()
        spans.append(span)
        looks += 1
    assert spans[0] == IDLE_LOOK_NS and max(span or 0 for span in spans) < IDLE_LOOK_NS_MAX
    assert looks < 60, "then the looks of every Tick are enough"
