"""Command lines that keep carpool out of a Python: it is told to ignore what carpool puts into its way.

Apart from `environment.py`, because every runner reads this and needs nothing else of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from carpool.units import format_list

_IS_PYTHON = re.compile(r"python[0-9.]*")
_CLOSED = "EIS"  # -E and -I ignore PYTHONPATH, -S runs no sitecustomize
_VALUED = "WX"  # take the rest of their word, or the next one
_LAST = "cm"  # what follows is the program's
_VALUED_LONG = "--check-hash-based-pycs"


def why_kept_out(argv: list[str], *, has_turns_at_launches: bool) -> str:
    """Why this program takes no turns, and what to do; empty if it may take some.

    On a GPU the library in the program takes them at kernel launches anyway.
    """
    if has_turns_at_launches or not _IS_PYTHON.fullmatch(Path(argv[0]).name):
        return ""
    found = list(dict.fromkeys(f"-{letter}" for letter in _letters(argv[1:]) if letter in _CLOSED))
    if not found:
        return ""
    options = format_list(found)
    keeps = "option {} keeps" if len(found) == 1 else "options {} keep"
    return f"Python's {keeps.format(options)} carpool out of the program; to take turns, run it without {options}"


def _letters(words: list[str]) -> Iterator[str]:
    """The interpreter's own options of one letter, up to the script, -m or -c."""
    rest = iter(words)
    for word in rest:
        if word == _VALUED_LONG:
            next(rest, None)
        elif word in ("-", "--") or not word.startswith("-"):
            return
        elif not word.startswith("--"):
            for place, letter in enumerate(word[1:], start=2):
                yield letter
                if letter in _LAST:
                    return
                if letter in _VALUED:
                    if not word[place:]:
                        next(rest, None)
                    break
