"""Descriptors that carpool keeps open inside a program, and whether each still is what carpool opened.

A program may close descriptors that are not its own, as daemons do at their start, and then open files that get the
same numbers. So whatever carpool keeps is looked at before it is used or closed (B7 of turns/bell.py). One that is
another file by now is the program's, and is left alone.
"""

from __future__ import annotations

import os
import stat


class Descriptor:
    """The number of an open file, and by what the file is known."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._known = _identity(os.fstat(number))

    @property
    def inode(self) -> int:
        return self._known[1]

    def is_ours(self) -> bool:
        try:
            return _identity(os.fstat(self.number)) == self._known
        except OSError:
            return False

    def close(self) -> None:
        if self.is_ours():
            os.close(self.number)


def _identity(facts: os.stat_result) -> tuple[int, int, int, int]:
    """Disks use the number of a file that is gone again, so what it is counts too: carpool's have no name."""
    return facts.st_dev, facts.st_ino, stat.S_IFMT(facts.st_mode), facts.st_nlink
