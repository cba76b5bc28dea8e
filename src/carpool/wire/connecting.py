"""How a Unix socket is reached whose owner is busy: it lives, so whoever cannot be queued there yet tries again.

The kernel answers EAGAIN at once when the socket's backlog is full. That is no sign of a daemon that is gone.
"""

from __future__ import annotations

import os
import socket
import time

PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.01, 0.5


def connect(peer: socket.socket, path: str, *, seconds: float) -> None:
    """Connect, however long the backlog is full; TimeoutError after `seconds`, any other OSError at once."""
    deadline, pause = time.monotonic() + seconds, PAUSE_SECONDS_MIN
    while True:
        left = deadline - time.monotonic()
        peer.settimeout(max(PAUSE_SECONDS_MIN, left))
        try:
            peer.connect(path)
            return
        except BlockingIOError as error:
            if left <= 0:
                raise TimeoutError(f"busy for {seconds:g} s") from error
        time.sleep(min(max(0.0, left), _between(pause / 2, pause)))
        pause = min(2 * pause, PAUSE_SECONDS_MAX)


def _between(least: float, most: float) -> float:
    """A random number, so that many who wait do not come back together. Not by `random`: that is the program's."""
    return least + (most - least) * os.urandom(1)[0] / 255
