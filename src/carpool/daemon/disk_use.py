"""What users write where the machine's daemon gave them room: their logs, and what programs put beside their pages.

Both directories are a user's own, and lie on file systems that all share. A thread looks with every note of the
daemon (10 s), so a bound is passed for so long at most. The store for parked memory is bounded by who is parked.

Rules
  I46 The logs of a user take at most `log_size`, and what his programs write beside their pages at most `run_size`
      (`[limits]`). Beyond the first, logs of jobs that are over are removed, the oldest first, then the beginnings of
      the others. Beyond the second, the job that has most there is ended, with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from carpool.core.kernel.ids import JobId
from carpool.core.node.events import CancelAsked
from carpool.daemon.driver import Driver
from carpool.daemon.reload import InForce
from carpool.daemon.user_files import is_file_of
from carpool.units import format_bytes, parse_bytes
from carpool.wire.places import Places

log = logging.getLogger("carpool")
BLOCK_BYTES = 512  # the unit of st_blocks
ENTRY_BYTES = 1024  # what the name of a file costs at least
ENTRIES_MAX = 20_000  # of one directory that are looked at: who has more is over every bound
PIECE_BYTES = 4096  # beginnings are taken in whole ones
PUNCH = 0x03  # of fallocate(2): keep the size, give the blocks back


class DiskUse:
    def __init__(self, driver: Driver, places: Places, in_force: InForce) -> None:
        self._driver = driver
        self._places = places
        self._in_force = in_force
        self._thread = threading.Thread()

    def look(self) -> None:
        """Have a thread look at every user who has jobs; that disk may hang."""
        if not self._places.is_machine or self._thread.is_alive():
            return
        jobs: dict[int, dict[JobId, Path]] = {}
        for live in self._driver.jobs.values():
            jobs.setdefault(live.file.uid, {})[live.id] = live.directory
        loop = asyncio.get_running_loop()

        def end(job: JobId, reason: str) -> None:  # called by the thread
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._end, job, reason)

        self._thread = threading.Thread(target=self._look_aside, args=(jobs, end), name="disk", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread can be had now
            self._thread.start()

    def _end(self, job: JobId, reason: str) -> None:
        if job in self._driver.jobs:
            log.warning("job.over_run_size job=%s reason=%s", job, reason)
            self._driver.tell(CancelAsked(job=job, reason=reason))

    def _look_aside(self, jobs: dict[int, dict[JobId, Path]], end: Callable[[JobId, str], None]) -> None:
        limits = self._in_force.settings.limits
        for user, directories in jobs.items():
            if limits.run_size:
                over = largest_over(directories, parse_bytes(limits.run_size))
                if over is not None:
                    job, used_bytes = over
                    used, most = format_bytes(used_bytes), limits.run_size
                    end(
                        job, f"its programs wrote {used} beside its page, and a user may have {most} there (run_size)"
                    )
            if limits.log_size:
                bound_logs(self._places.logs_of(user), user, parse_bytes(limits.log_size), live=directories)


def largest_over(directories: dict[JobId, Path], most_bytes: int) -> tuple[JobId, int] | None:
    """The job that has most, and how much, if all of them together have more."""
    used = {job: used_bytes(directory) for job, directory in directories.items()}
    job = max(used, key=used.__getitem__, default=None)
    return (job, used[job]) if job is not None and sum(used.values()) > most_bytes else None


def used_bytes(directory: Path) -> int:
    """What a user's directory takes; nothing is followed out of it."""
    total = entries = 0
    for here, directories, files in os.walk(directory, onerror=None, followlinks=False):
        entries += len(directories) + len(files)
        total += ENTRY_BYTES * (len(directories) + len(files))
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(here, name)).st_blocks * BLOCK_BYTES  # noqa: PTH116, PTH118  # a Path for each is twice as slow
        if entries > ENTRIES_MAX:
            return 1 << 62
    return total


def bound_logs(directory: Path, user: int, most_bytes: int, *, live: Iterable[str]) -> None:
    """Bring a user's logs below the bound."""
    names = {f"{job}.log" for job in live}
    found = []
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            facts = path.lstat()
            size = used_bytes(path) if stat.S_ISDIR(facts.st_mode) else facts.st_blocks * BLOCK_BYTES
            found.append((path.name in names, facts.st_mtime_ns, size + ENTRY_BYTES, path))
    over = sum(size for *_, size, _ in found) - most_bytes
    for is_live, _, size, path in sorted(found):
        if over <= 0:
            return
        with contextlib.suppress(OSError):
            over -= drop_beginning(path, user, over + most_bytes // 8) if is_live else _remove(path, size)


def _remove(path: Path, size: int) -> int:
    if stat.S_ISDIR(path.lstat().st_mode):
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()
    return size


def drop_beginning(path: Path, user: int, drop_bytes: int) -> int:
    """Give back so many bytes of a log that is being written, the oldest; what is left stands where it stood. Returns
    how many."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        facts = os.fstat(fd)
        if not is_file_of(facts, user):
            return 0
        kept_bytes = max(0, facts.st_blocks * BLOCK_BYTES - drop_bytes)
        until = (facts.st_size - kept_bytes) // PIECE_BYTES * PIECE_BYTES
        libc = ctypes.CDLL(None, use_errno=True)
        arguments = (ctypes.c_int(fd), PUNCH, ctypes.c_int64(0), ctypes.c_int64(max(0, until)))
        if until > 0 and libc.fallocate(*arguments) != 0:
            os.ftruncate(fd, 0)  # a file system that cannot give back a part
        return (facts.st_blocks - os.fstat(fd).st_blocks) * BLOCK_BYTES
    finally:
        os.close(fd)
