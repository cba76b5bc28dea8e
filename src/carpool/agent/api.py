"""What a program may call itself: the functions that `carpool` offers, loaded at their first use.

All of them do nothing in a program that is not part of a job, so they may stay in its source.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from carpool.agent.job_words import job_word
from carpool.agent.threads import compute_threads
from carpool.agent.turns import process

if TYPE_CHECKING:
    from carpool.agent.joining import JoinedJob


def join(
    name: str | None = None, *, wait: float | None = None, required: bool = True, **options: object
) -> JoinedJob | None:
    """Make this running process a job of its own, and wait until it is let in (agent/joining.py)."""
    from carpool.agent import joining

    return joining.join(name, wait=wait, required=required, **options)


def load_ipython_extension(_: object) -> None:
    """`%load_ext carpool` in a notebook joins, or says in one line why not."""
    join(required=False)


@contextmanager
def turn(*, keep: bool = True) -> Iterator[None]:
    """Take a turn for a piece of device work: `with carpool.turn(): step()`.

    If another job waits, the turn goes back when the block ends. A program whose next block usually follows within
    3 ms keeps it until it is recalled, so a tight loop of blocks loses nothing. With `keep=False` it always goes
    back, whether somebody waits or not. Blocks inside a block are part of it.
    """
    turns = process.current_turns()
    if turns is None:
        yield
        return
    with turns.turn(keep=keep):
        yield


def take_turns_here() -> None:
    """The calling thread takes this program's turns from now on.

    Without this call it is the thread that computes first, or enters `carpool.turn()` first. Only one thread takes
    turns; `carpool.turn()` in another one says once that it took none.
    """
    process.take_turns_here()


def only_these_threads_compute(*threads: threading.Thread) -> None:
    """Say which threads touch tensors; without arguments it is the calling one.

    A program with threads that might touch tensors is not parked. After this call only the named threads are looked
    at. If another thread computes, it waits until the tensors are there, and the program is not parked again.
    """
    if job_word("CARPOOL_JOB"):
        compute_threads.declare(*(threads or (threading.current_thread(),)))
