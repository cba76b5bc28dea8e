"""What users' programs may put beside the daemon's own files, and how many processes their jobs may be.

The directories of jobs and logs are their users', so that nobody else can look into them; and so a program may fill
them. With each note a thread for each user measures what is there. Nothing of it is in the way of turns, and a disk
that hangs holds up the look at its user only.

Rules
  I53 Of a user's logs that are more than `log_size` together, those of ended jobs go first, the oldest of them before
      the others. Where that is not enough, the largest log loses its older half: its job goes on.
      Without a `log_size` nothing is removed.
      What is in directories there counts too; who has more than `log_size` or ENTRIES_MAX files in them, or more
      names than can be removed in a look, loses one job a look.
  I54 A user whose programs wrote more than `run_size` or ENTRIES_MAX files beside their pages, or are more than
      `processes`, loses one job a look: the one that has most. It is ended with a sentence that has the
      numbers. Jobs of others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import stat
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from carpool.core.kernel.ids import JobId
from carpool.core.node.events import CancelAsked
from carpool.daemon import processes
from carpool.daemon.driver import Driver
from carpool.daemon.families import children_of, with_descendants
from carpool.daemon.people import user_of
from carpool.daemon.reload import InForce
from carpool.units import format_bytes, parse_bytes
from carpool.wire.places import Places

log = logging.getLogger("carpool")
ENTRIES_MAX = 10_000  # of one directory: a look ends, whatever is there
ROUNDS_MAX = 20  # of making room among names that are more than that
BLOCK_BYTES = 512  # the unit of st_blocks
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_COLLAPSE_RANGE = 1, 2, 8
PIECE_BYTES = 1 << 20  # what is taken out of a log is a multiple of this, and so of every file system's blocks


@dataclass(slots=True)
class Use:
    """What one user has, as a look found it."""

    run_bytes: dict[JobId, int] = field(default_factory=dict)
    crowded: set[JobId] = field(default_factory=set)  # jobs with more files beside their pages than are counted
    logs: dict[str, tuple[int, int]] = field(default_factory=dict)  # name to bytes and when it was written last
    beside_logs: int | None = 0  # bytes in directories beside them; None: there are too many files
    processes: int = 0  # in jobs and outside of them


class UserBounds:
    def __init__(self, driver: Driver, places: Places, in_force: InForce) -> None:
        self._driver = driver
        self._jobs = driver.jobs
        self._places = places
        self._in_force = in_force
        self._looking: set[int] = set()  # users whose look goes on: their disk may hang

    def look(self) -> None:
        """Have a thread measure what users of live jobs have; what follows from it is done by the loop."""
        owned: dict[int, dict[JobId, Path]] = {}
        for live in self._jobs.values():
            owned.setdefault(live.file.uid, {})[live.id] = live.directory
        owned.pop(0, None)  # root can fill every disk
        for uid in self._looking & set(owned):
            del owned[uid]
        if not owned:
            return
        self._looking |= set(owned)
        words = (asyncio.get_running_loop(), owned)
        with contextlib.suppress(RuntimeError):  # no thread can be started: the next look tries again
            threading.Thread(target=self._begin, args=words, name="bounds", daemon=True).start()
            return
        self._looking -= set(owned)

    def _begin(self, loop: asyncio.AbstractEventLoop, owned: dict[int, dict[JobId, Path]]) -> None:
        processes_of = Counter(uids_of_processes())
        for uid, jobs in owned.items():
            words = (loop, uid, jobs, processes_of[uid])
            try:
                threading.Thread(target=self._measure, args=words, name=f"bounds-{uid}", daemon=True).start()
            except RuntimeError:
                self._hand_over(loop, uid, None)

    def _measure(self, loop: asyncio.AbstractEventLoop, uid: int, jobs: dict[JobId, Path], count: int) -> None:
        use = None
        try:
            held = {job: bytes_below(directory) for job, directory in jobs.items()}
            use = Use(run_bytes={job: each for job, each in held.items() if each is not None}, processes=count)
            use.crowded = held.keys() - use.run_bytes.keys()
            use.logs, use.beside_logs = self._logs_of(uid, set(jobs))
            self._cut_logs(uid, use, set(jobs))
        finally:
            self._hand_over(loop, uid, use)

    def _hand_over(self, loop: asyncio.AbstractEventLoop, uid: int, use: Use | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._seen, uid, use)

    def _logs_of(self, uid: int, live: set[JobId]) -> tuple[dict[str, tuple[int, int]], int | None]:
        """A user's logs, and the bytes beside them. Of more names than are counted the older half goes, as often as
        it takes."""
        directory = self._places.logs_of(uid)
        for _ in range(ROUNDS_MAX):
            logs, directories = logs_in(directory)
            if len(logs) + len(directories) < ENTRIES_MAX or not self._in_force.settings.limits.log_size:
                return logs, bytes_below_all(directories)
            ended = [name for name in logs if name.removesuffix(".log") not in live]
            for name in sorted(ended, key=lambda name: logs[name][1])[: len(ended) // 2 + 1]:
                remove_from(directory, name, uid)
        return logs, None

    def _cut_logs(self, uid: int, use: Use, live: set[JobId]) -> None:
        """Keep the logs of a user within their bound (I53)."""
        size = self._in_force.settings.limits.log_size
        beside = use.beside_logs
        if not size or beside is None or beside > parse_bytes(size):
            return  # nothing that is removed would help
        too_many = beside + sum(held for held, _ in use.logs.values()) - parse_bytes(size)
        directory = self._places.logs_of(uid)
        for name in sorted(use.logs, key=lambda name: use.logs[name][1]):
            if too_many <= 0:
                return
            if name.removesuffix(".log") not in live:
                too_many -= use.logs.pop(name)[0]
                remove_from(directory, name, uid)
        if too_many > 0 and use.logs:
            largest = max(use.logs, key=lambda name: use.logs[name][0])
            cut_log(directory, largest, uid)
            log.warning("log.cut user=%s log=%s bytes=%d", user_of(uid).name, largest, use.logs[largest][0])

    def _seen(self, uid: int, use: Use | None) -> None:
        self._looking.discard(uid)
        if use is not None:
            with contextlib.suppress(OSError):
                self._check(uid, use)
                self._check_beside_logs(uid, use)

    def _check_beside_logs(self, uid: int, use: Use) -> None:
        size, beside = self._in_force.settings.limits.log_size, use.beside_logs
        if not size or (beside is not None and beside <= parse_bytes(size)):
            return
        had = f"{ENTRIES_MAX} files or more" if beside is None else format_bytes(beside)
        may = f"{format_bytes(parse_bytes(size))} with all logs ([limits] log_size)"
        why = f"{user_of(uid).name}'s programs put {had} beside their logs, and may have {may}"
        self._end_worst({live.id: 0 for live in self._jobs.values() if live.file.uid == uid}, why)

    def _check(self, uid: int, use: Use) -> None:
        limits = self._in_force.settings.limits
        size = parse_bytes(limits.run_size) if limits.run_size else None
        name, held = user_of(uid).name, sum(use.run_bytes.values())
        if size is not None and held > size:
            had, most = format_bytes(held), format_bytes(size)
            why = f"{name}'s programs wrote {had} beside their pages, and may have {most} ([limits] run_size)"
            self._end_worst(use.run_bytes, f"{why}; this job has most of it")
        if size is not None and use.crowded:  # even empty ones take what a file system has of files
            why = f"this job has {ENTRIES_MAX} files or more beside its page; {name}'s programs put them elsewhere"
            self._end_worst(dict.fromkeys(use.crowded, 0), why)
        if limits.processes and use.processes > limits.processes:
            counts = self._count_processes(uid)
            if sum(counts.values()) > limits.processes:
                had, most = str(sum(counts.values())), str(limits.processes)
                why = f"{name}'s jobs are {had} processes, and may be {most} ([limits] processes)"
                self._end_worst(counts, f"{why}; this job has most of them")

    def _count_processes(self, uid: int) -> dict[JobId, int]:
        inside, children = processes.by_page(uid), children_of(processes.parents())
        found: dict[JobId, int] = {}
        for live in [each for each in self._jobs.values() if each.file.uid == uid]:
            known = set(inside.get(str(live.directory / "page"), ())) | live.pids()
            if live.file.child_pid:
                known.add(live.file.child_pid)
            found[live.id] = len(with_descendants(known, children))
        return found

    def _end_worst(self, had: Mapping[JobId, int], why: str) -> None:
        worst = max((job for job in had if job in self._jobs), key=lambda job: had[job], default=None)
        if worst is not None and not self._jobs[worst].is_stopping:
            log.warning("job.over_bound job=%s reason=%s", worst, why)
            self._jobs[worst].is_stopping = True
            self._driver.tell(CancelAsked(job=worst, reason=why))


def bytes_below(directory: Path) -> int | None:
    """What files and directories there hold, but for the page; a link counts as itself. None: there are too many to
    be counted, and what is not seen may hold anything."""
    return bytes_below_all([str(directory)], but=str(directory / "page"))


def bytes_below_all(directories: list[str], *, but: str = "") -> int | None:
    held, left, found = 0, list(directories), 0
    while left:
        with contextlib.suppress(OSError), os.scandir(left.pop()) as entries:
            for entry in entries:
                found += 1
                if found >= ENTRIES_MAX:
                    return None
                facts = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(facts.st_mode):
                    left.append(entry.path)
                if entry.path != but:
                    held += facts.st_blocks * BLOCK_BYTES
    return held


def logs_in(directory: Path) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Its files, with their bytes and when they were written last, and its directories."""
    found: dict[str, tuple[int, int]] = {}
    directories: list[str] = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if len(found) + len(directories) >= ENTRIES_MAX:
                break
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(facts.st_mode):
                directories.append(entry.path)
            else:
                found[entry.name] = facts.st_blocks * BLOCK_BYTES, facts.st_mtime_ns
    return found, directories


def uids_of_processes() -> list[int]:
    """Whose the processes of this machine are."""
    found: list[int] = []
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    found.append(entry.stat().st_uid)
    return found


@contextlib.contextmanager
def opened(directory: Path, uid: int) -> Iterator[int]:
    """A directory of this user, whatever it is replaced by meanwhile; OSError if it is none."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_uid != uid:
            raise PermissionError(f"{directory} is not of user {uid}")
        yield fd
    finally:
        os.close(fd)


def remove_from(directory: Path, name: str, uid: int) -> None:
    with contextlib.suppress(OSError), opened(directory, uid) as place:
        os.unlink(name, dir_fd=place)


def cut_log(directory: Path, name: str, uid: int) -> None:
    """Take the older half out of a log that is being written; where the file system cannot, it becomes a hole."""
    with contextlib.suppress(OSError), opened(directory, uid) as place:
        fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
        try:
            facts = os.fstat(fd)
            half = facts.st_size // 2 // PIECE_BYTES * PIECE_BYTES
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != uid or not half:
                return
            fallocate = ctypes.CDLL(None, use_errno=True).fallocate
            fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
            if fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, half):
                fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, half)
        finally:
            os.close(fd)
