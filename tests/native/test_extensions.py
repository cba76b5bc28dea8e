"""The C parts of the agent compile without a warning; what they do is tested in tests/agent."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from carpool.devices.libraries import BUILT
from carpool.wire.protocol import SWAP_CONTRACT
from tests.e2e.pythons import newer_pythons
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


@pytest.mark.parametrize("part", ["hot_path", "find_and_copy", "swap"])
def test_z12_one_library_serves_pythons_of_other_minor_versions(part: str) -> None:
    pythons = newer_pythons()
    if not pythons:
        pytest.skip("no Python of another minor version is here: that the C parts serve those is NOT tested")
    for python in pythons:
        environment = {"PYTHONPATH": str(NATIVE.parent / "src")}
        done = subprocess.run(
            [python, "-c", CONTRACTS.format(part)], env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.stdout.endswith(" True\n"), (python, done.stderr)


def test_a_library_that_is_left_of_an_older_checkout_is_not_loaded(tmp_path: Path) -> None:
    """Python's own import would take it first: its name is that of one Python."""
    part = BUILT / "swap.abi3.so"
    if not part.exists():
        pytest.skip("the C parts are not built: which of two libraries is loaded is NOT tested; install gcc")
    place = tmp_path / "parts"
    shutil.copytree(BUILT, place, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(part, place)
    (place / f"swap{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(b"of an older checkout")
    code = f"import parts; print(parts.load('swap', {SWAP_CONTRACT}).__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{place / part.name}\n", done.stderr
