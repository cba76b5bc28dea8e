"""What the operating system knows of processes: whether they live, whether they compute, and whom it prefers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PROC_BYTES = 4096
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def _read(pid: int, name: str) -> bytes:
    """A small file of a process; empty if it is gone. Read often, and Path would take three times as long."""
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, PROC_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _stat_fields(pid: int) -> list[bytes] | None:
    text = _read(pid, "stat")
    return text.rpartition(b")")[2].split() if text else None


def busy_ns(pid: int) -> int:
    """Processor time of a process and all its threads, and how long its first thread wanted a processor and had none;
    0 if it is gone. On a crowded machine a process that computes gets little of the one and much of the other."""
    fields = _stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) * TICK_NS + _delay_ns(pid) if fields else 0


def _delay_ns(pid: int) -> int:
    fields = _read(pid, "schedstat").split()
    return int(fields[1]) if len(fields) > 1 else 0  # gone, or a kernel that does not count it


def birth_of(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with its pid, its identity. None if it is gone or dead."""
    fields = _stat_fields(pid) if pid > 0 else None
    return int(fields[19]) if fields and fields[0] not in (b"Z", b"X") else None


def is_alive(pid: int, birth: int | None = None) -> bool:
    found = birth_of(pid)
    return found is not None and (birth is None or found == birth)


def is_stopped(pid: int) -> bool:
    """Whether a process cannot run until somebody continues it: by a signal, or a debugger holds it."""
    fields = _stat_fields(pid)
    return fields is not None and fields[0] in (b"T", b"t")


def is_of_job(pid: int, job: str) -> bool:
    """Whether a process was started inside this job: a pid may be somebody else's by now, its environment is not."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"CARPOOL_JOB={job}".encode() in variables and is_alive(pid)


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None if it is already gone."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def step_back() -> None:
    """Never push a job off its processor: where the daemon is woken by a hand-over, the next job just begins, and one
    of the processors is about to be free."""
    _set_policy(os.SCHED_BATCH)


@contextlib.contextmanager
def stepped_up() -> Iterator[None]:
    """What is started here runs as everybody does."""
    _set_policy(os.SCHED_OTHER)
    try:
        yield
    finally:
        step_back()


def _set_policy(policy: int) -> None:
    with contextlib.suppress(OSError):  # where it may not, it runs as everybody does
        os.sched_setscheduler(0, policy, os.sched_param(0))
