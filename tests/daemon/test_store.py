"""What is shown of the pages that jobs keep for their next move."""

from __future__ import annotations

import os
from pathlib import Path

from carpool.agent.parking.host_buffers import TmpfsBuffer
from carpool.daemon.store import kept_bytes
from tests.native.test_meter import dead_pid

MIB = 1 << 20


def test_pages_that_are_kept_for_the_next_move_are_seen_from_outside(tmp_path: Path) -> None:
    directory = tmp_path.resolve()
    store, pids = TmpfsBuffer(directory), [os.getpid(), os.getpid(), dead_pid()]
    (directory / "named").write_bytes(bytes(MIB))
    with (directory / "named").open("rb"):
        assert kept_bytes(directory, pids) == 0
        store.reserve(3 * MIB)
        assert 4 * MIB <= kept_bytes(directory, pids) < 5 * MIB, "in large pages"
        assert kept_bytes(directory / "elsewhere", pids) == 0
        store._drop()
        assert kept_bytes(directory, pids) == 0
