"""What others read of a process: its arguments (ps) and its variables (/proc/PID/environ).

Both lie where they were when the parent was started, and a fork has them from it. The parent was started with spare
room in both. A program writes its own there: its command line, and the job's variables, by which the daemon knows
whose process it is.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

from carpool.wire import warm


class Title:
    """Where the spare room is; looked up in the parent, once."""

    def __init__(self) -> None:
        """ValueError if there is none."""
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end, variables = (int(fields[index]) for index in (45, 46, 47))
        found = Path("/proc/self/environ").read_bytes()
        at = found.find(f"{warm.ENV_WARM_SPARE}=".encode())
        if at < 0 or not start or end - start < warm.PADDING_BYTES:
            raise ValueError("the kernel does not tell where arguments and variables lie")
        self._arguments = (start, end - start)
        self._variables = (variables + at, found.index(b"\0", at) - at + 1)

    def tell(self, environment: Mapping[str, str]) -> None:
        """Whose process this is; ValueError if the job's variables are too long for the room."""
        ours = {name: value for name, value in environment.items() if name.startswith(warm.OURS)}
        text = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in ours.items())
        place, room = self._variables
        if len(text) > room:
            raise ValueError(f"its variables of carpool take {len(text)} bytes")
        ctypes.memmove(place, text.ljust(room, b"\0"), room)

    def show(self, *words: str) -> None:
        """What it runs."""
        place, room = self._arguments
        line = os.fsencode(" ".join(words))[: room - 2] + b"\0"
        ctypes.memmove(place, line.ljust(room - 1, b"\0") + b"x", room)  # the last byte: this is a title
