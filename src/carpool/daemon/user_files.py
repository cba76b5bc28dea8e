"""The files that a user's programs can write, as the daemon reads and writes them.

Whatever stands in such a directory may be anything: a pipe that nobody writes, a link to somebody else's file, a file
without an end, a directory with the name of a file.

Rules
  I41 What the daemon takes from a user's directory is a regular file of that user, no longer than it may be, and no
      link. What it writes there is a new file, given to that user, that takes the place of whatever had the name.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import stat
import threading
from collections import deque
from pathlib import Path

from carpool.daemon import hold_ups

PASSES = 3  # over a directory in which somebody makes more while it is removed
NOTE_BYTES_MAX = 1 << 16  # what a runner or a program writes down for the daemon


def read_file(path: Path, owner: int, bytes_max: int = NOTE_BYTES_MAX) -> bytes:
    """What this user's file says; an OSError if it is none, or too long, or does not come."""
    found = hold_ups.ask(owner, str(path), lambda: _read(path, owner, bytes_max), None)
    if found is None:
        raise OSError(errno.ETIMEDOUT, "its file system does not answer", str(path))
    return found


def _read(path: Path, owner: int, bytes_max: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if not is_file_of(facts, owner) or facts.st_size > bytes_max:
            raise OSError(errno.EINVAL, "it is not a file of carpool's", str(path))
        return file.read(bytes_max)


def is_file_of(facts: os.stat_result, owner: int) -> bool:
    return stat.S_ISREG(facts.st_mode) and facts.st_uid == owner


def is_there(path: Path, owner: int) -> bool:
    """Whether this user has a file of that name there."""

    def look() -> bool:
        return is_file_of(path.lstat(), owner)

    try:
        return hold_ups.ask(owner, str(path), look, False)
    except OSError:
        return False


def is_taken(path: Path) -> bool:
    """Whether anything has that name, as far as this process may know."""
    try:
        path.lstat()
    except OSError:
        return False
    return True


def replace_file(path: Path, body: bytes, draft: Path, owner: int) -> None:
    """Write a file for this user so that others find a whole one; OSError if that cannot be done."""

    def write() -> bool:
        make_file(draft, body, owner)
        draft.replace(path)
        return True

    if not hold_ups.ask(owner, str(path), write, False):
        raise OSError(errno.ETIMEDOUT, "its file system does not answer", str(path))


def make_file(path: Path, body: bytes, owner: int | None = None) -> None:
    """Write a new file in the place of whatever is there."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600), "wb") as file:
        give(file.fileno(), owner)
        file.write(body)


def give(fd: int, owner: int | None) -> None:
    """Make it this user's: only root can, and only what was just made is given."""
    if owner is not None and owner != os.geteuid():
        os.fchown(fd, owner, -1)


def make_directory(path: Path, owner: int) -> None:
    """A directory that only this user can enter, in one that only the daemon writes. Whoever it is given to finds it
    as it has to be."""
    path.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fchmod(fd, 0o700)
        give(fd, owner)
    finally:
        os.close(fd)


class _Remover:
    """A thread while there is something to remove."""

    def __init__(self) -> None:
        self._gone: deque[Path] = deque()
        self._lock = threading.Lock()
        self._is_at_work = False

    def take(self, directory: Path) -> None:
        with self._lock:
            self._gone.append(directory)
            if self._is_at_work:
                return
            with contextlib.suppress(RuntimeError):  # no thread can be had: the next one takes it too
                threading.Thread(target=self._run, name="remover", daemon=True).start()
                self._is_at_work = True

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._gone:
                    self._is_at_work = False
                    return
                directory = self._gone.popleft()
            for _ in range(PASSES):
                seize(directory)
                shutil.rmtree(directory, ignore_errors=True)
                if not is_taken(directory):
                    break


def seize(directory: Path) -> None:
    """Nobody else makes anything there from now on. A user's program that still has a descriptor of it could do so
    for ever, and nobody would count it (I54)."""
    for *_, fd in os.fwalk(directory):
        with contextlib.suppress(OSError):
            os.fchown(fd, os.geteuid(), -1)
            os.fchmod(fd, 0o700)


_remover = _Remover()
_numbers = itertools.count()


def remove_aside(directory: Path) -> None:
    """Take a user's directory away, whatever is in it: its name is free at once, and a thread removes the rest. Who
    has put millions of files there keeps only that thread busy."""
    gone = directory.with_name(f".gone-{os.getpid()}-{next(_numbers)}")
    with contextlib.suppress(OSError):  # it is gone, or its user has mounted something there
        directory.rename(gone)
        _remover.take(gone)
