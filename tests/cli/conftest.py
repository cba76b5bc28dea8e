"""Something that answers in place of a daemon, for what a command makes of an answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.wire import framing
from carpool.wire import messages as m
from carpool.wire.places import find_places


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, object]]]:
    """Answers calls in place of a daemon: each with the next of these."""
    monkeypatch.setenv("CARPOOL_DIR", str(tmp_path))
    places = find_places()
    for directory in (places.run, places.state):
        directory.mkdir(mode=0o700)
    answers: list[dict[str, object]] = []
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(places.socket))
    listener.listen()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer:
                    if peer.recv(1 << 16):
                        peer.sendall(framing.encode(m.Reply(answer=answers.pop(0), error="", code=0)))

    thread = threading.Thread(target=serve)
    thread.start()
    yield answers
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(30)
