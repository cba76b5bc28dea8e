"""Reads that a user's program can hold up, done beside the loop.

Whoever owns a process or a directory decides how long some of what is there takes to read. A process that executes a
program while a file system of its own keeps one of its descriptors from being closed holds up whoever opens its
`environ`, `stat` or `maps` in /proc, for ever. So the machine's daemon has a thread read such things, and goes on
without what does not come. A daemon that serves one user reads them itself: he could hold up nobody but himself.

Rules
  I40 What a user's program does never stops the loop. A read that sleeps is given up after ASLEEP_LOOKS short looks,
      and counts as one that found nothing; its thread ends when it comes back. Nothing of a user's processes is read
      while EACH_MAX reads of them are held up, or once they took SPENT_NS of sleep and processor time in
      WINDOW_SECONDS. A thread that only waits for a processor is waited for: a crowded machine loses nothing.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Found = TypeVar("Found")
LOOK_SECONDS = 0.005
ASLEEP_LOOKS = 6  # one after the other
PATIENCE_SECONDS = 2.0  # for a thread that gets no processor
EACH_MAX = 2  # reads of one user that are held up
ALL_MAX = 64  # threads that do not come back
SPENT_NS, WINDOW_SECONDS = 600_000_000, 60.0  # one percent of the loop's time


class _Read(Generic[Found]):
    def __init__(self, user: int, key: Hashable, read: Callable[[], Found]) -> None:
        self.user, self.key = user, key
        self.is_over = threading.Event()
        self.found: Found | None = None
        self.error: OSError | None = None
        self.cpu_ns = 0
        self._read = read

    def run(self) -> None:
        began = time.thread_time_ns()
        try:
            self.found = self._read()
        except OSError as error:
            self.error = error
        self.cpu_ns = time.thread_time_ns() - began
        self.is_over.set()


class _Reader:
    """A thread that reads one thing after the other."""

    def __init__(self) -> None:
        self._reads: queue.SimpleQueue[_Read[object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (read := self._reads.get()) is not None:
            read.run()

    def give(self, read: _Read[object] | None) -> None:
        """None: no more."""
        self._reads.put(read)

    def is_asleep(self) -> bool:
        """Whether it waits for something else than a processor."""
        with open(f"/proc/self/task/{self._thread.native_id}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split(None, 1)[0] in (b"S", b"D")


class HoldUps:
    def __init__(self) -> None:
        self._reader: _Reader | None = None
        self._held: list[_Read[object]] = []
        self._spent_ns: dict[int, int] = {}  # by user, in this window
        self._window_began = time.monotonic()

    def ask(self, user: int, key: Hashable, read: Callable[[], Found], otherwise: Found) -> Found:
        """What `read` finds of something of this user's; `otherwise` if it is held up. Its OSError is passed on."""
        if self._is_hopeless(user, key):
            return otherwise
        asked: _Read[object] = _Read(user, key, read)
        if self._reader is None:
            try:
                self._reader = _Reader()
            except RuntimeError:  # no thread can be had
                return otherwise
        self._reader.give(asked)
        if not self._wait(asked, self._reader):
            self._reader.give(None)
            self._reader = None
            self._held.append(asked)
            import logging  # every `carpool run` waits for this module, and needs it only here

            logging.getLogger("carpool").warning("read.held_up uid=%d what=%s", user, key)
            return otherwise
        self._charge(user, asked.cpu_ns)
        if asked.error is not None:
            raise asked.error
        return asked.found  # type: ignore[return-value]  # it is over without an error

    def end(self) -> None:
        """Let go of the thread; those that are held up end when they come back."""
        if self._reader is not None:
            self._reader.give(None)
            self._reader = None

    def _is_hopeless(self, user: int, key: Hashable) -> bool:
        self._held = [each for each in self._held if not each.is_over.is_set()]
        if time.monotonic() - self._window_began > WINDOW_SECONDS:
            self._spent_ns.clear()
            self._window_began = time.monotonic()
        mine = [each.key for each in self._held if each.user == user]
        is_full = len(mine) >= EACH_MAX or len(self._held) >= ALL_MAX
        return is_full or key in mine or self._spent_ns.get(user, 0) >= SPENT_NS

    def _charge(self, user: int, spent_ns: int) -> None:
        self._spent_ns[user] = self._spent_ns.get(user, 0) + spent_ns

    def _wait(self, asked: _Read[object], reader: _Reader) -> bool:
        """Whether it came back."""
        asleep, until = 0, time.monotonic() + PATIENCE_SECONDS
        while not asked.is_over.wait(LOOK_SECONDS):
            if reader.is_asleep():
                asleep += 1
                self._charge(asked.user, round(LOOK_SECONDS * 1e9))
            else:
                asleep = 0
            if asleep >= ASLEEP_LOOKS or time.monotonic() > until:
                return asked.is_over.is_set()
        return True


_watch: HoldUps | None = None


def begin() -> None:
    """From now on users are not trusted to let this process read."""
    global _watch
    _watch = HoldUps()


def is_on() -> bool:
    return _watch is not None


def ask(user: int, key: Hashable, read: Callable[[], Found], otherwise: Found) -> Found:
    """As HoldUps.ask; in a daemon that serves one user, just read."""
    return read() if _watch is None or user == os.geteuid() else _watch.ask(user, key, read, otherwise)
