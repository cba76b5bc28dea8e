"""Which Pythons and torches carpool serves: those that were tried, and what lies between them (docs/versions.md).

Rules
  Z10 A program whose Python or torch was not tried runs as if alone, says so once, and is shown as unmanaged.
      CARPOOL_ANY_VERSION=1 tries it all the same, where carpool's own code can run at all.
  Z11 Until a program imports torch, nothing comes into it but carpool's own modules and Python's library; after that
      nothing but what torch brings. Whatever carpool's own environment holds stays there.
  Z12 The C parts keep to Python's stable interface: one build serves every Python that is served.
"""

from __future__ import annotations

import os
import re
import sys

PYTHONS = ((3, 11), (3, 14))  # first and last minor version; sitecustomize.py has them by make docs
TORCHES = ((2, 6), (2, 15))
ENV_ANY_VERSION = "CARPOOL_ANY_VERSION"


def python_trouble() -> str:
    """Why the programs of this Python take no turns; empty if they can. sitecustomize.py says the same, in words that
    older Pythons understand."""
    name, version = sys.implementation.name, sys.version_info[:2]
    return trouble_of(name, version, sys.abiflags, is_any=bool(os.environ.get(ENV_ANY_VERSION)))


def trouble_of(implementation: str, version: tuple[int, ...], flags: str, *, is_any: bool) -> str:
    """The same of any Python, by what it says of itself."""
    if version < PYTHONS[0]:
        return f"Python {_dotted(version)} is older than {_dotted(PYTHONS[0])}"
    if implementation != "cpython":
        return f"{implementation} is another Python than CPython, which is what carpool knows"
    if is_any:
        return ""
    if version > PYTHONS[1]:
        return f"Python {_dotted(version)} is newer than {_dotted(PYTHONS[1])}; {_all_the_same()}"
    if "t" in flags:
        return f"Python {_dotted(version)} is built without its lock (free-threaded); {_all_the_same()}"
    return ""


def torch_trouble(version: str, *, is_any: bool | None = None) -> str:
    """Why carpool does not hook a torch of this version; empty if it does, or the version says nothing."""
    found = minor(version)
    if found[0] == 0 or (is_any if is_any is not None else os.environ.get(ENV_ANY_VERSION)):
        return ""
    if found < TORCHES[0]:
        return f"torch {version} is older than {_dotted(TORCHES[0])}; {_all_the_same()}"
    if found > TORCHES[1]:
        return f"torch {version} is newer than {_dotted(TORCHES[1])}; {_all_the_same()}"
    return ""


def minor(version: str) -> tuple[int, int]:
    """The first two numbers of a version; zeros for one that has none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def range_of(versions: tuple[tuple[int, int], tuple[int, int]]) -> str:
    """3.11 to 3.14, for people."""
    return " to ".join(map(_dotted, versions))


def _all_the_same() -> str:
    return f"{ENV_ANY_VERSION}=1 tries it all the same"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
