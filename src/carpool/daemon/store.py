"""What jobs that are back on their device keep of the store of parked jobs, where that is in memory (a tmpfs).

They keep its pages for their next move, since new ones are what a move costs (agent/parking/host_buffers.py).
The host budget counts jobs that are away; these pages are beside it, so they are shown. The files have
no name: who has one open has it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from carpool.daemon import processes

BLOCK_BYTES = 512  # the unit of st_blocks, whatever the filesystem's is


def kept_bytes(store: Path, pids: Iterable[int]) -> int:
    """Bytes of the nameless files in the store that these processes have open; one that several have counts once."""
    found: dict[int, int] = {}
    for pid in pids:
        nothing: dict[int, int] = {}
        found |= processes.look(pid, "fd", partial(_kept_by, pid, store), nothing)
    return sum(found.values())


def _kept_by(pid: int, store: Path) -> dict[int, int]:
    open_files = _open_files(Path("/proc") / str(pid) / "fd", store)
    return {facts.st_ino: facts.st_blocks * BLOCK_BYTES for facts in open_files}


def _open_files(directory: Path, store: Path) -> Iterator[os.stat_result]:
    """Those of one process; none if it ended, and without those it closes meanwhile."""
    with contextlib.suppress(OSError):
        for link in list(directory.iterdir()):
            with contextlib.suppress(OSError):
                if not link.readlink().is_relative_to(store):
                    continue  # not looked at: a program's files may be on a disk that hangs
                facts = link.stat()
                if stat.S_ISREG(facts.st_mode) and not facts.st_nlink:
                    yield facts
