"""What the first iterations teach: which point ends an iteration, how many there were, what stays and what goes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from carpool.agent.link import Link
from carpool.agent.memory import Memory, MeterSource, ResidentSource
from carpool.agent.turns.profile import FIRINGS_MAX, Profile, delay_ns
from carpool.wire import page

MIB = 1 << 20
A, B, C = 1, 2, 3


class FakeSource:
    """Bytes that depend on the point that fires."""

    is_synchronous = True

    def __init__(self) -> None:
        self.live = 100 * MIB
        self.peak = 150 * MIB

    def live_bytes(self) -> int:
        return self.live

    def peak_bytes(self) -> int:
        return self.peak

    def reset_peak(self, *, is_learning: bool) -> None:
        return

    def finish_device_work(self, *, give_back: bool) -> None:
        raise AssertionError("nobody hands over here")


class Program:
    """Fires points as a loop does; counts as the agent does: known points by the table, others by observing."""

    def __init__(self, *, overhead_bytes: int = 0) -> None:
        self.source = FakeSource()
        self.profile = Profile(Memory(self.source, overhead_bytes=overhead_bytes))
        self.steps = 0

    def fire(self, *points: int, times: int = 1, live: dict[int, int] | None = None) -> None:
        for _ in range(times):
            for point in points:
                self.source.live = (live or {}).get(point, 100 * MIB)
                known = self.profile.points.get(point)
                if known is None:
                    self.profile.note_away(0)
                    self.steps += self.profile.observe(point)
                else:
                    self.steps += known


def test_one_optimizer_is_counted_from_its_first_step() -> None:
    program = Program()
    program.fire(A, times=50)
    assert program.steps == 50
    assert program.profile.points == {A: True}


def test_of_two_optimizers_the_last_one_ends_the_iteration() -> None:
    program = Program()
    program.fire(A, B, times=50)
    assert program.steps == 50
    assert program.profile.points == {A: False, B: True}


def test_where_a_graph_is_alive_no_iteration_ends() -> None:
    program = Program()
    program.fire(A, B, times=50, live={B: 180 * MIB})
    assert program.steps == 50
    assert program.profile.points == {A: True, B: False}


def test_every_fold_with_its_own_optimizer_is_counted() -> None:
    program = Program()
    for optimizer in range(1, 6):
        program.fire(optimizer, times=20)
    assert program.steps == 100
    assert program.profile.points == {5: True}


def test_a_second_model_with_two_optimizers_is_counted() -> None:
    program = Program()
    program.fire(A, times=20)
    program.fire(B, C, times=20)
    assert program.steps == 40
    assert program.profile.points == {B: False, C: True}


def test_a_critic_that_steps_five_times_an_iteration_is_not_counted_for_long() -> None:
    program = Program()
    for _ in range(100):
        program.fire(A, times=5)
        program.fire(B)
    assert program.steps == 105, "the critic's first five steps look like iterations until the generator shows up"
    assert program.profile.points == {A: False, B: True}


def test_a_point_that_fires_rarely_neither_stops_the_count_nor_the_learning() -> None:
    program = Program()
    for _ in range(10):
        program.fire(A, times=100)
        program.fire(B)
    assert not program.profile.is_learning
    assert program.profile.points == {A: True, B: False}
    assert program.steps == 1000


def test_learning_ends_even_if_a_point_is_never_seen_again() -> None:
    program = Program()
    program.fire(B)
    program.fire(A, times=FIRINGS_MAX - 1)
    assert program.profile.is_learning
    program.fire(A)
    assert program.profile.points == {A: True, B: False}
    assert program.steps == FIRINGS_MAX


def test_needs_are_split_into_persistent_ephemeral_and_the_frameworks_own() -> None:
    program = Program(overhead_bytes=30 * MIB)
    program.fire(A, times=2)
    needs = program.profile.needs()
    assert (needs.persistent_bytes, needs.ephemeral_bytes) == (70 * MIB, 50 * MIB)
    assert needs.overhead_bytes == 30 * MIB
    assert needs.step_ns > 0


@pytest.mark.slow
def test_what_others_had_of_the_processor_is_no_part_of_a_step() -> None:
    """Beside a program on the same processor a step takes twice as long, and is said to take what it would alone."""
    if not delay_ns():
        pytest.skip("this kernel does not count how long a thread waits for a processor: NOT tested")
    cores = os.sched_getaffinity(0)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(0, {min(cores)})
        os.sched_setaffinity(busy.pid, {min(cores)})
        time.sleep(0.3)  # until it runs
        program = Program()
        program.fire(A)
        began_ns, used_ns = time.monotonic_ns(), time.thread_time_ns()
        while time.thread_time_ns() - used_ns < 300_000_000:
            pass
        program.fire(A)
        took_ns = time.monotonic_ns() - began_ns
    finally:
        os.sched_setaffinity(0, cores)
        busy.kill()
        busy.wait()
    assert took_ns > 400_000_000, "the other program did not compete"
    assert 250_000_000 < program.profile.needs().step_ns < took_ns * 3 // 4


def test_the_time_without_a_turn_is_no_part_of_a_step() -> None:
    program = Program()
    program.fire(A)
    left_ns = time.monotonic_ns()
    time.sleep(0.2)
    program.profile.note_away(time.monotonic_ns() - left_ns)
    program.fire(A)
    assert 0 < program.profile.needs().step_ns < 150_000_000


def test_the_first_iteration_is_not_measured() -> None:
    program = Program()
    program.source.peak = 900 * MIB
    program.fire(A, live={A: 20 * MIB})  # no optimizer state yet, and everything is set up at once
    program.source.peak = 150 * MIB
    program.fire(A)
    needs = program.profile.needs()
    assert (needs.persistent_bytes, needs.ephemeral_bytes) == (100 * MIB, 50 * MIB)


def test_a_later_look_can_only_raise_what_is_known() -> None:
    program = Program()
    program.fire(A, times=2)
    program.source.live, program.source.peak = 80 * MIB, 90 * MIB
    assert program.profile.sample() == (100 * MIB, 50 * MIB)
    program.source.live, program.source.peak = 120 * MIB, 200 * MIB
    assert program.profile.sample() == (120 * MIB, 80 * MIB)


@pytest.fixture
def link(tmp_path: Path) -> Link:
    shared = page.Page.create(tmp_path / "page")
    shared.lend_slot(os.getpid())
    shared.close()
    return Link("job-1", "", str(tmp_path / "page"))


def test_the_meters_words_are_read_from_the_own_slot(link: Link) -> None:
    source = MeterSource(link)
    link.words[link.base + page.S_LIVE] = 5 * MIB
    link.words[link.base + page.S_PEAK] = 9 * MIB
    assert (source.live_bytes(), source.peak_bytes()) == (5 * MIB, 9 * MIB)
    source.reset_peak(is_learning=True)
    assert source.peak_bytes() == 5 * MIB
    link.words[link.base + page.S_LIVE] = (1 << 64) - 7  # freed what was allocated before the meter came
    assert source.live_bytes() == 0


def test_without_the_meter_the_kernels_figures_are_used_and_shown_in_the_page(link: Link) -> None:
    source = ResidentSource(link)
    source.reset_peak(is_learning=True)
    before = source.live_bytes()
    assert link.words[link.base + page.S_LIVE] == before > MIB
    block = bytearray(os.urandom(64 * MIB))
    held = source.live_bytes()
    assert held - before > 50 * MIB
    del block
    assert source.peak_bytes() >= held - MIB  # the kernel counts each thread's pages in batches
    source.reset_peak(is_learning=True)
    assert source.peak_bytes() < held
