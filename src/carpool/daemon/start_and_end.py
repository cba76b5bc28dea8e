"""What a runner writes down of a program's start and end, in the job's directory, for whichever daemon reads it.

Apart from `files.py`, because every `carpool run` needs this and nothing else of the daemon, and not the core's code.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from carpool.daemon.user_files import make_file, read_file

Kept = TypeVar("Kept")
WARM = "warm"  # how a program started; a cold start says more
# A program may write whatever it likes into these files: no number of it is larger than what a process can have.
Pid = Annotated[int, msgspec.Meta(ge=0, lt=1 << 22)]
Birth = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Code = Annotated[int, msgspec.Meta(ge=-255, le=255)]
Signal = Annotated[int, msgspec.Meta(ge=0, le=64)]
SENTENCE_MAX = 4000
Sentence = Annotated[str, msgspec.Meta(max_length=SENTENCE_MAX)]


def write_whole(path: Path, body: bytes, draft: Path) -> None:
    """Write a file of this process's own user so that others find a whole one; OSError if the disk refuses."""
    make_file(draft, body)
    draft.replace(path)


class Start(msgspec.Struct, kw_only=True):
    """Who starts the job's program, and then which process it is; `jobs/ID/started.json`.

    A runner makes this file before the program runs, and only one can. So a program runs once, whatever becomes of
    daemons and of what they noted.
    """

    runner_pid: Pid
    runner_birth: Birth
    child_pid: Pid = 0
    child_birth: Birth = 0
    how: Sentence = ""  # WARM, or "cold: " and why; empty where nobody wanted it warm

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
    def load(cls, directory: Path, owner: int) -> Start | None:
        return _loaded(directory / "started.json", owner, cls)


class End(msgspec.Struct, kw_only=True):
    """How a program ended: its runner writes it before it tells the daemon, which may not be there. The daemon writes
    what became of the job, before it forgets it."""

    code: Code
    signal: Signal = 0
    state: str = ""  # of the job; empty: as the code says
    reason: Sentence = ""

    def how(self) -> str:
        """How the program ended, or why it never ran."""
        return self.reason or (f"ended by signal {self.signal}" if self.signal else f"exit code {self.code}")

    def save(self, directory: Path) -> None:
        self.reason = self.reason[:SENTENCE_MAX]
        with contextlib.suppress(OSError):
            write_whole(directory / "end.json", msgspec.json.encode(self), directory / f"end.{os.getpid()}")

    @classmethod
    def load(cls, directory: Path, owner: int) -> End | None:
        return _loaded(directory / "end.json", owner, cls)


def _loaded(path: Path, owner: int, kind: type[Kept]) -> Kept | None:
    try:
        return msgspec.json.decode(read_file(path, owner), type=kind)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None
