"""A socket whose backlog is full is busy, not gone."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.wire.connecting import connect

PATIENCE = 30.0


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[tuple[socket.socket, str, list[socket.socket]]]:
    """A listening socket whose backlog is full, and those who wait there."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)
        server.listen(0)
        waiting: list[socket.socket] = []
        with pytest.raises(BlockingIOError):
            for _ in range(10):
                waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                waiting[-1].settimeout(PATIENCE)
                waiting[-1].connect(path)
        yield server, path, waiting
        for each in waiting:
            each.close()


def test_who_finds_a_full_backlog_is_connected_when_there_is_room(
    busy: tuple[socket.socket, str, list[socket.socket]],
) -> None:
    server, path, _ = busy

    def accept() -> None:
        for _ in range(2):
            server.accept()[0].close()

    timer = threading.Timer(0.1, accept)
    timer.start()
    before = random.getstate()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        connect(peer, path, seconds=PATIENCE)
    timer.join()
    assert random.getstate() == before, "a program's random numbers are its own"


def test_a_backlog_that_stays_full_is_a_time_out(busy: tuple[socket.socket, str, list[socket.socket]]) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer,
        pytest.raises(TimeoutError, match=r"busy for 0\.1"),
    ):
        connect(peer, busy[1], seconds=0.1)


def test_a_socket_without_an_owner_is_refused_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer, pytest.raises(ConnectionRefusedError):
        connect(peer, path, seconds=PATIENCE)
