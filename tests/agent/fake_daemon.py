"""The daemon's end of a member's connection, played by a test: it answers what it is told to answer."""

from __future__ import annotations

import os
import select
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from carpool.agent.link import Link
from carpool.daemon import bells
from carpool.wire import framing, page
from carpool.wire import messages as m


class FakeDaemon:
    """Listens like a daemon; the test takes each connection and each message itself."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="cp-daemon-", dir="/tmp"))
        self.page = page.Page.create(self.directory / "page")
        self.slot = self.page.lend_slot(os.getpid()) or 0
        self.base = page.slot_base(self.slot)
        self.words = self.page.words
        self._peer: socket.socket | None = None
        self._left: list[m.Message] = []
        self._decoder = framing.Decoder()
        self._listener: socket.socket | None = None
        self.open()

    def open(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.directory / "socket"))
        self._listener.listen()
        self._listener.settimeout(20)

    def link(self) -> Link:
        return Link("job-1", str(self.directory / "socket"), str(self.directory / "page"))

    def accept(self, *, attach: bool = True) -> m.Message:
        """Take the next connection and its Attach; answer it unless told not to."""
        self.hang_up()
        assert self._listener is not None
        self._peer, _ = self._listener.accept()
        self._peer.settimeout(20)
        self._decoder, self._left = framing.Decoder(), []
        message = self.take()
        if attach:
            self.send_bell(m.Attached(slot=self.slot, pid=os.getpid()))
        return message

    def take(self) -> m.Message:
        """The next message of the member."""
        assert self._peer is not None
        while not self._left:
            data = self._peer.recv(65536)
            assert data, "the member closed the connection"
            self._left = self._decoder.feed(data)
        return self._left.pop(0)

    def is_silent(self) -> bool:
        """Whether the member has said nothing that was not taken."""
        assert self._peer is not None
        return not self._left and not select.select([self._peer], [], [], 0)[0]

    def take_until(self, wanted: type[m.Message]) -> m.Message:
        while not isinstance(message := self.take(), wanted):
            pass
        return message

    def answer(self, wanted: type[m.Message]) -> None:
        """Wait for an Ask or a Return, and grant the next turn."""
        self.take_until(wanted)
        self.grant()

    def answer_return(self) -> None:
        """Wait for the turn to come back, until it is asked for again, and grant it."""
        returned = self.take_until(m.Return)
        assert isinstance(returned, m.Return)
        if not returned.wants_more:
            self.take_until(m.Ask)
        self.grant()

    def is_closed(self) -> bool:
        """Whether the member closed the connection; waits for it."""
        assert self._peer is not None
        while data := self._peer.recv(65536):
            self._left += self._decoder.feed(data)
        return True

    def send(self, message: m.Message) -> None:
        assert self._peer is not None
        self._peer.sendall(framing.encode(message))

    def send_bell(self, message: m.Attached) -> None:
        """With a bell, if this daemon has a directory for them."""
        assert self._peer is not None
        bell = bells.hang(self.directory / "bells", message.pid)
        if bell is None:
            self.send(message)
            return
        socket.send_fds(self._peer, [framing.encode(message)], [bell.fileno()])
        bell.close()

    def grant(self, *, is_shared: bool = False) -> None:
        self.words[self.base + page.S_RECALL] = 0
        self.send(m.Grant(lane_bytes=1, is_shared=is_shared))

    def recall(self, at: int = 1) -> None:
        self.words[self.base + page.S_RECALL] = at

    @property
    def steps(self) -> int:
        return self.words[self.base + page.S_STEPS]

    @property
    def lease(self) -> int:
        return self.words[self.base + page.S_LEASE]

    def hang_up(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def die(self, *, leave_socket: bool = True) -> None:
        """Go away: killed (the socket's file stays) or stopped (it goes too)."""
        self.hang_up()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if not leave_socket:
            (self.directory / "socket").unlink()

    def come_back(self) -> None:
        (self.directory / "socket").unlink(missing_ok=True)
        self.open()

    @contextmanager
    def playing(self, act: Callable[[], object]) -> Iterator[None]:
        """Act in a thread while the member, in this one, is blocked; a failure in there fails the test."""
        with ThreadPoolExecutor(1) as pool:
            acted = pool.submit(act)
            yield
            acted.result(timeout=20)

    def close(self) -> None:
        self.die()
        self.page.close()
        shutil.rmtree(self.directory)
