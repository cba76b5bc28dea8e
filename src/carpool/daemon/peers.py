"""One connection to the daemon: bytes in, messages out, and whose it is."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import cast

import msgspec

from carpool.daemon import processes
from carpool.daemon.allowances import Allowances
from carpool.daemon.jobs import LiveJob
from carpool.daemon.people import Caller
from carpool.daemon.turns import Member
from carpool.errors import PeerError
from carpool.wire import messages as m
from carpool.wire.framing import Decoder, encode

log = logging.getLogger("carpool")
UNSENT_MAX = 8 << 20  # a peer that does not read its answers is cut off
PIECE_BYTES = 8 << 10  # of what one peer sent are taken in at once: then it is others' turn


def to_json(value: dict[str, object]) -> bytes:
    """An answer as it travels. By msgspec: a list of thousands of jobs is written in the daemon's loop, and turns
    wait meanwhile."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError):  # arguments that are no text; for older msgspec numbers over 64 bits
        return json.dumps(value, separators=(",", ":")).encode()


class Connection(asyncio.Protocol):
    """A member, a runner or a command line; the first message shows which."""

    def __init__(
        self,
        on_message: Callable[[Connection, m.Message], None],
        on_lost: Callable[[Connection], None],
        *,
        allowances: Allowances | None = None,
    ) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._decoder = Decoder()
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self._allowances = allowances  # of all users of the machine; None: the daemon serves one user alone
        self._unread = b""  # what came and was not taken in yet
        self._uid = self._gid = -1
        self.job: LiveJob | None = None
        self.member: Member | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by behaviour, not by class
        peer: socket.socket = self._transport.get_extra_info("socket")
        _, self._uid, self._gid = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        self._fd = peer.fileno()
        if self._allowances is not None:
            refusal = self._allowances.come(self)
            if refusal:
                self.send(m.Refuse(reason=refusal))
                self.close()
        elif self._uid != os.geteuid():
            log.warning("peer.refused uid=%d reason=another user", self._uid)
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._unread:  # what came before is not taken in yet
            self._unread += data
        elif self._allowances is not None and not self._allowances.may_go_on(self):
            self._put_off(data)
        elif len(data) <= PIECE_BYTES:
            self._take(data)
        else:
            self._unread = data
            self.go_on()

    def _put_off(self, unread: bytes) -> None:
        self._unread = unread
        if self._transport is not None:
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Take in the next piece of what was sent; a peer that sends much must not keep the others waiting."""
        if self._transport is None:
            return
        piece, rest = self._unread[:PIECE_BYTES], self._unread[PIECE_BYTES:]
        self._unread = b""
        self._take(piece)
        if self._transport is None or self._transport.is_closing():
            return
        if not rest:
            self._transport.resume_reading()
            return
        self._put_off(rest)
        if self._allowances is None or self._allowances.may_go_on(self):
            asyncio.get_running_loop().call_soon(self.go_on)

    def _take(self, data: bytes) -> None:
        if self._allowances is None:
            self._take_in(data)
            return
        began_ns = time.monotonic_ns()
        self._take_in(data)
        self._allowances.charge(self, time.monotonic_ns() - began_ns)

    def _take_in(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                self._on_message(self, message)
        except PeerError as error:
            log.warning("peer.dropped reason=%s", error)
            self.close()
        except Exception as error:  # one connection's trouble must not be another's
            log.exception("peer.failed")
            said = str(error).partition("\n")[0]
            self.send(m.Refuse(reason=f"a bug in carpool: {type(error).__name__}: {said}; see the daemon's log"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self._fd, self._unread = None, -1, b""
        if self._allowances is not None:
            self._allowances.leave(self)
        self._on_lost(self)

    def send(self, message: m.Message, given: socket.socket | None = None) -> None:
        """A socket goes with it only where nothing waits to be sent: who gets none does without."""
        if self._transport is None:
            return
        data = encode(message, dumps=to_json) if isinstance(message, m.Reply) else encode(message)
        unsent = self._transport.get_write_buffer_size()
        if unsent > UNSENT_MAX:
            log.warning("peer.dropped reason=it does not read its answers")
            self._transport.abort()
            return
        if not unsent and self._fd >= 0 and not self._transport.is_closing():
            # A loop may put writes off to the end of its round (uvloop does); a granted job need not wait for that.
            try:
                data = data[self._write(data, given) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # the peer is gone; connection_lost follows
        if data:
            self._transport.write(data)

    @property
    def uid(self) -> int:
        """Whose process connected; -1 before that is known."""
        return self._uid

    @property
    def takes_turns(self) -> bool:
        """Whether it is a program of a job, and not a command."""
        return self.member is not None

    @property
    def caller(self) -> Caller:
        """Who connected, as the kernel says."""
        return Caller(uid=self._uid, gid=self._gid, pid=self.process())

    def _write(self, data: bytes, given: socket.socket | None) -> int:
        if given is None:
            return os.write(self._fd, data)
        with socket.socket(fileno=os.dup(self._fd)) as line:
            return socket.send_fds(line, [data], [given.fileno()])

    def process(self) -> int:
        """The process that connected, as the kernel names it: its pid, 0 if it is gone, or processes.UNSEEN."""
        peer = self._transport.get_extra_info("socket") if self._transport is not None else None
        return processes.connected_by(peer) if peer is not None else 0

    def unread_bytes(self) -> int:
        """What was sent and not taken by the other side yet, beyond what the kernel holds."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def close(self) -> None:
        if self._transport is not None:
            self._fd = -1
            self._transport.close()
