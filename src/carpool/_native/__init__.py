"""What is C; made by setuptools from native/."""

from __future__ import annotations

import importlib
from typing import Any


def load(name: str, contract: int) -> Any:
    """One of these modules, if it speaks this contract: a library of an older checkout is not used. None without a
    compiler, and where the program's Python has no stable interface (the free-threaded ones)."""
    try:
        found = importlib.import_module(f"{__name__}.{name}")
    except ImportError:
        return None
    return found if getattr(found, "CONTRACT", None) == contract else None
