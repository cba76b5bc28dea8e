"""Finding a program's tensors and copying their bytes: in C where that was built (native/find_and_copy.c)."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Set
from typing import Any

from carpool._native import load
from carpool.wire.protocol import FIND_AND_COPY_CONTRACT

native: Any = load("find_and_copy", FIND_AND_COPY_CONTRACT)


def find_objects(classes: Set[type]) -> list[Any]:
    """Every object of exactly these classes that Python's collector knows; runs none of the program's code.

    Not isinstance: it asks a lazy proxy for its class, which may run some. And few classes among many objects: to
    look a class up costs a fifth of asking what it derives from.
    """
    found: list[Any] | None = None if native is None else native.find_objects(classes)
    return [each for each in gc.get_objects() if type(each) in classes] if found is None else found


def with_subclasses(parent: type) -> set[type]:
    """The class and every class derived from it."""
    heirs, fresh = {parent}, [parent]
    while fresh:
        derived: list[type] = type.__subclasses__(fresh.pop())
        fresh += [each for each in derived if each not in heirs]
        heirs.update(derived)
    return heirs


def copy(to: int, source: int, count: int) -> None:
    """Bytes from one address to another, which do not overlap; other threads run meanwhile."""
    if native is None:
        ctypes.memmove(to, source, count)
    else:
        native.copy(to, source, count)
