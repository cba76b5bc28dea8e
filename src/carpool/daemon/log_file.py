"""daemon.log, written by a thread of its own: a disk that hangs must not stop the daemon's loop.

Lines wait in memory, LINES_MAX at most. What comes beyond that is dropped and counted: a line says so once there is
room again, and so does `carpool daemon status`.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import logging.handlers
import queue
import time
from pathlib import Path

LINES_MAX = 10_000
FILE_BYTES_MAX = 5 << 20
CLOSE_SECONDS = 2.0  # a daemon that ends waits so long for the disk
LOOK_SECONDS = 0.005
log = logging.getLogger("carpool")


class _Lines(logging.handlers.QueueHandler):
    """The daemon's end: it never waits."""

    def __init__(self, lines: queue.Queue[object]) -> None:
        super().__init__(lines)
        self.dropped = 0
        self._unsaid = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self._unsaid:
                note = copy.copy(record)
                note.levelno, note.levelname = logging.WARNING, "WARNING"
                note.msg = note.message = f"log.dropped lines={self._unsaid} reason=the disk did not take them"
                self.queue.put_nowait(note)
                self._unsaid = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1
            self._unsaid += 1


class LogFile:
    """The file's end: opened, written and closed by the thread of a QueueListener."""

    def __init__(self, path: Path) -> None:
        """OSError if the file cannot be opened."""
        self._file = logging.handlers.RotatingFileHandler(path, maxBytes=FILE_BYTES_MAX, backupCount=1)
        self._file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._waiting: queue.Queue[object] = queue.Queue(LINES_MAX)
        self._lines = _Lines(self._waiting)
        self._listener = logging.handlers.QueueListener(self._waiting, self._file)
        self._listener.start()
        log.addHandler(self._lines)

    def close(self) -> None:
        """Write what waits, if the disk takes it in time."""
        log.removeHandler(self._lines)
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._waiting.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        if not self._waiting.unfinished_tasks:
            with contextlib.suppress(OSError):
                self._listener.stop()
                self._file.close()


def dropped_lines() -> int:
    """How many lines this daemon's log lacks."""
    return sum(handler.dropped for handler in log.handlers if isinstance(handler, _Lines))
