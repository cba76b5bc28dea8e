"""What `carpool run` says while its job waits to be started."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.cli import runner
from carpool.cli.runner import Program, Runner
from carpool.errors import PeerError
from carpool.wire import framing
from carpool.wire import messages as m
from carpool.wire.places import Places, find_places

PATIENCE_SECONDS = 60.0
WORD = "waits for its start: 2 programs are being started, and at most 2 at once"


class Daemon:
    """One that lets a job wait until it is told to refuse it."""

    def __init__(self, places: Places) -> None:
        for directory in (places.run, places.state):
            directory.mkdir(mode=0o700, exist_ok=True)
        self.refuse = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(places.socket))
        self._listener.listen()
        self._listener.settimeout(PATIENCE_SECONDS)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        peer, _ = self._listener.accept()
        with peer:
            peer.recv(1 << 16)
            peer.sendall(framing.encode(m.Wait(job="late-1", reason=WORD)))
            self.refuse.wait(PATIENCE_SECONDS)
            peer.sendall(framing.encode(m.Refuse(reason="no more")))

    def close(self) -> None:
        self.refuse.set()
        self._thread.join(PATIENCE_SECONDS)
        self._listener.close()


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setenv("CARPOOL_DIR", str(tmp_path))
    made = Daemon(find_places())
    yield made
    made.close()


def run(said: list[str], daemon: Daemon) -> None:
    """Returns when the job was refused; the daemon does that once something was said."""

    def say(text: str) -> None:
        said.append(text)
        daemon.refuse.set()

    program = Program(job="", spec={"name": "late"}, argv=["true"], cwd="/", environment={})
    made = Runner(find_places(), program, say)
    with pytest.raises(PeerError, match="no more"):
        made.run()
    assert made._wire is not None
    made._wire.close()  # else the end of its process does


def test_a_short_wait_is_not_said(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SAID_AFTER_SECONDS", PATIENCE_SECONDS)
    daemon.refuse.set()
    said: list[str] = []
    run(said, daemon)
    assert said == []


def test_a_wait_that_lasts_is_said_once(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SAID_AFTER_SECONDS", 0.2)
    said: list[str] = []
    run(said, daemon)
    assert said == [f"late-1 {WORD}"]
