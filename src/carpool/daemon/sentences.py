"""What the daemon itself says of a job; why it waits is the core's to say."""

from __future__ import annotations

from carpool.daemon.jobs import LiveJob
from carpool.units import format_bytes


def refusals(live: LiveJob) -> str:
    """How many of its allocations were refused, in words; with --oversubscribe they went elsewhere."""
    spec, (count, newest_bytes) = live.file.spec, live.job_page.denied()
    if not count or spec.may_oversubscribe:
        return ""
    at = f" at its cap of {format_bytes(spec.cap_bytes)}" if spec.cap_bytes is not None else ""
    newest = format_bytes(newest_bytes)
    if count == 1:
        return f"1 allocation was refused{at} (it asked for {newest})"
    return f"{count} allocations were refused{at} (the newest asked for {newest})"
