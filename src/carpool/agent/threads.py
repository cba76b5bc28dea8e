"""Which threads of a program may go on while its tensors are away (K2 of parking/park.py).

A thread is harmless if it belongs to a package that never touches a program's tensors. It is harmless too while it
waits for work that nobody can give it: the feeder of an empty queue, the threads of a pool that has nothing to do.
Python's own `multiprocessing` keeps in the arguments of its threads what tells that. Any other thread is in the way,
also one that `threading` does not know: a raw one of Python's, or one that C code started (thread_stacks.py).

A program can say itself which of its threads compute (`carpool.only_these_threads_compute`); then no other thread is
in the way of parking. The hooks on torch check what it said: a thread that computes although the program said that it
does not waits until the tensors are there, and the program is not parked again.
"""

from __future__ import annotations

import _thread
import contextlib
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from carpool.agent.job_words import job_word
from carpool.agent.link import say
from carpool.agent.packages import is_part_of
from carpool.agent.thread_stacks import Workers

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
SPIN_SECONDS = 0.3  # for workers that look for work a while before they wait: libiomp's for 0.2 s


class ComputeThreads:
    """The threads that compute, by the program's own word; one object a process."""

    def __init__(self) -> None:
        self._named: frozenset[threading.Thread] | None = None
        self._undeclared = ""  # the thread that computed although the program said that it does not
        self._is_away = False  # the tensors are on their way, or away
        self._when_declared: list[Callable[[], None]] = []
        os.register_at_fork(after_in_child=self._forget)

    def declare(self, *threads: threading.Thread) -> None:
        self._named = frozenset(threads)
        for act in self._when_declared:
            act()

    def when_declared(self, act: Callable[[], None]) -> None:
        """Act once the program named threads. Until then no hook looks at them, so nobody else pays for it."""
        self._when_declared.append(act)
        if self._named is not None:
            act()

    def check(self) -> None:
        """This thread is about to compute: if the program said that it does not, its tensors have to be there."""
        if self._named is None or (me := threading.current_thread()) in self._named:
            return
        if not self._undeclared:
            self._undeclared = me.name
            say(
                f"job {job_word('CARPOOL_JOB')}: thread {me.name} computes, but was not named in"
                " carpool.only_these_threads_compute(); name it too: until the program ends it is not parked"
            )
        while self._is_away:
            time.sleep(LOOK_SECONDS)

    def begin_parking(self) -> str:
        """Why the program must not be parked, empty if it may: from then on, threads that were not named wait."""
        self._is_away = self._named is not None
        obstacle = self._obstacle()
        if obstacle:
            self._is_away = False
        return obstacle

    def end_parking(self) -> None:
        """Every tensor is there."""
        self._is_away = False

    def _obstacle(self) -> str:
        if self._named is None:
            return thread_in_the_way()
        if self._undeclared:
            return f"its thread {self._undeclared} computes, and the program said that it does not"
        here = threading.current_thread()
        others = sorted(each.name for each in self._named if each is not here and each.is_alive())
        return f"its thread {others[0]} might touch its tensors meanwhile" if others else ""

    def _forget(self) -> None:
        self._named, self._undeclared, self._is_away = None, "", False


compute_threads = ComputeThreads()
workers = Workers()
_own: dict[int, int] = {}  # threads that carpool itself started: ident and the kernel's number


def start_aside(work: Callable[..., None], *arguments: object) -> bool:
    """In a thread of carpool's own; False where there can be no more. Not threading.Thread, which the program may
    trace."""

    def labour() -> None:
        ident = _thread.get_ident()
        _own[ident] = _thread.get_native_id()
        try:
            work(*arguments)
        finally:
            del _own[ident]

    try:
        _thread.start_new_thread(labour, ())
    except RuntimeError:
        return False
    return True


def thread_in_the_way() -> str:
    """Another thread that might touch a tensor meanwhile, as a reason."""
    return known_in_the_way() or unknown_in_the_way()


def unknown_in_the_way() -> str:
    """The same of threads that `threading` does not know."""
    until = time.monotonic() + SPIN_SECONDS
    while True:
        known = threading.enumerate()
        raw = sys._current_frames().keys() - {each.ident for each in known} - {*_own, threading.get_ident()}
        if raw:
            return f"a thread that Python's threading does not know ({min(raw)}) might touch its tensors meanwhile"
        numbers = {each.native_id for each in known if each.native_id is not None}
        stranger = workers.stranger(numbers | {*_own.values(), threading.get_native_id()})
        if stranger is None:
            return ""
        if not stranger.may_settle or time.monotonic() > until:
            return f"thread {stranger} might touch its tensors meanwhile"
        time.sleep(LOOK_SECONDS)


def known_in_the_way() -> str:
    """The same of threads that `threading` knows."""
    here = threading.current_thread()
    others = [each for each in threading.enumerate() if each is not here and not _is_harmless(each)]
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        idle = _idle(others)
        busy = [each for each in others if each not in idle]
        if not busy:
            return ""
        foreign = next((each for each in busy if not is_part_of(_home(each), MAY_BE_IDLE)), None)
        if foreign is not None:
            return f"its thread {foreign.name} might touch its tensors meanwhile"
        if time.monotonic() > until:
            return f"its thread {busy[0].name} has work of a pool or a queue, which might touch its tensors meanwhile"
        time.sleep(LOOK_SECONDS)


def _home(thread: threading.Thread) -> str:
    """The module of the code that the thread runs: where it was written, and not what a decorator calls it."""
    run: Any = type(thread).run
    if run is threading.Thread.run:
        run = getattr(thread, "_target", None)
    names = getattr(getattr(run, "__func__", run), "__globals__", {})
    return str(names.get("__name__", ""))


def _is_harmless(thread: threading.Thread) -> bool:
    """Whether its code and its class are those of a harmless package; a class of the program's may do more."""
    return is_part_of(_home(thread), HARMLESS) and is_part_of(type(thread).__module__, ("threading", *HARMLESS))


def _idle(threads: Iterable[threading.Thread]) -> set[object]:
    """Those that wait for work of a pool or a queue."""
    idle: set[object] = set()
    for thread in threads:
        if is_part_of(_home(thread), MAY_BE_IDLE):
            with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):  # another Python's arguments
                idle |= _idle_by(thread)
    return idle


def _idle_by(thread: threading.Thread) -> set[object]:
    """What the arguments of this one tell: itself, or all of its pool."""
    target, arguments = thread._target, thread._args  # type: ignore[attr-defined]  # no other door
    given: dict[str, Any] = inspect.signature(target).bind(*arguments).arguments
    match target.__qualname__:
        case (
            "Queue._feed"
        ):  # it takes out of the buffer what it pickles; a thread that waits for more stands in that list
            return {thread} if not given["buffer"] and given["notempty"]._waiters else set()
        case "Pool._handle_tasks" | "Pool._handle_results":
            return {thread} if not given["cache"] else set()  # a task is in there until its callback has run
        case "Pool._handle_workers":
            # One that replaces its processes would fork a program that finds no tensors.
            is_idle = not given["cache"] and given["maxtasksperchild"] is None
            workers = given["pool"] if given["initializer"] is None else []  # else one of them may be in that
            return {thread, *workers} if is_idle else set()
    return set()
