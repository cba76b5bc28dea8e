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
# Says which modules came into it that are neither Python's library's nor carpool's: before its own first line, and
# after some turns.
OTHERS = """
import os, sys
def others():
    own = (os.path.dirname(os.__file__) + os.sep, os.path.dirname(sys.modules["carpool"].__file__) + os.sep)
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    return {name for name, file in files.items() if file and not file.startswith(own) and name != "__main__"}
before = others()
import carpool
for _ in range(50):
    with carpool.turn(): pass
print(sorted(before), sorted(others()), flush=True)
sys.stdin.read()
"""
# The same with torch: what it brings itself is known from a run alone.
TORCH_OTHERS = """
import os, sys
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(50):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
own = os.path.dirname(os.__file__) + os.sep
files = {name: getattr(module, "__file__", None) or own for name, module in sys.modules.items()}
print(*sorted(name for name, file in files.items() if not file.startswith(own) or "-packages" in file), flush=True)
"""
LOOP = ["held.py", "sgd", "--steps", "150", "--width", "200", "--pause", "0.02"]
BARE = "an environment without carpool"
TURNS = 4  # enough to see that the two alternate


@pytest.fixture(scope="module")
def empty_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python of carpool's own version, in an environment with nothing installed."""
    place = tmp_path_factory.mktemp("empty")
    venv.EnvBuilder(symlinks=True).create(place)
    return str(place / "bin" / "python")


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
        assert (ended.code, [line for line in ended.err.splitlines() if "waits for its start" not in line]) == (0, [])
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
    if python is not BARE:
        node.environment.pop("PYTHONPATH", None)  # what the tests have there is for one torch
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
    assert (ended.code, [line for line in ended.err.splitlines() if "waits for its start" not in line]) == (0, [])
    assert ended.out == alone


def test_z11_a_python_with_nothing_installed_takes_turns_and_gets_nobody_elses_modules(
    node: Node, empty_python: str
) -> None:
    node.start()
    node.environment.pop("PYTHONPATH", None)
    for number, python in enumerate([empty_python, *newer_pythons()]):
        started = node.run(python, "-c", OTHERS, options=["--name", f"empty{number}"], stdin=subprocess.PIPE)
        started.wait_line("[] []")
        assert node.job(f"empty{number}")["steps"] >= 50
        assert node.turns(f"empty{number}") >= 1
        assert started.process.stdin is not None
        started.process.stdin.close()
        ended = started.wait()
        assert (ended.code, ended.err) == (0, "")


def test_z11_a_torch_program_gets_no_modules_but_carpools_and_those_that_torch_brings(
    node: Node, bare_python: str
) -> None:
    node.start()
    node.environment.pop("PYTHONPATH", None)
    program = [bare_python, "-c", TORCH_OTHERS]
    kept = {key: value for key, value in node.environment.items() if not key.startswith("CARPOOL")}
    alone = subprocess.run(program, env=kept, capture_output=True, text=True, timeout=200, check=True).stdout
    ended = node.run(*program, options=["--name", "torch"]).wait()
    assert (ended.code, ended.err) == (0, "")
    added = set(ended.out.decode().split()) - set(alone.split())
    assert {name for name in added if name.partition(".")[0] != "carpool"} <= {"sitecustomize"}
    assert {name for name in added if name.startswith("carpool.agent.turns")}, "it was hooked"
    assert node.job("torch")["steps"] == 50
