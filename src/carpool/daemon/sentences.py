"""What the daemon itself says of a job; why it waits is the core's to say."""

from __future__ import annotations

import contextlib
from pathlib import Path

from carpool import __version__
from carpool.core.kernel.ids import SHARE_ONE
from carpool.daemon import processes
from carpool.daemon.jobs import LiveJob
from carpool.daemon.user_files import is_there, read_file
from carpool.devices.kinds import kind_named
from carpool.units import format_bytes, format_list
from carpool.wire.places import CHECKPOINT_REFUSED, FULL
from carpool.wire.protocol import PROTOCOL

REFUSAL_LETTERS_MAX = 1000
NAMED_MAX = 4  # processes that a sentence names


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


def orphanage(live: LiveJob) -> str:
    """That its first process has ended and who goes on, in words; empty while it runs, or if nobody does."""
    pids = live.living_orphans()
    if live.ended is None or not pids:
        return ""
    go_on, whom = ("goes on", "it") if len(pids) == 1 else ("go on", "them")
    return (
        f"its first process has ended ({live.ended.reason}); {len(pids)} of its processes {go_on}"
        f" ({_named(pids)}); end {whom}: carpool cancel {live.id}"
    )


def checkpoint_refusal(live: LiveJob) -> str:
    """Why it cannot be written to a file, whenever it is asked; empty if nothing is known that stands in the way."""
    if len(live.members) > 1 and is_there(live.directory / "checkpoint.ready", live.file.uid):
        return f"{len(live.members)} of its processes take turns; only a job of one process can be written"
    with contextlib.suppress(OSError):
        return read_file(live.directory / CHECKPOINT_REFUSED, live.file.uid).decode(errors="replace")[
            :REFUSAL_LETTERS_MAX
        ]
    return ""


def limits_of(live: LiveJob) -> list[str]:
    """The options of the job that carpool's library keeps, from inside its processes."""
    spec, kind = live.file.spec, kind_named(live.file.kind)
    asked = {"--memory": spec.cap_bytes is not None, "--compute": kind.needs_library and spec.limit_milli < SHARE_ONE}
    return [option for option, is_asked in asked.items() if is_asked]


def limit_loss(live: LiveJob) -> str:
    """That a limit is not kept in some of its processes, in which and why; empty while it is kept in all."""
    pids = sorted(filter(processes.is_alive, live.unlimited))
    limits = limits_of(live) if pids else []  # one that waits for its start has no device yet
    if not limits:
        return ""
    is_are, count = "is" if len(limits) == 1 else "are", f"{len(pids)} of its processes"
    return f"{format_list(limits)} {is_are} not kept in {count} ({_named(pids)}): {live.unlimited[pids[0]]}"


def _named(pids: list[int]) -> str:
    """Processes with their names, the first few of them."""
    named = [f"{pid} {processes.name_of(pid)}" for pid in pids[:NAMED_MAX]]
    rest = [f"{len(pids) - NAMED_MAX} more"] if len(pids) > NAMED_MAX else []
    return format_list([*named, *rest])


def started_by(version: str, protocol: int) -> str:
    """Why a job that another version of carpool started takes no turns of this one's."""
    theirs, ours = f"carpool {version} (protocol {protocol})", f"{__version__} (protocol {PROTOCOL})"
    return f"it was started by {theirs}, the daemon is {ours}"


def unwritten(what: str, directory: Path, error: OSError) -> str:
    """That something cannot be written, and what to do about it."""
    remedy = "free some space" if error.errno in FULL else "see that carpool may write there"
    return f"{what} cannot be written in {directory}: {error.strerror}; {remedy} and try again"
