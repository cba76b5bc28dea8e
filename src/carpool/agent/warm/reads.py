"""Which variables are read while the warm parent imports its modules: noted, not guessed.

Python's reads go through `os.environ`, those of C through getenv (native/reads.c, preloaded into the parent).
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


class Reads:
    """Notes names from `begin` to `end`."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.prefixes: tuple[str, ...] = warm.PREFIXES
        self.trouble = ""  # why nobody can say what was read
        self._walker: FrameType | None = None
        self._real: Any = os._Environ.__getitem__
        self._real_iter: Any = os._Environ.__iter__

    def begin(self) -> None:
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
        try:
            tell = ctypes.CDLL(None).carpool_reads
        except AttributeError:
            self.trouble = self.trouble or "the library that notes reads is not loaded; see carpool doctor"
            return
        tell.restype, length = ctypes.c_void_p, ctypes.c_size_t()
        place = tell(ctypes.byref(length))
        if length.value > 1 << 16:
            self.trouble = self.trouble or "too many variables were read to note them"
        names = ctypes.string_at(place, min(length.value, 1 << 16)).decode(errors="surrogateescape")
        self.names |= {name for name in names.split("\n") if name}
        self._leave_ours()

    def _leave_ours(self) -> None:
        self.names = {name for name in self.names if not name.startswith(warm.OURS)}

    def difference(self, mine: Mapping[str, str], other: Mapping[str, str]) -> str:
        """A name whose value matters and is not the same in both; empty if there is none."""
        names = self.names | {name for name in (*mine, *other) if name.startswith(self.prefixes)}
        return next((name for name in sorted(names) if mine.get(name) != other.get(name)), "")

    def is_compared(self, name: str) -> bool:
        return name in self.names or name.startswith(self.prefixes)
