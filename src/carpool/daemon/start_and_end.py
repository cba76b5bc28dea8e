"""What a runner writes down of a program's start and end, in the job's directory, for whichever daemon reads it.

Apart from `files.py`, because every `carpool run` needs this and nothing else of the daemon, and not the core's code.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import TypeVar

import msgspec

Kept = TypeVar("Kept")
WARM = "warm"  # how a program started; a cold start says more
BYTES_MAX = 64 << 20  # a job may have megabytes of arguments and variables


def read_file(path: Path, bytes_max: int = BYTES_MAX) -> bytes:
    """What a file of a job says. Its programs may put anything there: what is no file, or too long for one, is an
    OSError, so nobody waits at a pipe or reads without an end."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > bytes_max:
            raise OSError(errno.EINVAL, "it is not a file of carpool's", str(path))
        return file.read(bytes_max)


def replace_file(path: Path, body: bytes, draft: Path) -> None:
    """Write a file so that others find a whole one; OSError if the disk refuses. The draft is always a new file."""
    make_file(draft, body)
    draft.replace(path)


def make_file(path: Path, body: bytes) -> None:
    """Write a new file in the place of whatever is there."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(body)


class Start(msgspec.Struct, kw_only=True):
    """Who starts the job's program, and then which process it is; `jobs/ID/started.json`.

    A runner makes this file before the program runs, and only one can. So a program runs once, whatever becomes of
    daemons and of what they noted.
    """

    runner_pid: int
    runner_birth: int
    child_pid: int = 0
    child_birth: int = 0
    how: str = ""  # WARM, or "cold: " and why; empty where nobody wanted it warm

    def claim(self, directory: Path) -> bool:
        """Make the file; False if another runner did. OSError if that cannot be known."""
        draft = self._draft(directory)
        try:
            os.link(draft, directory / "started.json")
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        return True

    def save(self, directory: Path) -> None:
        """Write what is known by now into the file that this runner made."""
        with contextlib.suppress(OSError):
            self._draft(directory).replace(directory / "started.json")

    def _draft(self, directory: Path) -> Path:
        draft = directory / f"started.{os.getpid()}"
        make_file(draft, msgspec.json.encode(self))
        return draft

    @classmethod
    def load(cls, directory: Path) -> Start | None:
        return _loaded(directory / "started.json", cls)


class End(msgspec.Struct, kw_only=True):
    """How a program ended: its runner writes it before it tells the daemon, which may not be there. The daemon writes
    what became of the job, before it forgets it."""

    code: int
    signal: int = 0
    state: str = ""  # of the job; empty: as the code says
    reason: str = ""

    def how(self) -> str:
        """How the program ended, or why it never ran."""
        return self.reason or (f"ended by signal {self.signal}" if self.signal else f"exit code {self.code}")

    def save(self, directory: Path) -> None:
        with contextlib.suppress(OSError):
            replace_file(directory / "end.json", msgspec.json.encode(self), directory / f"end.{os.getpid()}")

    @classmethod
    def load(cls, directory: Path) -> End | None:
        return _loaded(directory / "end.json", cls)


def _loaded(path: Path, kind: type[Kept]) -> Kept | None:
    try:
        return msgspec.json.decode(read_file(path), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None
