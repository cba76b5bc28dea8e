"""Which variables are read while the warm parent imports its modules: noted, not guessed.

Python's reads go through `os.environ`, those of C through getenv (native/reads.c, preloaded into the parent). What
runs at the start of every Python (site, .pth files, sitecustomize) has read its variables before anybody could note
it: another Python runs it once more, and notes.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from carpool.wire import warm

WHOLE_READERS = {"tqdm": "TQDM_"}  # walk through all variables, and take those that begin so


NAMES_BYTES = 1 << 16  # of native/reads.c


def _library(function: str, result: Any) -> Any:
    """A function of native/reads.c; None where that is not loaded."""
    found = getattr(ctypes.CDLL(None), function, None)
    if found is not None:
        found.restype = result
    return found


class Reads:
    """Notes names from `begin` to `end`."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.prefixes: tuple[str, ...] = warm.PREFIXES
        self.trouble = ""  # why nobody can say what was read
        self._so_far = 0  # bytes of names that C had read before
        self._walker: FrameType | None = None
        self._real: Any = os._Environ.__getitem__
        self._real_iter: Any = os._Environ.__iter__

    def begin(self) -> None:
        so_far = _library("carpool_reads_so_far", ctypes.c_size_t)
        self._so_far = int(so_far()) if so_far is not None else 0

        def get(environ: Any, name: Any) -> Any:
            caller = sys._getframe(1)
            if caller is not self._walker and caller.f_code.co_name not in ("__iter__", "copy"):
                self.names.add(os.fsdecode(name))
            return self._real(environ, name)

        def walk(environ: Any) -> Iterator[Any]:
            self._note_walker(sys._getframe(1))
            found: Iterator[Any] = self._real_iter(environ)
            return found

        os._Environ.__getitem__ = get  # type: ignore[method-assign]
        os._Environ.__iter__ = walk  # type: ignore[method-assign]

    def _note_walker(self, caller: FrameType) -> None:
        self._walker = caller
        frame: FrameType | None = caller
        while frame is not None and frame.f_globals.get("__name__") in ("os", "_collections_abc"):
            frame = frame.f_back
        module = str(frame.f_globals.get("__name__")) if frame is not None else ""
        prefix = WHOLE_READERS.get(module.partition(".")[0])
        if prefix is not None:
            self.prefixes = (*self.prefixes, prefix)
        elif not self.trouble:
            self.trouble = f"{module} reads all variables when it is imported"

    def end(self) -> None:
        os._Environ.__getitem__ = self._real  # type: ignore[method-assign]
        os._Environ.__iter__ = self._real_iter  # type: ignore[method-assign]
        self._walker = None
        self._leave_ours()
        tell, length = _library("carpool_reads", ctypes.c_void_p), ctypes.c_size_t()
        if tell is None:
            self.trouble = self.trouble or "the library that notes reads is not loaded; see carpool doctor"
            return
        place = tell(ctypes.byref(length))
        if length.value > NAMES_BYTES:
            self.trouble = self.trouble or "too many variables were read to note them"
        text = ctypes.string_at(place, min(length.value, NAMES_BYTES))
        at_start, later = text[: self._so_far].split(b"\n"), text[self._so_far :].split(b"\n")
        # The interpreter looks for itself with PATH. The runner did too, and each program is told what it found.
        self.names |= {os.fsdecode(name) for name in (set(at_start) - {b"PATH"}) | set(later) if name}
        self._leave_ours()

    def add(self, other: Mapping[str, Any]) -> None:
        """What another process read, as `told` says it."""
        self.names |= set(other["names"])
        self.prefixes = (*self.prefixes, *(each for each in other["prefixes"] if each not in self.prefixes))
        self.trouble = self.trouble or str(other["trouble"])

    def told(self) -> dict[str, Any]:
        return {"names": sorted(self.names), "prefixes": self.prefixes, "trouble": self.trouble}

    def _leave_ours(self) -> None:
        self.names = {name for name in self.names if not name.startswith(warm.OURS)}

    def difference(self, mine: Mapping[str, str], other: Mapping[str, str]) -> str:
        """A name whose value matters and is not the same in both; empty if there is none."""
        names = self.names | {name for name in (*mine, *other) if name.startswith(self.prefixes)}
        return next((name for name in sorted(names) if mine.get(name) != other.get(name)), "")

    def is_compared(self, name: str) -> bool:
        return name in self.names or name.startswith(self.prefixes)
