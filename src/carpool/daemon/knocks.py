"""Where waiting allocations knock: a program inside `malloc` that waits for memory can do no more than that.

A knock says nothing: what waits stands in the pages (S_PENDING). So one that is lost, or comes when nobody listens,
does no harm, as the program knocks again while it waits (native/meter.c, M4); one that anybody sends makes the daemon
look once too often.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from carpool.daemon.entrance import bind
from carpool.wire.places import Places

HEARD_MAX = 100  # knocks at once; whatever is left comes next


class KnockSocket:
    def __init__(self, places: Places, on_knock: Callable[[], None]) -> None:
        self._places = places
        self._on_knock = on_knock
        self._open()

    def _open(self) -> None:
        self._bound = bind(self._places, self._places.knock, socket.SOCK_DGRAM)
        self._socket = self._bound.socket
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._hear)

    def restore(self) -> None:
        """Make it again if somebody removed it."""
        if not self._bound.is_own():
            before = self._socket
            self._open()
            asyncio.get_running_loop().remove_reader(before.fileno())
            before.close()

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(HEARD_MAX):
                self._socket.recv(1)
        self._on_knock()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._bound.remove()
        self._socket.close()
