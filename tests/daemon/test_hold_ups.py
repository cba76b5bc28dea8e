"""Reads that their owner can hold up do not hold up the daemon."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.daemon import hold_ups, processes
from carpool.daemon.hold_ups import HoldUps

ANA, BEN = 4001, 4002


class Pipe:
    """What nobody writes: a read of it sleeps until the pipe is let go."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self.reads = 0

    def read(self) -> str:
        self.reads += 1
        os.read(self.read_end, 1)
        return "came"

    def let_go(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.let_go()


@pytest.fixture
def watch() -> Iterator[HoldUps]:
    made = HoldUps()
    yield made
    made.end()


def test_i40_a_read_that_is_held_up_is_given_up_and_not_tried_again(pipe: Pipe, watch: HoldUps) -> None:
    assert watch.ask(ANA, "x", pipe.read, "nothing") == "nothing"
    assert watch.ask(ANA, "x", pipe.read, "nothing") == "nothing"
    assert pipe.reads == 1, "one that is held up is not asked a second time"
    assert watch.ask(ANA, "y", lambda: "found", "nothing") == "found"
    assert watch.ask(BEN, "x", lambda: "found", "nothing") == "found", "another user's is another thing"


def test_i40_one_user_holds_up_two_threads_at_most(pipe: Pipe, watch: HoldUps) -> None:
    for number in range(10):
        assert watch.ask(ANA, number, pipe.read, "nothing") == "nothing"
    assert pipe.reads == hold_ups.EACH_MAX
    assert watch.ask(ANA, "other", lambda: "found", "nothing") == "nothing"
    assert watch.ask(BEN, "other", lambda: "found", "nothing") == "found"
    pipe.let_go()
    deadline = time.monotonic() + 60
    while watch.ask(ANA, "other", lambda: "found", "nothing") == "nothing":
        assert time.monotonic() < deadline, "what came back still counts"
        select.select([], [], [], 0.01)


def test_i40_who_makes_the_daemon_wait_for_long_is_not_read_for_a_while(watch: HoldUps) -> None:

    def sleep() -> str:
        select.select([], [], [], hold_ups.LOOK_SECONDS * (hold_ups.ASLEEP_LOOKS - 2))
        return "found"

    asked = 0
    while watch.ask(ANA, "slow", sleep, "nothing") != "nothing":
        asked += 1
        assert asked < 1000, "nobody counts what it costs"
    assert watch.ask(ANA, "quick", lambda: "found", "nothing") == "nothing"
    assert watch.ask(BEN, "quick", lambda: "found", "nothing") == "found"


def test_an_error_is_passed_on(watch: HoldUps) -> None:
    with pytest.raises(FileNotFoundError):
        watch.ask(ANA, "x", lambda: Path("/nowhere").stat(), None)


def test_what_is_said_of_a_process_is_the_same_with_and_without_watch(
    monkeypatch: pytest.MonkeyPatch, watch: HoldUps
) -> None:
    own, parent = os.getpid(), os.getppid()

    def looks() -> list[object]:
        return [
            processes.birth_of(own),
            processes.is_alive(own),
            processes.is_alive(own, processes.birth_of(own)),
            processes.is_alive(own, 1),
            processes.is_stopped(own),
            processes.is_asleep(own),
            processes.descends_from(own, parent),
            processes.parents()[own] == parent,
            processes.namespace_of(own),
            processes.image_of(own),
            processes.is_alive((1 << 22) - 1),
            processes.owner_of(own) == os.getuid(),
            processes.owner_of((1 << 22) - 1),
        ]

    alone = looks()
    monkeypatch.setattr(hold_ups, "_watch", watch)
    monkeypatch.setattr(processes, "owner_of", lambda pid: os.getuid() + 1 if pid == own else -1)
    assert looks()[:11] == alone[:11]
    assert alone[1:6] == [True, True, False, False, False]
    assert alone[-2:] == [True, -1]


def test_no_more_of_a_process_is_read_than_a_program_can_be_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LARGE_BYTES_MAX", 1 << 16)
    environment = {"CARPOOL_JOB": "first", **{f"X{number}": "x" * 50_000 for number in range(10)}, "LAST": "x"}
    process = subprocess.Popen(["sleep", "100"], env=environment)
    try:
        while processes.name_of(process.pid) != "sleep":
            select.select([], [], [], 0.01)
        assert processes.variable_of(process.pid, "CARPOOL_JOB") == "first"
        assert processes.variable_of(process.pid, "LAST") == ""
    finally:
        process.kill()
        process.wait()
