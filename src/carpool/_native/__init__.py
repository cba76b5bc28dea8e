"""What is C; made by setuptools from native/."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

STABLE = ".abi3.so"  # how a module's name ends that serves every Python from 3.11 on


def load(name: str, contract: int) -> Any:
    """One of these modules, if it speaks this contract: a library of an older checkout is not used. None without a
    compiler, and where the program's Python has no stable interface (the free-threaded ones)."""
    try:
        found = _find(f"{__name__}.{name}", Path(__file__).parent)
    except ImportError:
        return None
    return found if getattr(found, "CONTRACT", None) == contract else None


def _find(name: str, place: Path) -> Any:
    """Not by `import`: it prefers a library of one Python only, which may be left of an older checkout."""
    if name not in sys.modules:
        suffixes = [suffix for suffix in EXTENSION_SUFFIXES if suffix == STABLE]
        spec = FileFinder(str(place), (ExtensionFileLoader, suffixes)).find_spec(name)
        if spec is None or spec.loader is None:
            raise ImportError(f"no {name}{STABLE} in {place}, or not for this Python")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]
