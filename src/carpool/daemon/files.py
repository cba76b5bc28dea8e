"""What is kept of a job in its directory, for the daemon's successor and for the job's runner.

Apart from `jobs.py`, because every `carpool run` reads this and needs nothing else of the daemon.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import msgspec

from carpool.core.node.model import JobSpec, Needs


class JobFile(msgspec.Struct, kw_only=True):
    """What a restarted daemon must know of a job; `jobs/ID/job.json`."""

    job: str
    number: int
    spec: JobSpec
    argv: list[str]
    cwd: str
    environment: dict[str, str] | None = None  # of a submitted job; None for `carpool run`
    device: str = ""  # empty while queued
    kind: str = ""
    runner_pid: int = 0
    child_pid: int = 0
    child_birth: int = 0
    needs: Needs | None = None
    is_suspended: bool = False
    detached: str = ""  # why it, or a process of it, goes on outside the turns
    detached_pids: list[int] = []  # which ones do

    def save(self, directory: Path) -> None:
        """Write it so that a restarted daemon finds a whole one; OSError if the disk refuses."""
        draft = directory / "job.json.new"
        # Not msgspec: arguments and variables may be bytes that are no text, which only json writes.
        draft.write_text(json.dumps(msgspec.to_builtins(self)))
        draft.replace(directory / "job.json")


def load_file(directory: Path) -> JobFile | None:
    try:
        return msgspec.convert(json.loads((directory / "job.json").read_bytes()), JobFile)
    except (OSError, ValueError):  # msgspec's errors are ValueErrors too
        return None


class End(msgspec.Struct, kw_only=True):
    """How a program ended: its runner writes it before it tells the daemon, which may not be there."""

    code: int
    signal: int = 0

    def save(self, directory: Path) -> None:
        with contextlib.suppress(OSError):
            (directory / "end.json").write_bytes(msgspec.json.encode(self))

    @classmethod
    def load(cls, directory: Path) -> End | None:
        try:
            return msgspec.json.decode((directory / "end.json").read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError):
            return None
