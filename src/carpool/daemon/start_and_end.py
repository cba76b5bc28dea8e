"""What a runner writes down of a program's start and end, in the job's directory, for whichever daemon reads it.

Apart from `files.py`, because every `carpool run` needs this and nothing else of the daemon, and not the core's code.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import TypeVar

from carpool.daemon.user_files import make_file, read_file
from carpool.units import printable

Kept = TypeVar("Kept")
WARM = "warm"  # how a program started; a cold start says more
SENTENCE_MAX = 4000
# A program may write whatever it likes into these files: no number of it is larger than what a process can have.
NUMBERS = {
    "runner_pid": range(1 << 22),
    "runner_birth": range(1 << 62),
    "child_pid": range(1 << 22),
    "child_birth": range(1 << 62),
    "code": range(-255, 256),
    "signal": range(65),
}


def write_whole(path: Path, body: bytes, draft: Path) -> None:
    """Write a file of this process's own user so that others find a whole one; OSError if the disk refuses."""
    make_file(draft, body)
    draft.replace(path)


@dataclass(kw_only=True)
class Start:
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
        make_file(draft, json.dumps(asdict(self)).encode())
        return draft

    @classmethod
    def load(cls, directory: Path, owner: int) -> Start | None:
        return _loaded(directory / "started.json", owner, cls)


@dataclass(kw_only=True)
class End:
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
        self.reason = self.reason[:SENTENCE_MAX]
        with contextlib.suppress(OSError):
            write_whole(directory / "end.json", json.dumps(asdict(self)).encode(), directory / f"end.{os.getpid()}")

    @classmethod
    def load(cls, directory: Path, owner: int) -> End | None:
        return _loaded(directory / "end.json", owner, cls)


def _loaded(path: Path, owner: int, kind: type[Kept]) -> Kept | None:
    try:
        found = json.loads(read_file(path, owner))
    except (OSError, ValueError, RecursionError):
        return None
    names = {each.name: each.default is MISSING for each in fields(kind)}  # type: ignore[arg-type]  # both are dataclasses
    if not isinstance(found, dict) or not all(found.keys() >= {name} or not needed for name, needed in names.items()):
        return None
    told = {name: found[name] for name in names if name in found}
    if not all(_is_fit(name, value) for name, value in told.items()):
        return None
    return kind(**{name: printable(value) if isinstance(value, str) else value for name, value in told.items()})


def _is_fit(name: str, value: object) -> bool:
    if name in NUMBERS:
        return type(value) is int and value in NUMBERS[name]
    return isinstance(value, str) and len(value) <= SENTENCE_MAX
