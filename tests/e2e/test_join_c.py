"""A C program joins with one header and the socket protocol (native/join), and takes turns."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.joins import join, stop
from tests.e2e.node import Node, Started

pytestmark = pytest.mark.timeout(120)
SOURCE = Path(__file__).parents[2] / "native" / "join" / "turns.c"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler 'cc': joining from C is NOT tested; install gcc")
    built = tmp_path_factory.mktemp("join") / "turns"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    subprocess.run(["cc", *flags, str(SOURCE), "-o", str(built)], check=True, timeout=100)
    return str(built)


def test_a_c_program_joins_and_takes_turns_with_a_python_program(node: Node, program: str) -> None:
    node.start()
    other = join(node, "carpool.join('python'); turns('stop')")
    node.wait_steps("python", 5)
    started = Started(node, [program, "inc", "50", str(node.places.socket)])
    done = started.wait()
    assert done.code == 0, done.err
    job, pid = done.lines[0].split()
    found = node.wait_state("inc", "finished")
    assert (found["id"], int(pid)) == (job, started.pid)
    assert "exit code 0" in found["reason"]
    assert node.turns("inc") >= 50
    steps = node.job("python")["steps"]
    node.wait_steps("python", steps + 5)
    stop(node)
    assert other.wait().code == 0


def test_a_c_program_is_told_why_it_does_not_join(node: Node, program: str) -> None:
    done = Started(node, [program, "inc", "1", str(node.places.socket)]).wait()
    assert done.code == 1 and "no daemon answers at" in done.err
    done = Started(node, [program, "inc", "1"]).wait()
    assert "CARPOOL_SOCKET is not set" in done.err
