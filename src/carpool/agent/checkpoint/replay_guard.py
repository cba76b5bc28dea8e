"""Guards what a program does outside of itself, in a job that can be checkpointed; begins before its first line.

During a replay the program writes to its terminal what it wrote before. So its output is held back, and it may write
no files and start no processes. In a run that is recorded, the first deed that could not be replayed is noted, said
once, and left in the job's directory, where `carpool explain` and `carpool checkpoint` find it.

The workers of a data loader are started again by a replay: the seeds and the order that they are given are reads.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from carpool.errors import RefusedError

HARMLESS = ("/dev/", "/proc/")  # and carpool's own files
SHARED = "/dev/shm/"  # no device: files like any other
WRITING = os.O_WRONLY | os.O_RDWR
LOOKUP_DEPTH = 6  # frames between the start of a program and ctypes.util
MULTIPROCESSING = str(Path(os.__file__).parent / "multiprocessing") + os.sep
SEVERAL = "only a job of one process can be written"
DEEDS = {
    "subprocess.Popen": f"it started another program; {SEVERAL}",
    "os.system": f"it started another program; {SEVERAL}",
    "os.posix_spawn": f"it started another program; {SEVERAL}",
    "os.fork": f"it started processes that are no data workers; {SEVERAL}",
    "os.forkpty": f"it started processes; {SEVERAL}",
    "os.remove": "it removed files",
    "os.rename": "it renamed files",
    "shutil.rmtree": "it removed files",
    "builtins.input": "it read from its input",
}


class ReplayGuard:
    def __init__(self, replay: str, how: str) -> None:
        self.replay = replay  # the checkpoint that is replayed; empty if there is none
        self.how = how
        self.trouble = ""  # the first deed that cannot be replayed
        self.is_ours = False  # our own files are written
        own = [os.environ.get(name, "") for name in ("CARPOOL_PAGE", "CARPOOL_SOCKET")]
        own = [str(Path(path).parent) for path in own if path] + [os.environ.get("CARPOOL_PARKED", "")]
        self._own = tuple(f"{path}/" for path in own if path)
        self.is_replaying = bool(replay)
        self.standing: Callable[[], str] = lambda: "its program ended before it imported torch"
        self._kept: dict[int, int] = {}  # where the program's output and messages go once they are let through
        if self.is_replaying:
            nothing = os.open(os.devnull, os.O_WRONLY)
            for number in (1, 2):
                with contextlib.suppress(OSError):  # closed by whoever started the program
                    self._kept[number] = os.dup(number)
                    os.dup2(nothing, number)
            os.close(nothing)
            atexit.register(self._at_exit)

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Python calls this for many things; only few are looked at."""
        if self.is_ours:
            return
        if event == "open":
            deed = self._written(args)
        elif event == "socket.connect":
            deed = f"it connected to {args[1]}" if not isinstance(args[1], str | bytes) else ""
        elif event in ("os.remove", "os.rename") and self._is_harmless(args[0]):
            deed = ""
        else:
            deed = DEEDS.get(event, "")
        if not deed or _is_of_the_library(sys._getframe(1)):
            return
        if event == "os.fork" and _is_of_a_loader(sys._getframe(1)):
            return
        if self.is_replaying:
            raise RefusedError(f"{deed}, which it had not done when it was recorded")
        self.refuse(deed)

    def refuse(self, reason: str) -> None:
        """From now on no checkpoint can be written: the first reason is said at once, and stays."""
        if self.trouble:
            return
        self.trouble = reason
        from carpool.agent.link import say
        from carpool.wire.places import CHECKPOINT_REFUSED

        self.is_ours = True
        try:
            say(f"job {os.environ.get('CARPOOL_JOB', '')} can no longer be written to a file: {reason}")
            if page := os.environ.get("CARPOOL_PAGE"):
                with contextlib.suppress(OSError):
                    (Path(page).parent / CHECKPOINT_REFUSED).write_text(reason, errors="replace")
        finally:
            self.is_ours = False

    def retire(self) -> None:
        """In a process that the program forked: it is on its own, and nothing of it is replayed."""
        self.is_ours, self.is_replaying = True, False

    def let_through(self) -> None:
        """Let the program's output through from now on."""
        if self.is_replaying:
            self.is_replaying = False
            sys.stdout.flush()
            sys.stderr.flush()
            for number, kept in self._kept.items():
                os.dup2(kept, number)
                os.close(kept)

    def fail(self, reason: str) -> None:
        """End a replay that must not go on; what the program wrote meanwhile is never seen."""
        message = f"carpool: cannot go on from {self.replay}: {reason}\n".encode(errors="replace")
        with contextlib.suppress(OSError):
            os.write(self._kept.get(2, -1), message)
        os._exit(1)

    def _at_exit(self) -> None:
        if self.is_replaying:
            self.fail(self.standing())

    def _written(self, args: tuple[Any, ...]) -> str:
        path, _, flags = args
        if not isinstance(path, str | bytes | os.PathLike) or not isinstance(flags, int) or not flags & WRITING:
            return ""
        return "" if self._is_harmless(path) else f"it wrote to {os.fsdecode(path)}"

    def _is_harmless(self, path: object) -> bool:
        """Whether this is no file of the program's: a device, bytecode, or one of carpool's own (its bell, say)."""
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        name = os.fsdecode(path)
        is_device = name.startswith(HARMLESS) and not name.startswith(SHARED)
        # A nameless file is opened by the name of its directory, as carpool's store for parked tensors is.
        return is_device or f"{name}/".startswith(self._own) or "__pycache__" in Path(name).parts


def _is_of_a_loader(frame: FrameType | None) -> bool:
    """Whether a data loader of torch starts one of its workers: nobody but multiprocessing is between the two."""
    while frame is not None and frame.f_code.co_filename.startswith(MULTIPROCESSING):
        frame = frame.f_back
    loader = sys.modules.get("torch.utils.data.dataloader")
    if frame is None or loader is None:
        return False
    return bool(frame.f_code is loader._MultiProcessingDataLoaderIter.__init__.__code__)


def _is_of_the_library(frame: FrameType | None) -> bool:
    """Whether a temporary file is made, which has a name of its own in every run, or a library is looked up, for
    which Python asks other programs (torch does so while it is imported, where NVIDIA's Python packages are)."""
    if frame is not None and frame.f_code.co_filename.endswith("/tempfile.py"):
        return True
    for _ in range(LOOKUP_DEPTH):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith("/ctypes/util.py"):
            return True
        frame = frame.f_back
    return False


current: ReplayGuard | None = None


def begin() -> None:
    """For the first Python of the job only; those that it starts are on their own."""
    global current
    del os.environ["CARPOOL_RECORD"]
    current = ReplayGuard(os.environ.pop("CARPOOL_REPLAY", ""), os.environ.pop("CARPOOL_REPLAY_HOW", ""))
    os.register_at_fork(after_in_child=current.retire)
    sys.addaudithook(current.audit)
