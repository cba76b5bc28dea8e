"""Where waiting allocations knock: a program inside `malloc` that waits for memory can do no more than that.

A knock says nothing: what waits stands in the pages (S_PENDING). So one that is lost, or comes when nobody listens,
does no harm, as the program knocks again while it waits (native/meter.c, M4); one that anybody sends makes the daemon
look once too often. The directory is this user's alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

HEARD_MAX = 100  # knocks at once; whatever is left comes next


class KnockSocket:
    def __init__(self, path: Path, on_knock: Callable[[], None]) -> None:
        self._path = path
        self._on_knock = on_knock
        path.unlink(missing_ok=True)  # of a daemon that died: we hold the lock
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(os.fsencode(path))
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._hear)

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(HEARD_MAX):
                self._socket.recv(1)
        self._on_knock()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()
        self._path.unlink(missing_ok=True)
