"""What is kept of a job in its directory, for the daemon's successor and for the job's runner.

Apart from `jobs.py`, because every `carpool run` reads this and needs nothing else of the daemon.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from carpool.calls import Inherited
from carpool.core.node.model import JobSpec, Needs

Kept = TypeVar("Kept")


class JobFile(msgspec.Struct, kw_only=True):
    """What a restarted daemon must know of a job; `jobs/ID/job.json`."""

    job: str
    number: int
    spec: JobSpec
    argv: list[str]
    cwd: str
    environment: dict[str, str] | None = None  # of a submitted job; None for `carpool run`
    inherited: Inherited | None = None  # of a submitted job
    device: str = ""  # empty while queued
    kind: str = ""
    runner_pid: int = 0
    runner_birth: int = 0
    child_pid: int = 0
    child_birth: int = 0
    needs: Needs | None = None
    held_for: list[str] = []  # reasons to be away that somebody asked for (core/node/moves/departures.py)
    version: str = ""  # of the carpool that started it, and of its messages; empty and 0 where nobody noted it
    protocol: int = 0
    detached: str = ""  # why it, or a process of it, goes on outside the turns
    detached_pids: list[int] = []  # which ones do
    on_orphans: str = "keep"  # what becomes of processes that outlive its first one: keep or end
    is_limit_loss_said: bool = False  # its user knows that a process of it runs without carpool's library

    def save(self, directory: Path) -> None:
        """Write it so that a restarted daemon finds a whole one; OSError if the disk refuses."""
        draft = directory / "job.json.new"
        try:
            body = msgspec.json.encode(self)
        except UnicodeEncodeError:  # arguments or variables that are no text: only json writes them, slowly
            body = json.dumps(msgspec.to_builtins(self)).encode()
        draft.write_bytes(body)
        draft.replace(directory / "job.json")


def load_file(directory: Path) -> JobFile | None:
    try:
        return msgspec.convert(json.loads((directory / "job.json").read_bytes()), JobFile)
    except (OSError, ValueError):  # msgspec's errors are ValueErrors too
        return None


class Start(msgspec.Struct, kw_only=True):
    """Who starts the job's program, and then which process it is; `jobs/ID/started.json`.

    A runner makes this file before the program runs, and only one can. So a program runs once, whatever becomes of
    daemons and of what they noted.
    """

    runner_pid: int
    runner_birth: int
    child_pid: int = 0
    child_birth: int = 0

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
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(self))
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

    def save(self, directory: Path) -> None:
        with contextlib.suppress(OSError):
            draft = directory / f"end.{os.getpid()}"
            draft.write_bytes(msgspec.json.encode(self))
            draft.replace(directory / "end.json")

    @classmethod
    def load(cls, directory: Path) -> End | None:
        return _loaded(directory / "end.json", cls)


def _loaded(path: Path, kind: type[Kept]) -> Kept | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None
