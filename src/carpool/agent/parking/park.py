"""Parking this program: its tensors leave the device while it waits for its turn, and are back before it goes on.

turns/waiting.py calls this when the daemon says so; only a program that waits is ever parked.

Rules
  K1  The program's own code never runs while its tensors are away: touching one would crash it. Whatever ends the
      wait (a grant, a dead daemon, an interrupt) brings them back first. Signal handlers of the program are held
      back until its tensors are there again, unless they run in a thread that does not compute (K2).
  K2  A program with threads that may touch tensors is not parked; the answer names the thread. Which threads may is
      what the program said (`carpool.only_these_threads_compute`), else what threads.py knows of them. Threads that
      Python did not start count too (thread_stacks.py).
  K3  A move that fails changes nothing and is answered with the reason.
"""

from __future__ import annotations

import contextlib
import select
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from carpool.agent.link import Link, say
from carpool.agent.threads import compute_threads
from carpool.errors import LinkLostError
from carpool.wire import messages as m
from carpool.wire import page

LOOK_MS = 200  # a signal handler of a parked program is held back for this long at most
AGAIN_SECONDS = 0.5


class Movable(Protocol):
    """What can leave and come back; storages.py has the one for torch."""

    @property
    def away_bytes(self) -> int: ...

    def obstacle(self) -> str: ...

    def move_out(self, limit_bytes: int) -> int: ...

    def kept_words(self) -> str: ...

    def move_in(self) -> None: ...

    def undo_move_in(self) -> None: ...


class Parking:
    """Whether this process is parked, and its ways out and back."""

    def __init__(
        self,
        link: Link,
        movable: Movable | None,
        live_bytes: Callable[[], int],
    ) -> None:
        self._link = link
        self._movable = movable
        self._live_bytes = live_bytes
        self._held_back = HeldSignals()
        self._answer: m.Parked | None = None  # while it is away

    @property
    def is_away(self) -> bool:
        return self._answer is not None

    @property
    def lease_word(self) -> int:
        """What the page says of a process that waits."""
        return page.LEASE_PARKED if self.is_away else page.LEASE_ASKED

    def come_back(self) -> None:
        """Return only when every tensor is there again (K1)."""
        said = ""
        while self._answer is not None:
            trouble = self.unpark().reason
            if trouble and trouble != said:
                say(f"job {self._link.job} waits for its memory: {trouble}")
                said = trouble
            if trouble:
                time.sleep(AGAIN_SECONDS)

    def wait_message(self) -> None:
        """Until there is something to read. A signal meanwhile brings the tensors back for the program's handler, and
        then they leave again.

        A program that cannot leave again closes its connection: to the daemon it was interrupted, and asks anew.
        """
        poll = select.poll()  # not select.select: the program may have more files than that can name
        poll.register(self._link, select.POLLIN)
        while not poll.poll(LOOK_MS):
            if self._held_back.numbers:
                limit = self._answer.moved_bytes if self._answer is not None else 0
                self.come_back()
                trouble = self.park(limit).reason
                if trouble:
                    self._link.close()
                    raise LinkLostError(trouble)

    def park(self, limit_bytes: int) -> m.Parked:
        if self._answer is not None:
            return self._answer
        if self._movable is None:
            return m.Parked(moved_bytes=0, move_ns=0, reason="carpool knows no tensors in this program")
        obstacle = self._movable.obstacle() or compute_threads.begin_parking()
        if obstacle:
            return m.Parked(moved_bytes=0, move_ns=0, reason=obstacle)
        began, moved, trouble, kept = time.monotonic_ns(), 0, "", ""
        self._held_back.begin()
        try:
            kept = self._movable.kept_words()
            moved = self._movable.move_out(limit_bytes)
        except (OSError, MemoryError, RuntimeError, ValueError) as error:
            trouble = f"its memory could not be copied: {error}"
        except BaseException:
            self._end()
            raise
        if trouble:
            self._end()  # not where the error is handled: what the program's handlers raise is their own
            return m.Parked(moved_bytes=0, move_ns=0, reason=trouble)
        self._answer = m.Parked(moved_bytes=moved, move_ns=time.monotonic_ns() - began, reason="", kept=kept)
        self._note()
        return self._answer

    def unpark(self) -> m.Unparked:
        began = time.monotonic_ns()
        if self._answer is None or self._movable is None:
            return m.Unparked(move_ns=0, reason="")
        try:
            self._movable.move_in()
        except (OSError, MemoryError, RuntimeError) as error:
            self._movable.undo_move_in()
            return m.Unparked(move_ns=0, reason=f"its memory could not be brought back: {str(error).splitlines()[0]}")
        self._answer = None
        self._note()
        self._end()
        return m.Unparked(move_ns=time.monotonic_ns() - began, reason="")

    def _end(self) -> None:
        """Every tensor is there: let the program's threads go on, and its signal handlers run."""
        compute_threads.end_parking()
        self._held_back.end()

    def _note(self) -> None:
        """Show in the page where the tensors are: a restarted daemon reads it."""
        words, base = self._link.words, self._link.base
        words[base + page.S_PARKED] = self._movable.away_bytes if self._movable is not None else 0
        words[base + page.S_LEASE] = self.lease_word
        self._live_bytes()


class HeldSignals:
    """Keeps the program's own signal handlers from running, and remembers which should have."""

    def __init__(self) -> None:
        self._real: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self.numbers: list[int] = []  # that came meanwhile

    def begin(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # handlers run in the main thread, which does not compute: else it is in the way (K2)
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, signal.Handlers):
                self._real[number] = handler
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number not in self.numbers:
            self.numbers.append(number)

    def end(self) -> None:
        """Put the handlers back and run all that should have run; what they raise goes on to the program."""
        for number, handler in self._real.items():
            signal.signal(number, handler)
        came, self.numbers, self._real = self.numbers, [], {}
        with contextlib.ExitStack() as due:
            for number in reversed(came):
                due.callback(signal.raise_signal, number)
