"""Guards what a program does outside of itself, in a job that can be checkpointed; begins before its first line.

During a replay the program writes to its terminal what it wrote before. So its output is held back, its files are
set aside (set_aside.py), and it may start no processes. In a run that is recorded, the first deed that could not be
replayed is noted, said once, and left in the job's directory: `carpool explain` and `carpool checkpoint` find it.

The workers of a data loader are started again by a replay: the seeds and the order that they are given are reads.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from carpool.agent.checkpoint.set_aside import SetAside
from carpool.agent.checkpoint.written_files import ANEW, WrittenFiles
from carpool.errors import RefusedError
from carpool.wire.checkpoint import CheckpointFile

HARMLESS = ("/dev/", "/proc/")  # and carpool's own files
FILES = {"open", "os.remove", "os.rename", "os.mkdir", "os.link", "os.symlink", "os.truncate", "sqlite3.connect"}
SHARED = "/dev/shm/"  # no device: files like any other
STOP_SECONDS = 30.0  # for a job that was written with --stop to end
LOOKUP_DEPTH = 6  # frames between the start of a program and ctypes.util
MULTIPROCESSING = str(Path(os.__file__).parent / "multiprocessing") + os.sep
SEVERAL = "only a job of one process can be written"
DEEDS = {
    "subprocess.Popen": f"it started another program; {SEVERAL}",
    "os.system": f"it started another program; {SEVERAL}",
    "os.posix_spawn": f"it started another program; {SEVERAL}",
    "os.fork": f"it started processes that are no data workers; {SEVERAL}",
    "os.forkpty": f"it started processes; {SEVERAL}",
    "builtins.input": "it read from its input",
}


class ReplayGuard:
    def __init__(self, replay: str, how: str) -> None:
        self.replay = replay  # the checkpoint that is replayed; empty if there is none
        self.how = how
        self.trouble = ""  # the first deed that cannot be replayed
        self.is_ours = False  # our own files are written
        self.files = WrittenFiles()
        self.file: CheckpointFile | None = None
        self._aside: SetAside | None = None
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

    def open_checkpoint(self) -> None:
        """Before the program's first line: it must find the files that it found when it was recorded."""
        self.is_ours = True
        try:
            self.file = CheckpointFile(Path(self.replay))
            self.file.check()
            written = self.file.contents["files"]
            if written["rows"] and goes_on(self.file.contents["writer"]):
                self.fail("the recorded job still runs, and writes to the same files; cancel it first")
            self._aside = SetAside(self.file.path, self.file.digest, written)
            self.files.on_made = self._aside.note_made
            self._aside.begin()
            if written["rows"] and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, self._end)
        except RefusedError as error:
            self.fail(str(error))
        finally:
            self.is_ours = False

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._put_back()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _put_back(self) -> None:
        self.is_ours = True
        if self._aside is not None:
            with contextlib.suppress(OSError):  # what could not be put back stays where it was set aside
                self._aside.put_back()

    def original_of(self, path: str) -> str:
        """Where the recorded run's file is that a replay left out."""
        found = self._aside.original_of(path) if self._aside is not None else None
        return str(found) if found is not None else path

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Python calls this for many things; only few are looked at."""
        if self.is_ours:
            return
        if event in FILES:
            deed = self._of_a_file(event, args)
        elif event == "socket.connect":
            deed = f"it connected to {args[1]}" if not isinstance(args[1], str | bytes) else ""
        else:
            deed = DEEDS.get(event, "")
        if not deed or _is_of_the_library(sys._getframe(1)):
            return
        if event == "os.fork" and _is_of_a_loader(sys._getframe(1)):
            return
        if self.is_replaying:
            raise RefusedError(f"{deed}, which it had not done when it was recorded")
        self.refuse(deed)

    def _of_a_file(self, event: str, args: tuple[Any, ...]) -> str:
        if not isinstance(args[0], str | bytes | os.PathLike) or self._is_harmless(args[0]):
            return ""
        self.is_ours = True  # what is looked up here is not the program's
        try:
            match event:
                case "open":
                    return self.files.opened(args[0], args[2]) if isinstance(args[2], int) else ""
                case "os.remove":
                    return self.files.removed(*args)
                case "os.rename":
                    return self.files.renamed(*args)
                case "os.mkdir":
                    return self.files.made_directory(args[0], args[2])
                case "os.link" | "os.symlink":
                    return self.files.linked(args[1], args[-1])
                case _:  # a data base or os.truncate: it is changed in place
                    return "" if args[0] == ":memory:" else self.files.opened(args[0], os.O_RDWR | os.O_CREAT)
        finally:
            self.is_ours = False

    def saves(self, path: str | os.PathLike[str]) -> None:
        """C code of a library is about to write this file, and Python does not say so."""
        self.audit("open", (path, "wb", ANEW))

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
            self._settle()
            sys.stdout.flush()
            sys.stderr.flush()
            for number, kept in self._kept.items():
                os.dup2(kept, number)
                os.close(kept)

    def _settle(self) -> None:
        before, self.is_ours = self.is_ours, True
        if self._aside is not None:
            self._aside.settle(self.files)
        self.files.on_made = lambda path: None
        if signal.getsignal(signal.SIGTERM) == self._end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.is_ours = before

    def fail(self, reason: str) -> None:
        """End a replay that must not go on; what the program wrote meanwhile is never seen."""
        self._put_back()
        message = f"carpool: cannot go on from {self.replay}: {reason}\n".encode(errors="replace")
        with contextlib.suppress(OSError):
            os.write(self._kept.get(2, -1), message)
        os._exit(1)

    def _at_exit(self) -> None:
        if self.is_replaying:
            self.fail(self.standing())

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
    """Whether a library is looked up, for which Python asks other programs (torch does so while it is imported, where
    NVIDIA's Python packages are)."""
    for _ in range(LOOKUP_DEPTH):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith("/ctypes/util.py"):
            return True
        frame = frame.f_back
    return False


def this_process(*, is_stopped: bool) -> list[str]:
    """By which a process is known again: the start of its machine, its number, its own start; and whether it ends."""
    return [_boot(), str(os.getpid()), _started(str(os.getpid())), "stops" if is_stopped else "goes on"]


def goes_on(process: list[str]) -> bool:
    """Whether that process still runs; one that was told to stop is waited for."""
    boot, number, started, how = process
    until = time.monotonic() + (STOP_SECONDS if how == "stops" else 0)
    while boot == _boot() and number.isdecimal() and _started(number) == started != "":
        if time.monotonic() >= until:
            return True
        time.sleep(0.05)
    return False


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _started(number: str) -> str:
    try:
        state, *rest = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return rest[18] if state not in "ZX" else ""


current: ReplayGuard | None = None


def begin() -> None:
    """For the first Python of the job only; those that it starts are on their own."""
    global current
    del os.environ["CARPOOL_RECORD"]
    current = ReplayGuard(os.environ.pop("CARPOOL_REPLAY", ""), os.environ.pop("CARPOOL_REPLAY_HOW", ""))
    os.register_at_fork(after_in_child=current.retire)
    if current.replay:
        current.open_checkpoint()
    sys.addaudithook(current.audit)
