"""`carpool logs`: what a submitted job wrote."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from pathlib import Path
from typing import BinaryIO

import click

from carpool.calls import Job
from carpool.client import Client
from carpool.errors import CarpoolError, RefusedError, UsageError
from carpool.units import format_bytes

FOLLOW_SECONDS = 0.2
PIECE_BYTES = 1 << 20  # of a log that may be larger than the memory


@click.command()
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
def logs(job: str, follow: bool) -> None:
    """Print what a submitted job wrote.

    \b
    carpool logs -f nightly-7
    """
    client, position = Client(), 0
    while True:
        answer = client.describe(job)
        found = answer.job
        job = found.id  # of a name the next one may be another job
        if not answer.log:
            raise RefusedError(f"job {found.id} is of {found.user}: only its owner and admins may read its log")
        path, is_over = Path(answer.log), not follow or found.is_over
        if path.exists():
            with opened(path, found.uid) as source:
                source.seek(_after_hole(source.fileno(), position))
                shutil.copyfileobj(source, sys.stdout.buffer, PIECE_BYTES)
                position = source.tell()
            sys.stdout.buffer.flush()
        elif is_over or found.state != "queued":  # a submitted job has a log from its start on
            raise _no_log(found)
        if is_over:
            return
        time.sleep(FOLLOW_SECONDS)


def opened(path: Path, owner: int | None) -> BinaryIO:
    """A log to be read. An admin reads in a directory of its user's: no link to what he may read, and no pipe."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise RefusedError(f"the log {path} cannot be read: {error.strerror}") from error
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode) or owner not in (None, facts.st_uid):
        os.close(fd)
        raise RefusedError(f"{path} is no log of its job's user; it is not read")
    return open(fd, "rb")


def _after_hole(fd: int, position: int) -> int:
    """Where there is something to read: the daemon may have given back the beginning of a log that grew too long."""
    try:
        found = os.lseek(fd, position, os.SEEK_DATA)
    except OSError:  # nothing was written since, or nobody knows
        return position
    if found > position:
        print(f"carpool: {format_bytes(found - position)} of it were dropped: it grew too long", file=sys.stderr)
    return found


def _no_log(job: Job) -> CarpoolError:
    if job.device is None:
        return RefusedError(f"job {job.id} has not started: {job.reason}")
    return UsageError(
        f"job {job.id} has no log: it was started with carpool run, not submit, or ended so long ago that its log"
        " was removed"
    )
