"""Stands between a program and the world in a job that can be checkpointed; begins before the program's first line.

While a replay goes on, what the program writes to its terminal was written before, so it is held back, and nothing
may be written to files or started. In a run that is recorded, what could not be replayed is noted with its reason.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from carpool.errors import RefusedError

HARMLESS = ("/dev/", "/proc/")  # and carpool's own files
WRITING = os.O_WRONLY | os.O_RDWR
DEEDS = {
    "subprocess.Popen": "it started another program",
    "os.system": "it started another program",
    "os.posix_spawn": "it started another program",
    "os.fork": "it started processes (data workers, say)",
    "os.forkpty": "it started processes",
    "os.remove": "it removed files",
    "os.rename": "it renamed files",
    "shutil.rmtree": "it removed files",
    "builtins.input": "it read from its input",
}


class Curtain:
    def __init__(self, replay: str, how: str) -> None:
        self.replay = replay  # the checkpoint that is replayed; empty if there is none
        self.how = how
        self.trouble = ""  # the first deed that cannot be replayed
        self.is_ours = False  # our own files are written
        page, parked = os.environ.get("CARPOOL_PAGE", ""), os.environ.get("CARPOOL_PARKED", "")
        self._harmless = (*HARMLESS, *(path for path in (os.path.dirname(page), parked) if path))
        self.is_closed = bool(replay)
        self._out = self._err = -1
        if self.is_closed:
            self._out, self._err = os.dup(1), os.dup(2)
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
            os.close(nothing)

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Python calls this for many things; only few are looked at."""
        if self.is_ours:
            return
        if event == "open":
            deed = self._written(args)
        elif event == "socket.connect":
            deed = f"it connected to {args[1]}" if not isinstance(args[1], str | bytes) else ""
        else:
            deed = DEEDS.get(event, "")
        if deed and sys._getframe(1).f_code.co_filename.endswith("/tempfile.py"):
            return  # a name of its own in every run
        if deed and self.is_closed:
            raise RefusedError(f"{deed}, which it had not done when it was recorded")
        self.trouble = self.trouble or deed

    def open(self) -> None:
        """Let the program's output through from now on."""
        if self.is_closed:
            self.is_closed = False
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(self._out, 1)
            os.dup2(self._err, 2)
            os.close(self._out)
            os.close(self._err)

    def fail(self, reason: str) -> None:
        """End a replay that must not go on; what the program wrote meanwhile is never seen."""
        os.write(self._err, f"carpool: cannot go on from {self.replay}: {reason}\n".encode(errors="replace"))
        os._exit(1)

    def _written(self, args: tuple[Any, ...]) -> str:
        path, _, flags = args
        if not isinstance(path, str | bytes | os.PathLike) or not isinstance(flags, int) or not flags & WRITING:
            return ""
        name = os.fsdecode(path)
        if name.startswith(self._harmless) or "__pycache__" in Path(name).parts:
            return ""
        return f"it wrote to {name}"


current: Curtain | None = None


def begin() -> None:
    """For the first Python of the job only; those that it starts are on their own."""
    global current
    os.environ.pop("CARPOOL_RECORD", None)
    current = Curtain(os.environ.pop("CARPOOL_REPLAY", ""), os.environ.pop("CARPOOL_REPLAY_HOW", ""))
    sys.addaudithook(current.audit)
