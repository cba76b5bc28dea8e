"""What a submitted program has from whoever submitted it, taken over by its runner before it starts the program.

`carpool run` starts its program itself, so there is nothing to take over. A runner in the background is the daemon's
child and has the daemon's umask, limits, priority and processors.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from carpool.client import PYTHON_IGNORES

if TYPE_CHECKING:
    from carpool.calls import Inherited

NOT_CHANGED = PYTHON_IGNORES | {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}  # the runner waits for the last


def take_over(inherited: Inherited, say: Callable[[str], None]) -> None:
    """Take it over for this process and those it starts; what it may not have is said."""
    os.umask(inherited.umask)
    _take_signals(inherited)
    _take_priority(inherited, say)
    try:
        os.sched_setaffinity(0, inherited.cpus)
    except OSError as error:
        has = sorted(os.sched_getaffinity(0))
        say(f"the program may use processors {has} instead of {inherited.cpus}: {error.strerror}")
    for name, (soft, hard) in inherited.limits.items():
        if hasattr(resource, name):
            _take_limit(name, soft, hard, say)


def _take_signals(inherited: Inherited) -> None:
    for number in signal.valid_signals() - NOT_CHANGED:
        if number in inherited.ignored_signals:
            signal.signal(number, signal.SIG_IGN)
        elif signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, inherited.blocked_signals)


def _take_priority(inherited: Inherited, say: Callable[[str], None]) -> None:
    try:
        if os.sched_getscheduler(0) != inherited.scheduler:
            os.sched_setscheduler(0, inherited.scheduler, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, inherited.nice)
    except OSError as error:
        has = os.getpriority(os.PRIO_PROCESS, 0)
        say(f"the program runs with nice {has} instead of {inherited.nice}: {error.strerror}")


def _take_limit(name: str, soft: int, hard: int, say: Callable[[str], None]) -> None:
    kind = getattr(resource, name)
    try:
        resource.setrlimit(kind, (soft, hard))
    except (OSError, ValueError):  # above the runner's own, which only root may pass
        most = resource.getrlimit(kind)[1]
        given = _least(soft, most)
        resource.setrlimit(kind, (given, _least(hard, most)))
        if given != soft:
            say(f"the program runs with {name} {given} instead of {soft}: the daemon's runner may give no more")


def _least(one: int, other: int) -> int:
    return min((one, other), key=lambda limit: float("inf") if limit == resource.RLIM_INFINITY else limit)
