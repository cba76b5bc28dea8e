"""The C parts of the agent compile without a warning; what they do is tested in tests/agent."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.native.probe import NATIVE, STRICT


@pytest.mark.parametrize("part", ["hot_path", "find_and_copy"])
def test_the_parts_of_the_agent_compile_strictly(part: str, tmp_path: Path) -> None:
    include = Path(sysconfig.get_path("include"))
    if shutil.which("cc") is None or not (include / "Python.h").exists():
        pytest.skip(
            f"no C compiler 'cc' or no Python.h: the C {part} are NOT tested; install gcc and Python's headers"
        )
    options = [*STRICT, "-fvisibility=hidden", "-shared", "-fPIC", f"-I{include}"]
    command = ["cc", *options, str(NATIVE / f"{part}.c"), "-o", str(tmp_path / f"{part}.so")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
