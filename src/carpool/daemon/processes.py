"""What the operating system knows of processes: whether they live, and whether they compute."""

from __future__ import annotations

import os
from pathlib import Path

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def _stat_fields(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def busy_ns(pid: int) -> int:
    """Processor time of a process and all its threads, and how long its first thread wanted a processor and had none;
    0 if it is gone. On a crowded machine a process that computes gets little of the one and much of the other."""
    fields = _stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) * TICK_NS + _delay_ns(pid) if fields else 0


def _delay_ns(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    except (OSError, IndexError):  # gone, or a kernel that does not count it
        return 0


def birth_of(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with its pid, its identity. None if it is gone or dead."""
    fields = _stat_fields(pid) if pid > 0 else None
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def is_alive(pid: int, birth: int | None = None) -> bool:
    found = birth_of(pid)
    return found is not None and (birth is None or found == birth)


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
