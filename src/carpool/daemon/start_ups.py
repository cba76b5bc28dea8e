"""Programs that start up on the machine's own cores, beside whoever has the turn.

Where starting a program is work on the device (`DeviceKind.starts_compute`), its imports take the time of those who
compute. The core lets few be started at once (M6), and this module tells it when one has been: the program rests, as
a server does that waits for its first request, or computes on without asking for turns. One that asks for its first
turn has said so itself. Decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

from carpool.core.node.events import ProgramStarted
from carpool.core.node.model import JobState
from carpool.daemon import processes
from carpool.daemon.driver import Driver
from carpool.daemon.families import children_of, with_descendants
from carpool.daemon.jobs import LiveJob

LOOK_SECONDS = 0.1  # between two looks at a program that starts up
UP_SECONDS = 10.0  # a program that computes longer than this before its first turn does something else
DESCENDANTS_MAX = 4096  # that are looked at
RESTS_PERCENT = 30  # of a core: a program that uses less, or waits for one less, does not start up any more


class StartUps:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def begin(self, live: LiveJob) -> None:
        """Its program runs: look at it until it has started up."""
        until = asyncio.get_running_loop().time() + UP_SECONDS
        self._look_later(live, until, _busy_ns(live))

    def _look_later(self, live: LiveJob, until: float, busy_ns: int) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(LOOK_SECONDS, self._look, live, until, busy_ns, time.monotonic_ns())

    def _look(self, live: LiveJob, until: float, before_ns: int, since_ns: int) -> None:
        if self._driver.jobs.get(live.id) is not live:
            return
        if self._driver.scheduler.state_of(live.id) is not JobState.STARTING:
            return
        busy_ns = _busy_ns(live)
        rests = (busy_ns - before_ns) * 100 < (time.monotonic_ns() - since_ns) * RESTS_PERCENT
        if rests or asyncio.get_running_loop().time() > until:
            self._driver.tell(ProgramStarted(job=live.id))
        else:
            self._look_later(live, until, busy_ns)


def _busy_ns(live: LiveJob) -> int:
    """What all processes of the program have computed, or wanted to."""
    return sum(map(processes.busy_ns, descendants_of(live.file.child_pid)))


def descendants_of(pid: int) -> set[int]:
    """A process and all that it started. 10 µs for each thread of them: on a machine that many use, a look at all
    processes takes longer."""
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():  # a kernel without it
        return with_descendants({pid}, children_of(processes.parents()))
    found, rest = {pid}, [pid]
    while rest and len(found) < DESCENDANTS_MAX:
        each = rest.pop()
        with contextlib.suppress(OSError):  # it is gone
            for thread in Path(f"/proc/{each}/task").iterdir():
                words = (thread / "children").read_bytes().split()
                new = {int(word) for word in words} - found
                found |= new
                rest += new
    return found
