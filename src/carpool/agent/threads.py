"""Which threads of a program may go on while its tensors are away (K2 of parking/park.py).

Harmless is a thread of a package that never touches a program's tensors, and one that waits for work which nobody can
give it meanwhile: the feeder of an empty queue, the threads of a pool that has nothing to do. Python's own
`multiprocessing` keeps in the arguments of its threads what tells that; where it does not, the thread is in the way.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
from collections.abc import Iterable
from typing import Any

HARMLESS = (
    "tqdm",
    "torch.utils.data",
    "torch.utils.tensorboard",
    "tensorboard",
    "tensorboardX",
    "multiprocessing.resource_sharer",
)
MAY_BE_IDLE = ("multiprocessing.pool", "multiprocessing.queues")
PATIENCE_SECONDS = 0.1  # for one that is about to be idle: what was put into a queue is sent at once
LOOK_SECONDS = 0.002


def thread_in_the_way() -> str:
    """Another thread that might touch a tensor meanwhile, as a reason."""
    here = threading.current_thread()
    others = [each for each in threading.enumerate() if each is not here and not _is_harmless(each)]
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        idle = _idle(others)
        busy = [each for each in others if each not in idle]
        if not busy:
            return ""
        foreign = next((each for each in busy if not _home(each).startswith(MAY_BE_IDLE)), None)
        if foreign is not None:
            return f"its thread {foreign.name} might touch its tensors meanwhile"
        if time.monotonic() > until:
            return f"its thread {busy[0].name} has work of a pool or a queue, which might touch its tensors meanwhile"
        time.sleep(LOOK_SECONDS)


def _home(thread: threading.Thread) -> str:
    """The module of what the thread runs."""
    target = getattr(thread, "_target", None)
    return str(getattr(target, "__module__", None) or type(thread).__module__)


def _is_harmless(thread: threading.Thread) -> bool:
    return _home(thread).startswith(HARMLESS) or type(thread).__module__.startswith(HARMLESS)


def _idle(threads: Iterable[threading.Thread]) -> set[object]:
    """Those that wait for work of a pool or a queue."""
    idle: set[object] = set()
    for thread in threads:
        if _home(thread).startswith(MAY_BE_IDLE):
            with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):  # another Python's arguments
                idle |= _idle_by(thread)
    return idle


def _idle_by(thread: threading.Thread) -> set[object]:
    """What the arguments of this one tell: itself, or all of its pool."""
    target, arguments = thread._target, thread._args  # type: ignore[attr-defined]  # no other door
    given: dict[str, Any] = inspect.signature(target).bind(*arguments).arguments
    match target.__qualname__:
        case "Queue._feed":  # it takes out of the buffer what it pickles; who waits for more stands in that list
            return {thread} if not given["buffer"] and given["notempty"]._waiters else set()
        case "Pool._handle_tasks" | "Pool._handle_results":
            return {thread} if not given["cache"] else set()  # a task is in there until its callback has run
        case "Pool._handle_workers":
            # One that replaces its processes would fork a program that finds no tensors.
            is_idle = not given["cache"] and given["maxtasksperchild"] is None
            workers = given["pool"] if given["initializer"] is None else []  # else one of them may be in that
            return {thread, *workers} if is_idle else set()
    return set()
