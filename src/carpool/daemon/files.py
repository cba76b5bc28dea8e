"""What is kept of a job in its directory, for the daemon's successor and for the runner of a submitted job."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec

from carpool.calls import Inherited
from carpool.core.node.model import JobSpec, Needs
from carpool.daemon.standing import Standing
from carpool.daemon.start_and_end import write_whole
from carpool.daemon.user_files import read_file

BYTES_MAX = 64 << 20  # a job may have megabytes of arguments and variables


class JobFile(msgspec.Struct, kw_only=True):
    """What a restarted daemon must know of a job; `jobs/ID/job.json`."""

    job: str
    number: int
    spec: JobSpec
    name: str = ""  # as its user calls it, where others are not to know that; empty: as in `spec`
    uid: int = msgspec.field(default_factory=os.geteuid)  # whose it is; where nobody noted it, the daemon's own
    argv: list[str]
    cwd: str
    environment: dict[str, str] | None = None  # of a submitted job; None for `carpool run`
    inherited: Inherited | None = None  # of a submitted job
    standing: Standing | None = None  # of a job that the machine's daemon starts
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
    warm: bool | None = None  # whether it may start warm; None: as the daemon was told
    how: str = ""  # it started: "warm", or "cold: " and why; empty where nobody wanted it warm
    is_joined: bool = False  # no runner started it: its first process joined, or is still to come
    joins_until_ns: int = 0  # of one that nobody is in yet: until when that is waited for, by the clock since boot
    container: str = ""  # of its first process (containers.py)
    is_limit_loss_said: bool = False  # its user knows that a process of it runs without carpool's library

    def save(self, directory: Path) -> None:
        """Write it so that a restarted daemon finds a whole one; OSError if the disk refuses."""
        write_whole(directory / "job.json", encode_file(self), directory / "job.json.new")


def encode_file(file: JobFile) -> bytes:
    try:
        return msgspec.json.encode(file)
    except UnicodeEncodeError:  # arguments or variables that are no text: only json writes them, slowly
        return json.dumps(msgspec.to_builtins(file)).encode()


def decode_file(body: bytes) -> JobFile:
    return msgspec.convert(json.loads(body), JobFile)


def load_file(directory: Path) -> JobFile | None:
    try:
        return decode_file(read_file(directory / "job.json", os.geteuid(), BYTES_MAX))
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors too
        return None
