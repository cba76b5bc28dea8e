"""The agent's end of the connection: the shared page and the socket to the daemon.

The page is enough while the job keeps its turn: it counts its steps there and reads the recall word. The socket is
used only to attach, to ask, to give back and to report. Everything here may fail with LinkLostError; the caller
(turns/turn_taking.py) then lets the program go on and comes back later.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import time
from pathlib import Path

from carpool import __version__
from carpool.agent.turns.bell import DIRECTORY, Bell, OwnSocket, open_bell
from carpool.agent.turns.hot_path import make_turn_state
from carpool.errors import LinkLostError, UnwantedError
from carpool.wire import framing, page
from carpool.wire import messages as m
from carpool.wire.connecting import connect
from carpool.wire.protocol import ATTACH_SECONDS

DESCRIPTOR = struct.Struct("i")  # as it travels beside a message


class Link:
    """One process's connection to the daemon, for one job."""

    def __init__(self, job: str, socket_path: str, page_path: str) -> None:
        self.job = job
        self._socket_path = socket_path
        self._socket: OwnSocket | None = None
        self._tried_ns = 0
        self.page = page.Page.open(Path(page_path))
        self.words = self.page.words
        self.state = make_turn_state(self.words)
        self._bell: Bell | None = None
        self._find_slot()
        if self.base:
            page.raise_flag(self.words, self.base, page.FLAG_AGENT)

    def _find_slot(self) -> None:
        slot = self.page.slot_of(os.getpid())
        if slot is not None:
            self.base = page.slot_base(slot)

    @property
    def base(self) -> int:
        """Word index of this process's slot; 0 until it has one."""
        return self.state.base

    @base.setter
    def base(self, base: int) -> None:
        self.state.base = base

    @property
    def is_metered(self) -> bool:
        """Whether the C meter counts this process's bytes."""
        return bool(self.base and self.words[self.base + page.S_FLAGS] & page.FLAG_METERED)

    @property
    def is_up(self) -> bool:
        return self._socket is not None

    def connect(self, *, holding: bool) -> None:
        """Attach to the daemon; raises LinkLostError or UnwantedError."""
        self._tried_ns = time.monotonic_ns()
        if self._bell is not None and not self._bell.is_ours():
            self.close_bell()
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket = OwnSocket(peer)
        try:
            connect(peer, self._socket_path, seconds=ATTACH_SECONDS)
            peer.settimeout(ATTACH_SECONDS)
            slot = self.base // page.SLOT_WORDS
            attach = m.Attach(
                job=self.job,
                pid=os.getpid(),
                slot=slot,
                holding=holding,
                version=__version__,
                protocol=m.PROTOCOL,
            )
            self.send(attach)
            answer, descriptor = self._receive_first()
            peer.settimeout(None)
        except OSError as error:
            self.close()
            raise LinkLostError(f"the daemon at {self._socket_path} does not answer: {error}") from error
        except BaseException:
            self.close()  # a Ctrl-C must not leave an answer unread
            raise
        if isinstance(answer, m.Refuse):
            self.close()
            raise UnwantedError(answer.reason)
        if not isinstance(answer, m.Attached):
            self.close()
            raise UnwantedError(f"the daemon answered an attach with {type(answer).__name__}")
        self.base = page.slot_base(answer.slot)
        self.state.peer, self.state.peer_inode, self.state.rung = peer.fileno(), self._socket.inode, 0
        self.close_bell()  # an earlier daemon's
        self._bell = open_bell(Path(self._socket_path).parent / DIRECTORY, descriptor, self.state)
        if self._bell is not None:
            page.raise_flag(self.words, self.base, page.FLAG_BELL)

    def may_come_back(self) -> bool:
        """Whether a daemon that does not answer died: one that was stopped took its socket with it."""
        return Path(self._socket_path).exists()

    def since_try_ns(self) -> int:
        return time.monotonic_ns() - self._tried_ns

    def _own_socket(self) -> OwnSocket:
        """The connection; LinkLostError if there is none, or the program closed it or the bell (B7)."""
        if self._socket is None:
            raise LinkLostError("not connected")
        if not self._socket.is_ours() or (self._bell is not None and not self._bell.is_ours()):
            self.close()
            raise LinkLostError("the program closed the connection to the daemon")
        return self._socket

    def send(self, message: m.Message) -> None:
        peer = self._own_socket().socket
        try:
            # The program may have given SIGPIPE its deadly default back.
            peer.sendall(framing.encode(message), socket.MSG_NOSIGNAL)
        except OSError as error:
            self.close()
            raise LinkLostError(f"the daemon closed the connection: {error}") from error

    def _receive_first(self) -> tuple[m.Message, int]:
        """The answer to an Attach, and the bell that came with it, or -1."""
        # Not socket.recv_fds: before Python 3.12 it forgets the flag, and the program's children would have the bell.
        peer, room = self._own_socket().socket, socket.CMSG_SPACE(DESCRIPTOR.size)
        head, ancillary, _, _ = peer.recvmsg(framing.HEAD.size, room, socket.MSG_CMSG_CLOEXEC)
        given = [
            DESCRIPTOR.unpack(data[: DESCRIPTOR.size])[0] for *_, data in ancillary if len(data) >= DESCRIPTOR.size
        ]
        try:
            return self._receive_rest(head or self._read(1)), given[0] if given else -1
        except BaseException:
            for each in given:
                os.close(each)
            raise

    def receive(self) -> m.Message:
        """Block until a whole message is there."""
        return self._receive_rest(b"")

    def _receive_rest(self, head: bytes) -> m.Message:
        head += self._read(framing.HEAD.size - len(head))
        message = framing.decode_frame(head)
        if message is not None:
            return message
        length = framing.body_length(head)
        return framing.decode(head, self._read(length) if length else b"")

    def wait(self) -> m.Message:
        """Block until a message is there, or the grant that another job rang."""
        while True:
            if self._bell is not None and self._socket is not None:
                grant = self._bell.wait(self._own_socket())
                if grant is not None:
                    return grant
            message = self.receive()
            if not isinstance(message, m.Grant):
                return message
            if not 0 < message.serial <= self.state.rung:
                self.words[self.base + page.S_OFFER] = 0  # its bell may still come, and is not another turn (B3)
                return message

    def fileno(self) -> int:
        """For select; a connection that is gone is readable at once, and reading then says so."""
        return self._own_socket().socket.fileno()

    def _read(self, count: int) -> bytes:
        peer, parts = self._own_socket().socket, b""
        while len(parts) < count:
            try:
                chunk = peer.recv(count - len(parts))
            except OSError as error:
                self.close()
                raise LinkLostError(f"the connection to the daemon broke: {error}") from error
            if not chunk:
                self.close()
                raise LinkLostError("the daemon closed the connection")
            parts += chunk
        return parts

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self.state.peer = -1

    def let_be(self) -> None:
        """Forget a connection whose descriptor is the program's by now: Python would close it at the end (B7)."""
        if self._socket is not None and not self._socket.is_ours():
            self.close()

    def close_bell(self) -> None:
        if self._bell is not None:
            self._bell.close()
            self._bell = None


def tell_detached(job: str, socket_path: str, reason: str) -> None:
    """Tell the daemon, if it is there, that this process has no page to attach with and goes on alone."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        connect(peer, socket_path, seconds=ATTACH_SECONDS)
        peer.settimeout(ATTACH_SECONDS)
        attach = m.Attach(job=job, pid=os.getpid(), slot=0, holding=False, version=__version__, protocol=m.PROTOCOL)
        peer.sendall(framing.encode(attach) + framing.encode(m.Detach(reason=reason)), socket.MSG_NOSIGNAL)
        peer.recv(framing.HEAD.size)


def say(text: str) -> None:
    """One line on stderr; a closed stderr is no reason to fail."""
    try:
        sys.stderr.write(f"carpool: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return
