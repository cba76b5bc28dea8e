"""The warm parents of this user, as their own notes and the kernel tell.

They are shown in `carpool daemon status` and ended with the daemon. Runners make them (cli/warm_start.py). They are
no jobs, and nothing is decided for them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from carpool import calls
from carpool.daemon import processes
from carpool.wire import warm

END_SECONDS = 2.0  # that an end by SIGTERM may take


def find(run: Path) -> list[calls.WarmParent]:
    """Those that live."""
    found = []
    for file in sorted(warm.directory_in(run).glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            facts = json.loads(file.read_text())
            pid = int(facts["pid"])
            if processes.variable_of(pid, warm.ENV_WARM_PARENT):
                found.append(
                    calls.WarmParent(
                        pid=pid,
                        python=str(facts["python"]),
                        programs=int(facts["programs"]),
                        memory_bytes=processes.resident_bytes(pid),
                        idle_ns=max(0, round((time.time() - float(facts["used"])) * 1e9)),
                        is_ready=bool(facts["is_ready"]),
                    )
                )
    return found


def end_all(run: Path) -> None:
    """The daemon was stopped: they are gone when this returns. Programs that they started go on.

    Without its socket a parent ends when it looks, so one that has just begun and wrote no note yet does.
    """
    directory = warm.directory_in(run)
    _remove(directory.glob("*.sock"))
    ends = []
    for parent in find(run):
        with contextlib.suppress(OSError):
            ends.append(os.pidfd_open(parent.pid))
            if parent.is_ready:
                os.kill(parent.pid, signal.SIGTERM)
            else:  # it has no programs yet, and perhaps a helper
                os.killpg(os.getpgid(parent.pid), signal.SIGTERM)
    deadline = time.monotonic() + END_SECONDS
    for end in ends:
        if not select.select([end], [], [], max(0.0, deadline - time.monotonic()))[0]:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(end, signal.SIGKILL)
        os.close(end)
    _remove(directory.glob("*.*"))


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            file.unlink()
