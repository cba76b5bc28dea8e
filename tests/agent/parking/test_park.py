"""Parked and back, with the program's signals: its handlers are its own again, and no signal is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import pytest
import torch

from carpool.agent import threads
from carpool.agent.memory import Memory
from carpool.agent.parking import park
from carpool.agent.parking.host_buffers import DiskBuffer, Moved
from carpool.agent.parking.park import Parking
from carpool.agent.parking.storages import Storages
from carpool.agent.turns.turn_taking import Turns
from carpool.wire import messages as m
from carpool.wire import page
from tests.agent.fake_daemon import FakeDaemon
from tests.agent.turns.test_turn_taking import FakeSource

COUNT = 5000
PARK = m.Park(limit_bytes=1 << 40)


class Buffer(DiskBuffer):
    """On a disk that gets into trouble when the test says so."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.on_reserve: Callable[[], None] = lambda: None
        self.on_read: Callable[[], None] = lambda: None

    def reserve(self, count: int) -> None:
        self.on_reserve()
        super().reserve(count)

    def read(self, moves: Sequence[Moved]) -> None:
        self.on_read()
        super().read(moves)


@pytest.fixture
def buffer(tmp_path: Path) -> Buffer:
    return Buffer(tmp_path)


@pytest.fixture
def weights() -> torch.Tensor:
    return torch.ones(COUNT)


@pytest.fixture
def turns(daemon: FakeDaemon, buffer: Buffer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    """The daemon is played by a thread of this process, which touches no tensor."""
    monkeypatch.setattr(threads, "HARMLESS", (*threads.HARMLESS, "concurrent.futures"))
    link = daemon.link()
    yield Turns(link, Memory(FakeSource(), overhead_bytes=0, movable=Storages(torch, "cpu", buffer)))
    link.close()
    link.page.close()


@pytest.fixture
def came() -> Iterator[list[int]]:
    """The signals whose handlers ran; those of this test go with it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    ran: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        ran.append(number)

    for number in before:
        signal.signal(number, note)
    yield ran
    for number, handler in before.items():
        signal.signal(number, handler)


def begin(daemon: FakeDaemon, then: Callable[[], None]) -> None:
    """The first connection and its ask; then what the test wants."""
    assert isinstance(daemon.accept(), m.Attach)
    assert isinstance(daemon.take(), m.Ask)
    then()


def test_k3_a_move_that_fails_leaves_the_handlers_and_runs_what_came_meanwhile(
    daemon: FakeDaemon, turns: Turns, buffer: Buffer, weights: torch.Tensor, came: list[int]
) -> None:
    own = signal.getsignal(signal.SIGUSR1)

    def fill_up() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        raise OSError("the disk is full")

    buffer.on_reserve = fill_up

    def act() -> None:
        daemon.send(PARK)
        answer = daemon.take()
        assert isinstance(answer, m.Parked) and "the disk is full" in answer.reason
        assert came == [signal.SIGUSR1]
        daemon.grant()

    with daemon.playing(lambda: begin(daemon, act)):
        turns.begin()
    assert signal.getsignal(signal.SIGUSR1) is own
    assert weights.sum().item() == COUNT


def test_a_bug_in_a_move_leaves_the_handlers_too(
    daemon: FakeDaemon, turns: Turns, buffer: Buffer, came: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    own = signal.getsignal(signal.SIGUSR1)

    def stumble() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        raise KeyError("a bug")

    buffer.on_reserve = stumble

    def act() -> None:
        daemon.send(PARK)
        assert daemon.is_closed()
        assert isinstance(daemon.accept(), m.Attach)
        message = daemon.take()
        assert isinstance(message, m.Detach) and "a bug" in message.reason

    with daemon.playing(lambda: begin(daemon, act)):
        turns.begin()
    assert "runs unmanaged: unexpected KeyError: 'a bug'" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGUSR1) is own
    assert came == [signal.SIGUSR1]


def test_k1_a_handler_that_raises_keeps_no_other_from_running(
    daemon: FakeDaemon, turns: Turns, buffer: Buffer, weights: torch.Tensor, came: list[int]
) -> None:
    class EnoughError(Exception):
        """The program's own."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise EnoughError

    signal.signal(signal.SIGUSR1, leave)

    def act() -> None:
        daemon.send(PARK)
        assert isinstance(daemon.take(), m.Parked)
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)

    with daemon.playing(lambda: begin(daemon, act)), pytest.raises(EnoughError):
        turns.begin()
    assert came == [signal.SIGUSR2]
    assert weights.sum().item() == COUNT


def test_a_program_that_cannot_leave_again_after_its_handler_ran_says_that_it_is_back(
    daemon: FakeDaemon, turns: Turns, buffer: Buffer, weights: torch.Tensor
) -> None:
    """What else this process holds may be dropped meanwhile, so the handler makes as much as was reserved anew."""
    more: list[torch.Tensor] = []
    reserved_bytes = 0
    before = signal.signal(signal.SIGUSR1, lambda *_: more.append(torch.ones(reserved_bytes // 4)))

    def act() -> None:
        nonlocal reserved_bytes
        daemon.send(PARK)
        answer = daemon.take()
        assert isinstance(answer, m.Parked) and answer.moved_bytes >= weights.nbytes
        reserved_bytes = answer.moved_bytes
        os.kill(os.getpid(), signal.SIGUSR1)
        assert daemon.is_closed()
        assert isinstance(daemon.accept(), m.Attach)
        assert isinstance(daemon.take(), m.Ask)
        assert daemon.lease == page.LEASE_ASKED
        assert daemon.words[daemon.base + page.S_PARKED] == 0
        daemon.grant()

    try:
        with daemon.playing(lambda: begin(daemon, act)):
            turns.begin()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert weights.sum().item() == COUNT
    assert [each.numel() for each in more] == [reserved_bytes // 4]
    assert all((each == 1).all() for each in more)


def test_a_return_that_fails_is_said_once_and_again_only_when_the_reason_changes(
    daemon: FakeDaemon,
    buffer: Buffer,
    weights: torch.Tensor,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(park, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(threads, "thread_in_the_way", str)
    reasons = ["no room", "no room", "no room", "less room", "less room"]

    def fail() -> None:
        if reasons:
            raise MemoryError(reasons.pop(0))

    buffer.on_read = fail
    link = daemon.link()
    parking = Parking(link, Storages(torch, "cpu", buffer), lambda: 0)
    assert parking.park(PARK.limit_bytes).reason == ""
    parking.come_back()
    assert [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines()] == ["no room", "less room"]
    assert weights.sum().item() == COUNT
    link.page.close()
