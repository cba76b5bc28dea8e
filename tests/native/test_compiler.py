"""`make setup` as root installs a missing compiler, unless it is told not to touch the system."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "native" / "compiler.sh"


@pytest.mark.parametrize(
    ("variables", "user", "is_called"),
    [({}, "0", True), ({"SYSTEM_PACKAGES": "no"}, "0", False), ({}, "1000", False)],
    ids=["root", "told not to", "not root"],
)
def test_packages_of_the_system_are_installed_only_for_root_and_not_against_its_word(
    tmp_path: Path, variables: dict[str, str], user: str, is_called: bool
) -> None:
    called = tmp_path / "called"
    for name, body in (("id", f"echo {user}"), ("apt-get", f'echo "$@" >> {called}')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o700)
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT)],
        env={**variables, "PATH": str(tmp_path), "HOME": os.devnull},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert called.exists() == is_called
    assert "no C compiler found" in done.stdout
    if is_called:
        assert called.read_text().splitlines() == ["update -qq", "install -y -qq gcc libc6-dev valgrind"]
