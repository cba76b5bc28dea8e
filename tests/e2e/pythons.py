"""The other Pythons of this machine, found as people have them: in PATH and in pyenv."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from carpool.wire.supported import PYTHONS


def _interpreters() -> dict[str, tuple[int, int]]:
    """Each interpreter found, with its minor version."""
    names = ["python2.7", *(f"python3.{minor}" for minor in range(5, 20))]
    paths = [shutil.which(name) for name in names]
    paths += [str(path) for path in Path.home().glob(".pyenv/versions/*/bin/python")]
    paths += os.environ.get("CARPOOL_TEST_PYTHONS", "").split()
    ask, found = "import sys; print(sys.executable); print('%d %d' % sys.version_info[:2])", {}
    for path in filter(None, paths):
        done = subprocess.run([path, "-c", ask], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            executable, version = done.stdout.splitlines()
            major, minor = version.split()
            found[executable] = (int(major), int(minor))
    return found


def old_pythons() -> list[str]:
    """Those that are older than carpool needs."""
    return sorted(path for path, version in _interpreters().items() if version < PYTHONS[0])


def newer_pythons() -> list[str]:
    """Those that carpool serves, of another minor version than its own."""
    return sorted(
        path
        for path, version in _interpreters().items()
        if PYTHONS[0] <= version <= PYTHONS[1] and version != sys.version_info[:2]
    )


def too_new_pythons() -> list[str]:
    """Those that nobody tried yet."""
    return sorted(path for path, version in _interpreters().items() if version > PYTHONS[1])
