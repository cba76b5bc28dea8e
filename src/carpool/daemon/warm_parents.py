"""The warm parents of this user, as their own notes and the kernel tell.

They are shown in `carpool daemon status` and ended with the daemon. Runners make them (cli/warm_start.py). They are
no jobs, and nothing is decided for them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

from carpool import calls
from carpool.daemon import processes
from carpool.wire import warm


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
                    )
                )
    return found


def end_all(run: Path) -> None:
    """The daemon was stopped. Programs that they started go on."""
    for parent in find(run):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(parent.pid, signal.SIGTERM)
    for file in warm.directory_in(run).glob("*.*"):
        with contextlib.suppress(OSError):
            file.unlink()  # without its socket, one that just starts ends when it looks
