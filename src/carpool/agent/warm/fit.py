"""Whether a program that is forked from this parent would be the same as one that starts cold.

Rules
  V13 Everything that the parent read, or was given, while it imported is compared: variables, files, limits, cgroup,
      namespaces, rights. Whatever differs and cannot be changed after the fork is a cold start, and is named.
  V14 A file that changed since it was imported ends the parent: no later program gets old code.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import sys
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from carpool.agent.warm.reads import Reads
from carpool.agent.warm.shelf import has_shadow
from carpool.wire import warm

SETS_VARIABLE = re.compile(
    rb"""environ\s*\[\s*b?['"](\w+)['"]\s*\]\s*=(?!=)|environ\s*\.\s*setdefault\s*\(\s*['"](\w+)|putenv\s*\(\s*b?['"](\w+)"""
)
CUDA_NOT_INITIALIZED = 3


class Stamps:
    """What files are: when they were modified, how large they are and which they are."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = sorted(paths)
        self._text = b"".join(os.fsencode(path) + b"\0" for path in self._paths)
        self._words = array("q", (word for path in self._paths for word in _stamp(path)))
        self._look: Any = getattr(ctypes.CDLL(None), "carpool_first_changed", None)  # native/reads.c
        if self._look is not None:
            self._look.restype = ctypes.c_size_t
            self._look.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]

    def first_changed(self) -> str:
        """A file that is not what it was; empty if all are."""
        if self._look is None:
            return ""  # reads.py says that nobody is served
        found = self._look(self._text, self._words.buffer_info()[0], len(self._paths))
        return self._paths[found] if found < len(self._paths) else ""


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        facts = os.stat(path)
    except OSError:
        return -1, -1, -1
    return facts.st_mtime_ns, facts.st_size, facts.st_ino


def _files() -> set[str]:
    modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    maps = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    libraries = {line.split(None, 5)[5] for line in maps if line.count("/") and not line.endswith("(deleted)")}
    return {file for file in modules if isinstance(file, str)} | libraries


class Fit:
    """What this parent is, taken when it has imported everything."""

    def __init__(self, environment: Mapping[str, str], reads: Reads, names: set[str]) -> None:
        self._environment = dict(environment)
        self._reads = reads
        self._names = names
        self._situation = warm.situation()
        self._limits = warm.limits()
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._trees = [entry for entry in sys.path if entry]
        venv = str(Path(sys.executable).parent.parent / "pyvenv.cfg")
        self._stamps = Stamps({*_files(), *self._trees, venv})

    def changed(self) -> str:
        """A file that is not what was imported (V14); empty while all are."""
        return self._stamps.first_changed()

    def misfit(self, request: Mapping[str, Any]) -> str:
        """Why this program must start cold; empty if it may start here."""
        return (
            self._reads.trouble
            or self._other_situation(request)
            or self._other_limits(request)
            or self._other_variable(request["environment"])
            or self._other_code(request)
            or unforkable()
        )

    def _other_situation(self, request: Mapping[str, Any]) -> str:
        for name, value in request["situation"].items():
            if self._situation.get(name) != value:
                return f"its {name} is not that of the warm parent"
        if request["nice"] < self._nice:
            return f"it has nice {request['nice']}, and the warm parent {self._nice}"
        return ""

    def _other_limits(self, request: Mapping[str, Any]) -> str:
        for name, (soft, hard) in request["limits"].items():
            mine = self._limits.get(name)
            if mine is None or _number(hard) > _number(mine[1]):
                return f"its {name} may be raised higher than that of the warm parent"
            if name in warm.LOAD_LIMITS and (soft, hard) != mine:
                return f"its {name} is not that of the warm parent"
        return ""

    def _other_variable(self, environment: Mapping[str, str]) -> str:
        name = self._reads.difference(self._environment, environment)
        if not name:
            return ""
        said = (f"{name}={value}" if value is not None else f"no {name}" for value in self._both(name, environment))
        return "it has {}, and the warm parent was started with {}".format(*said)

    def _both(self, name: str, environment: Mapping[str, str]) -> tuple[str | None, str | None]:
        return environment.get(name), self._environment.get(name)

    def _other_code(self, request: Mapping[str, Any]) -> str:
        command = warm.Command(request["argv"])
        if any(not entry.startswith("/") for entry in _entries(request["environment"])):
            return "PYTHONPATH has an entry that depends on the directory"
        text = command.target.encode(errors="replace") if command.kind == "-c" else b""
        if not command.kind:
            path = os.path.join(request["cwd"], command.target)
            if not os.path.isfile(path) or path.endswith(".pyc"):
                return f"{command.target} is no Python script"
            text = Path(path).read_bytes()
        for found in SETS_VARIABLE.finditer(text):
            name = next(filter(None, found.groups())).decode()
            if self._reads.is_compared(name):
                return f"it sets {name}, which is read when torch is imported"
        where = request["cwd"] if command.kind else os.path.dirname(os.path.realpath(path))
        shadow = has_shadow(where, self._names)
        return f"{shadow} would be imported in place of what the warm parent has" if shadow else ""


def _entries(environment: Mapping[str, str]) -> list[str]:
    path = environment.get("PYTHONPATH", "")
    return path.split(":") if path else []


def _number(limit: int) -> float:
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def unforkable() -> str:
    """What forbids a fork: another thread, or a CUDA driver that somebody has initialised."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return f"an import left {threads - 1} threads in the warm parent"
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return ""
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) != CUDA_NOT_INITIALIZED:
        return "an import has initialised CUDA in the warm parent"
    return ""
