"""The one turn-taking of this process, if it is part of a job: made at its first point, anew in a forked child."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from threading import get_ident

from carpool.agent.job_words import job_word
from carpool.agent.link import Link, say, tell_detached
from carpool.agent.memory import Memory, name_turn_taker
from carpool.agent.turns.turn_taking import Turns
from carpool.wire import supported

_current: Turns | None = None
_is_unmanaged = False
_make_memory: Callable[[Link], Memory] = Memory.for_plain_process
_named_taker = 0  # the thread that called take_turns_here; 0 while whichever reaches the first point takes the turns
_followers: list[Callable[[int], None]] = []


def current_turns() -> Turns | None:
    """The turn-taking of this process; made at the first point, None outside a job (or in a data worker)."""
    global _current, _is_unmanaged
    if _current is None:
        job = job_word("CARPOOL_JOB")
        if not job or _is_unmanaged:
            return None
        _is_unmanaged = bool(supported.python_trouble())  # said at its start (Z10)
        if _is_unmanaged:
            return None
        try:
            link = Link(job, job_word("CARPOOL_SOCKET"), job_word("CARPOOL_PAGE"))
            memory = _make_memory(link)
        except Exception as error:  # noqa: BLE001 - our trouble is not the program's
            _is_unmanaged = True
            say(f"job {job} runs unmanaged: {error}")
            tell_detached(job, job_word("CARPOOL_SOCKET"), str(error))
            return None
        _current = Turns(link, memory, taker=_named_taker)
        atexit.register(_current.finish)
    return _current


def take_turns_here() -> None:
    """The calling thread takes the turns from now on; without a first point yet it is only remembered."""
    global _named_taker
    if not job_word("CARPOOL_JOB"):
        return
    if _current is not None:
        _current.take_here()
    name_turn_taker()
    _named_taker = get_ident()
    for follow in _followers:
        follow(_named_taker)


def follow_taker(follow: Callable[[int], None]) -> None:
    """Call this with every thread that is named to take the turns."""
    _followers.append(follow)
    if _named_taker:
        follow(_named_taker)


def set_memory(make: Callable[[Link], Memory]) -> None:
    """Choose how this process measures its memory (the torch hooks know the device)."""
    global _make_memory
    _make_memory = make


def forget_after_fork() -> None:
    """Let a forked child start afresh at its own first point."""
    global _current, _named_taker
    _named_taker = 0
    if _current is not None:
        _current.after_fork()
        _current = None


os.register_at_fork(after_in_child=forget_after_fork)
