"""The C points compile without a warning; what they do is tested in tests/agent/test_points.py."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.native.probe import NATIVE, STRICT


def test_the_points_compile_strictly(tmp_path: Path) -> None:
    include = Path(sysconfig.get_path("include"))
    if shutil.which("cc") is None or not (include / "Python.h").exists():
        pytest.skip(
            "no C compiler 'cc' or no Python.h: the C points are NOT tested; install gcc and Python's headers"
        )
    options = [*STRICT, "-fvisibility=hidden", "-shared", "-fPIC", f"-I{include}"]
    command = ["cc", *options, str(NATIVE / "points.c"), "-o", str(tmp_path / "points.so")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
