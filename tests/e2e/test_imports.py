"""What a start of a program waits for: the modules that `carpool run` imports, counted in a real run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.node import PYTHON, Node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

OURS = set(
    [
        "carpool",
        "carpool.__main__",
        "carpool._native",
        "carpool.errors",
        "carpool.units",
        "carpool.client",
        "carpool.cli",
        "carpool.cli.main",
        "carpool.cli.groups",
        "carpool.cli.run",
        "carpool.cli.runner",
        "carpool.cli.job_options",
        "carpool.cli.launch",
        "carpool.cli.values",
        "carpool.cli.child",
        "carpool.cli.inherit",
        "carpool.daemon",
        "carpool.daemon.processes",
        "carpool.daemon.hold_ups",
        "carpool.daemon.user_files",
        "carpool.daemon.start_and_end",
        "carpool.daemon.python_options",
        "carpool.wire",
        "carpool.wire.protocol",
        "carpool.wire.messages",
        "carpool.wire.framing",
        "carpool.wire.connecting",
        "carpool.wire.lock",
        "carpool.wire.places",
        "carpool.wire.page",
    ]
)
# The dear ones of Python's library.
NOT_NEEDED = {"asyncio", "logging", "sqlite3", "tomllib", "multiprocessing", "concurrent.futures", "email", "http"}


def imports(node: Node, *arguments: str) -> set[str]:
    environment = {name: value for name, value in node.environment.items() if name != "PYTHONPATH"}
    command = [PYTHON, "-X", "importtime", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines[1:]}


def test_z13_a_start_of_a_program_imports_no_more_than_it_needs(node: Node) -> None:
    node.start()
    found = imports(node, "-m", "carpool", "run", "--name", "short", "--", "/bin/true")
    found -= imports(node, "-c", "pass")  # what this environment imports into every Python
    assert {name for name in found if name.partition(".")[0] == "carpool"} <= OURS
    others = {name.partition(".")[0] for name in found} - {"carpool"}
    assert others - set(sys.stdlib_module_names) == {
        "click",
        "org",
    }  # the latter is a try of Python's library, for Java
    assert not found & NOT_NEEDED
    node.wait_state("short", "finished")
