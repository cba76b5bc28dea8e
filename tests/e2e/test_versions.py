"""Programs bring their own Python and torch: other versions take turns and are parked.

A Python with a torch of its own is tried by naming it, as docs/versions.md does:
CARPOOL_TEST_PYTHONS="path path" pytest tests/e2e/test_versions.py
"""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

import pytest
import torch

from tests.e2e.node import PROGRAMS, PYTHON, Node, Started, wait_until
from tests.e2e.pythons import newer_pythons

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Says which C parts it has, then when each of its turns began and ended.
SPANS = """
import os, sys, time
import carpool
from carpool._native import load
from carpool.wire import protocol

print(*(os.path.basename(load(*part).__file__) for part in (
    ("hot_path", protocol.HOT_PATH_CONTRACT), ("swap", protocol.SWAP_CONTRACT),
    ("find_and_copy", protocol.FIND_AND_COPY_CONTRACT),
)))
while not os.path.exists(sys.argv[1]):
    with carpool.turn():
        began = time.monotonic_ns()
        time.sleep(0.002)
        print(began, time.monotonic_ns(), flush=True)
"""
LOOP = ["held.py", "sgd", "--steps", "150", "--width", "200", "--pause", "0.02"]
BARE = "an environment without carpool"
TURNS = 4  # enough to see that the two alternate


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python of carpool's own version, in an environment with torch and without carpool."""
    place = tmp_path_factory.mktemp("bare")
    venv.EnvBuilder(symlinks=True).create(place)
    (packages,) = place.glob("lib/python3*/site-packages")
    (packages / "torch.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    python = str(place / "bin" / "python")
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([python, "-c", "import carpool"], env=clean, cwd=place, capture_output=True, text=True)
    assert "No module named 'carpool'" in done.stderr
    return python


def spans(started: Started) -> list[tuple[int, int]]:
    return [(int(began), int(ended)) for began, ended in (line.split() for line in started.lines[1:])]


def wait_turns(node: Node, name: str) -> None:
    wait_until(lambda: node.turns(name) >= TURNS, f"{name} had {TURNS} turns")


def test_programs_of_other_pythons_take_turns_beside_others(node: Node, tmp_path: Path) -> None:
    pythons = newer_pythons()
    if not pythons:
        pytest.skip("no Python of another minor version is here: that its programs take turns is NOT tested")
    node.start(quantum="20ms")
    node.environment.pop("PYTHONPATH", None)
    enough = tmp_path / "enough"
    names = [f"job{number}" for number in range(len(pythons) + 1)]
    jobs = [
        node.run(python, "-c", SPANS, str(enough), options=["--name", name])
        for name, python in zip(names, [PYTHON, *pythons], strict=True)
    ]
    for name, started in zip(names, jobs, strict=True):
        started.wait_lines(2)
        wait_turns(node, name)
    enough.touch()
    for started in jobs:
        ended = started.wait()
        assert (ended.code, ended.err) == (0, "")
        assert ended.lines[0] == "hot_path.abi3.so swap.abi3.so find_and_copy.abi3.so"
    all_spans = sorted(span for started in jobs for span in spans(started))
    for (_, ended_ns), (began_ns, _) in zip(all_spans, all_spans[1:], strict=False):
        assert ended_ns <= began_ns, "two programs computed at once"


@pytest.mark.parametrize("python", [BARE, *os.environ.get("CARPOOL_TEST_PYTHONS", "").split()])
def test_a_training_loop_shares_and_is_parked_and_no_number_changes(
    node: Node, bare_python: str, python: str
) -> None:
    node.start(quantum="20ms")
    program = [bare_python if python is BARE else python, *LOOP]
    kept = {key: value for key, value in node.environment.items() if not key.startswith("CARPOOL")}
    alone = subprocess.run(program, env=kept, cwd=PROGRAMS, capture_output=True, timeout=200, check=True).stdout
    first = node.run(*program, options=["--name", "other"])
    beside = node.run(*LOOP[:3], "100000", *LOOP[4:], options=["--name", "beside"])
    node.wait_steps("other", 20)
    assert node.carpool("suspend", "other").code == 0
    node.wait_state("other", "parked")
    assert node.carpool("resume", "other").code == 0
    node.wait_steps("other", 40)
    assert node.turns("other") >= 2 and node.turns("beside") >= 2
    ended = first.wait()
    beside.end()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == alone
