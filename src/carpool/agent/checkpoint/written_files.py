"""Which files a recorded program wrote, made, moved or removed: a replay does all of it again.

A replay must find the files as they were when the program began. So every file is noted with what it was before:

  MADE      it was not there
  APPENDED  it was there, so many bytes long, and was only made longer
  REPLACED  it was there, and was written anew; the program had not read it

Whatever else a program does to files that were there before it cannot be undone, and is a reason for a refusal.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

MADE, APPENDED, REPLACED = "made", "appended", "replaced"
WRITING = os.O_WRONLY | os.O_RDWR
ANEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
FILES_MAX = 100_000  # more are not noted: nobody would wait until they are set aside


class WrittenFiles:
    def __init__(self) -> None:
        self.rows: dict[str, tuple[str, int]] = {}  # what each was before, and its length then
        self.directories: dict[str, None] = {}  # made by the program, in their order
        self.on_made: Callable[[str], None] = lambda path: None
        self._read: set[str] = set()
        self._loaded: set[str] = set()

    def contents(self) -> dict[str, Any]:
        """As a checkpoint holds it."""
        return {
            "rows": [[path, *row] for path, row in self.rows.items()],
            "directories": list(self.directories),
        }

    # Each of these gives the reason why it cannot be replayed; empty if it can.

    def opened(self, path: object, flags: int) -> str:
        name = absolute(path)
        if not flags & WRITING:
            if len(self._read) < FILES_MAX and name not in self.rows:
                self._read.add(name)
            return ""
        if name in self.rows:
            return ""
        try:
            found = Path(name).stat()
        except OSError:
            return self._note(name, MADE, 0) if flags & os.O_CREAT else ""
        if not stat.S_ISREG(found.st_mode):
            return ""  # a pipe, or the directory of a nameless file
        if flags & os.O_APPEND or not found.st_size:
            return self._note(name, APPENDED, found.st_size)
        if not flags & os.O_TRUNC:
            return f"it changed {name}, which was there before it"
        if name in self._read or len(self._read) >= FILES_MAX:
            return f"it read {name} and then wrote it anew"
        return self._note(name, REPLACED, 0)

    def loaded(self, path: str) -> None:
        """It read back what it had saved, which a replay leaves out: it needs the file of the recorded run."""
        self._loaded.add(absolute(path))

    def linked(self, path: object, directory: int = -1) -> str:
        return self._note(absolute(path, directory), MADE, 0)

    def removed(self, path: object, directory: int = -1) -> str:
        name = absolute(path, directory)
        if name in self._loaded:
            return f"it saved {name}, loaded it and removed it"
        if not os.path.lexists(name) or self._is_made(name):
            return ""
        return f"it removed {name}, which was there before it"

    def renamed(self, source: object, target: object, source_in: int = -1, target_in: int = -1) -> str:
        old, new = absolute(source, source_in), absolute(target, target_in)
        if not os.path.lexists(old):
            return ""
        if Path(old).is_dir() and not Path(old).is_symlink():
            return self._renamed_directory(old, new)
        if not self._is_made(old):
            return f"it renamed {old}, which was there before it"
        return self.opened(new, ANEW)

    def _renamed_directory(self, old: str, new: str) -> str:
        if old not in self.directories:
            return f"it renamed {old}, which was there before it"
        for path in [old, *(path for path in self.directories if path.startswith(old + os.sep))]:
            self.directories[new + path.removeprefix(old)] = None
        for path in [path for path in self.rows if path.startswith(old + os.sep)]:
            self._note(new + path.removeprefix(old), MADE, 0)
        return ""

    def made_directory(self, path: object, directory: int = -1) -> str:
        name = absolute(path, directory)
        if not os.path.lexists(name):
            self.directories[name] = None
        return ""

    def _is_made(self, name: str) -> bool:
        return self.rows.get(name, ("", 0))[0] == MADE

    def _note(self, name: str, how: str, size: int) -> str:
        if len(self.rows) >= FILES_MAX:
            return f"it wrote more than {FILES_MAX} files"
        if name not in self.rows:
            self.rows[name] = (how, size)
            self.on_made(name)
        return ""


def absolute(path: object, directory: int = -1) -> str:
    """Its full name; `directory` is a descriptor that it begins at, as Python's `dir_fd`."""
    name = os.fsdecode(path)  # type: ignore[arg-type]  # whoever calls has looked
    if directory >= 0 and not name.startswith(os.sep):
        name = f"{Path(f'/proc/self/fd/{directory}').readlink()}{os.sep}{name}"
    return os.path.abspath(name)  # noqa: PTH100 - links stay as they are named
