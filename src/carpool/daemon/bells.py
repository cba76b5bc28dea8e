"""The bells of processes that take turns: sockets at which the one before rings (agent/turns/bell.py).

Rules
  I45 The daemon alone makes names of bells. A process gets its bell with the answer to its Attach, as a descriptor:
      nobody else is rung in its place, and it needs to write nowhere. Anybody may ring; who is rung believes what
      stands in its own page (B2).
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path


def hang(directory: Path, pid: int) -> socket.socket | None:
    """The bell of this process, to be given away and closed; None if none can be made: turns then go through the
    daemon."""
    path = directory / str(pid)
    try:
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    except OSError:
        return None
    try:
        path.unlink(missing_ok=True)  # of a process with this number that died, or of a daemon that did
        bell.bind(os.fsencode(path))
        path.chmod(0o666)
    except OSError:
        bell.close()
        return None
    return bell


def take_all_down(directory: Path) -> None:
    """Names of an earlier daemon's: every process that lives gets another bell when it comes."""
    for path in directory.iterdir():
        with contextlib.suppress(OSError):
            path.unlink()


def take_down(directory: Path, pid: int) -> None:
    with contextlib.suppress(OSError):
        (directory / str(pid)).unlink()
