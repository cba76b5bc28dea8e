"""What a call may do that comes from inside a job: the limits of a job bind its programs, so they cannot lift them.

The kernel says who calls. A process is inside a job if it was started with that job's page, or descends from its
first process. One that has left both behind is taken for a person at a terminal: limits keep programs apart that do
not want to escape (docs/interposer.md).
"""

from __future__ import annotations

from collections.abc import Iterable

from carpool import calls
from carpool.core.kernel.ids import SHARE_ONE
from carpool.core.node.model import JobSpec
from carpool.daemon import processes
from carpool.daemon.jobs import LiveJob
from carpool.errors import RefusedError
from carpool.units import format_bytes, format_share


def job_around(jobs: Iterable[LiveJob], pid: int) -> LiveJob | None:
    """The job inside which a process calls; None if it is in none."""
    if pid <= 0:
        return None
    page = processes.page_of(pid)
    for live in jobs:
        first = live.file.child_pid
        if page == live.page_path or (first and (pid == first or processes.descends_from(pid, first))):
            return live
    return None


def check_resize(around: LiveJob | None, target: LiveJob, asked: calls.Resize) -> None:
    """RefusedError if a limited job would get more than it has, or change another."""
    spec = around.file.spec if around is not None else None
    if around is None or spec is None or not is_limited(spec):
        return
    if target is not around:
        raise RefusedError(f"this call comes from inside job {around.id}, which may lower its own limits only")
    if asked.cap_bytes is not None and spec.cap_bytes is not None and asked.cap_bytes > spec.cap_bytes:
        had, wanted = format_bytes(spec.cap_bytes), format_bytes(asked.cap_bytes)
        raise RefusedError(f"job {around.id} cannot raise its own cap from {had} to {wanted}: resize it from outside")
    least, most = asked.share_milli or (0, 0)
    if least > spec.guaranteed_milli or most > spec.limit_milli:
        had, wanted = format_share(spec.limit_milli), format_share(most)
        raise RefusedError(
            f"job {around.id} cannot raise its own compute share from {had} to {wanted}: resize it from outside"
        )


def check_start(around: LiveJob | None) -> None:
    """RefusedError for a job inside a limited one: it would have limits of its own beside those."""
    if around is not None and is_limited(around.file.spec):
        raise RefusedError(
            f"this call comes from inside job {around.id}, whose limits a job of its own would not be under: start"
            " the program without carpool, and it is part of that job, or start it from outside"
        )


def is_limited(spec: JobSpec) -> bool:
    return spec.cap_bytes is not None or spec.limit_milli < SHARE_ONE
