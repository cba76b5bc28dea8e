"""The C parts of the agent compile without a warning; what they do is tested in tests/agent."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.native.probe import NATIVE, STRICT


@pytest.mark.parametrize("part", ["hot_path", "find_and_copy", "swap"])
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


CONTRACTS = "import sys; from carpool._native import {0}; print(sys.version_info[:2], {0}.CONTRACT > 0)"


def newer_pythons() -> list[str]:
    """Interpreters of this machine with another minor version than carpool's own, found as people have them."""
    names = [f"python3.{minor}" for minor in range(11, 20) if minor != sys.version_info.minor]
    paths = [shutil.which(name) for name in names]
    paths += [str(path) for name in names for path in Path.home().glob(f".pyenv/versions/*/bin/{name}")]
    ask = "import sys; print(sys.executable)"
    asked = [subprocess.run([path, "-c", ask], capture_output=True, text=True) for path in filter(None, paths)]
    return sorted({done.stdout.strip() for done in asked if done.returncode == 0})


@pytest.mark.parametrize("part", ["hot_path", "find_and_copy", "swap"])
def test_one_library_serves_pythons_of_other_minor_versions(part: str) -> None:
    pythons = newer_pythons()
    if not pythons:
        pytest.skip("no Python of another minor version is here: that the C parts serve those is NOT tested")
    for python in pythons:
        environment = {"PYTHONPATH": str(NATIVE.parent / "src")}
        done = subprocess.run(
            [python, "-c", CONTRACTS.format(part)], env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.stdout.endswith(" True\n"), (python, done.stderr)
