"""A command on a terminal of its own, with a person in front of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import subprocess
import termios
import time
from collections.abc import Sequence
from types import TracebackType

from tests.e2e.node import PATIENCE, PROGRAMS, Node


class Terminal:
    """Runs a command as the foreground of a new terminal; `text` is what stands on the screen."""

    def __init__(self, node: Node, arguments: Sequence[str]) -> None:
        self._master, slave = pty.openpty()
        os.set_blocking(self._master, False)
        self.text = ""

        def take_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        try:
            self.process = subprocess.Popen(
                arguments,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env={**node.environment, "TERM": "xterm"},
                cwd=PROGRAMS,
                preexec_fn=take_terminal,
            )
        finally:
            os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self._master)

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def read(self) -> None:
        with contextlib.suppress(OSError):  # nothing there, or nobody on the other side any more
            while data := os.read(self._master, 65536):
                self.text += data.decode(errors="replace").replace("\r\n", "\n")

    def wait_text(self, wanted: str, *, seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while wanted not in self.text:
            assert time.monotonic() < deadline, f"no '{wanted}' in {self.text!r}"
            time.sleep(0.01)
            self.read()

    def wait(self, *, seconds: float = PATIENCE) -> int:
        """The exit code; reads along, since a full terminal would stop the command."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"still running: {self.text!r}"
            self.read()
            time.sleep(0.01)
        self.read()
        return self.process.returncode
