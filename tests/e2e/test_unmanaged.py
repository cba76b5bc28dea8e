"""A program that carpool cannot manage says so once, runs on as if alone, and is shown as that, with the reason."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import carpool
from tests.e2e.node import PYTHON, Node, Started, with_environment
from tests.e2e.pythons import old_pythons

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

WAITS = "import sys; sys.stdout.write('on it goes\\n'); sys.stdout.flush(); sys.stdin.read()"
HOOKLESS = "import sys\nsys.modules['carpool.agent.turns.torch_hooks'] = None\n"


def python_that_says(place: Path, words: str) -> str:
    """This Python, which takes itself for another one before carpool sees it."""
    venv.EnvBuilder(symlinks=True).create(place)
    (packages,) = place.glob("lib/python3*/site-packages")
    (packages / "another.pth").write_text(f"import sys; {words}\n")
    return str(place / "bin" / "python")


@pytest.fixture(scope="module")
def old_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return python_that_says(tmp_path_factory.mktemp("old"), "sys.version_info = (3, 8, 18, 'final', 0)")


def check_shown(node: Node, started: Started, name: str, reason: str) -> None:
    """The job is unmanaged, wherever one looks; its program is not disturbed."""
    started.wait_line("on it goes")
    job = node.wait_state(name, "unmanaged", seconds=20)
    sentence = f"{job['id']}: runs outside carpool's turns: {reason}"
    assert sentence in node.carpool("ps").lines
    assert node.carpool("explain", name).lines[0] == sentence
    assert json.loads(node.carpool("explain", name, "--json").out)["state"] == "unmanaged"
    assert started.process.stdin is not None
    started.process.stdin.close()
    ended = started.wait()
    assert (ended.code, ended.lines) == (0, ["on it goes"])
    assert ended.err == f"carpool: job {job['id']} runs unmanaged: {reason}\n"


def test_a_python_that_is_too_old_is_shown_as_unmanaged(node: Node, old_python: str) -> None:
    node.start()
    started = node.run(old_python, "-c", WAITS, options=["--name", "old"], stdin=subprocess.PIPE)
    check_shown(node, started, "old", "Python 3.8 is older than 3.11")


def test_real_old_pythons_are_shown_as_unmanaged(node: Node) -> None:
    found = old_pythons()
    if not found:
        pytest.skip("no Python older than 3.11 is here")
    node.start()
    node.environment["PYTHONPATH"] = ""  # what the tests have there is not for them
    for number, python in enumerate(found):
        started = node.run(python, "-c", WAITS, options=["--name", f"old{number}"], stdin=subprocess.PIPE)
        started.wait_line("on it goes")
        reason = node.wait_state(f"old{number}", "unmanaged", seconds=20)["reason"]
        assert reason.startswith("runs outside carpool's turns: "), python
        assert "is older than 3.11" in reason or "2.7" in python
        assert started.process.stdin is not None
        started.process.stdin.close()
        ended = started.wait()
        assert (ended.code, ended.err.count("\n")) == (0, 1), ended.err


ASKS = f"import carpool\nwith carpool.turn():\n    with carpool.turn(keep=False): pass\n{WAITS}"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            "sys.version_info = (3, 15, 2, 'final', 0)",
            "Python 3.15 is newer than 3.14; CARPOOL_ANY_VERSION=1 tries it all the same",
        ),
        ("sys.implementation.name = 'pypy'", "pypy is another Python than CPython, which is what carpool knows"),
        (
            "sys.abiflags = 't'",
            f"Python 3.{sys.version_info[1]} is built without its lock (free-threaded);"
            " CARPOOL_ANY_VERSION=1 tries it all the same",
        ),
    ],
    ids=["newer", "PyPy", "free-threaded"],
)
def test_z10_a_python_that_nobody_tried_runs_alone_and_its_own_calls_do_nothing(
    node: Node, tmp_path: Path, words: str, reason: str
) -> None:
    node.start()
    python = python_that_says(tmp_path / "other", words)
    started = node.run(python, "-c", ASKS, options=["--name", "other"], stdin=subprocess.PIPE)
    check_shown(node, started, "other", reason)


def test_z10_a_python_that_nobody_tried_takes_turns_if_its_user_wants_that(node: Node, tmp_path: Path) -> None:
    node.start()
    python = python_that_says(tmp_path / "newer", "sys.version_info = (3, 15, 2, 'final', 0)")
    loop = "import carpool, time\nwhile True:\n with carpool.turn(): time.sleep(0.01)"
    with with_environment(node, {"CARPOOL_ANY_VERSION": "1"}):
        node.run(python, "-c", loop, options=["--name", "newer"])
    node.wait_steps("newer", 20)
    assert node.state("newer") in ("running", "profiling")


def test_z10_a_torch_that_nobody_tried_runs_alone(node: Node, tmp_path: Path) -> None:
    node.start()
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '9.1.0+cu999'\n")
    with with_environment(node, {"PYTHONPATH": f"{tmp_path}:{node.environment['PYTHONPATH']}"}):
        program = f"import torch; {WAITS}"
        started = node.run(PYTHON, "-c", program, options=["--name", "late"], stdin=subprocess.PIPE)
    reason = "torch 9.1.0+cu999 is newer than 2.15; CARPOOL_ANY_VERSION=1 tries it all the same"
    check_shown(node, started, "late", reason)


def test_z10_a_checkpoint_is_not_gone_on_from_in_a_python_that_nobody_tried(old_python: str) -> None:
    """From the program's beginning is not what was asked for, and it would write over its files."""
    inject = Path(carpool.__file__).parent / "agent" / "inject"
    words = {"PYTHONPATH": str(inject), "CARPOOL_JOB": "x-1", "CARPOOL_REPLAY": "a.ckpt", "CARPOOL_RECORD": "1"}
    done = subprocess.run([old_python, "-c", "print('ran')"], env=words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "carpool: cannot go on from a.ckpt: Python 3.8 is older than 3.11\n"


def test_an_agent_that_cannot_be_loaded_is_shown_as_unmanaged(node: Node, tmp_path: Path) -> None:
    node.start()
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(HOOKLESS)
    with with_environment(node, {"PYTHONPATH": f"{tmp_path}:{node.environment['PYTHONPATH']}"}):
        program = f"import torch; {WAITS}"
        started = node.run(PYTHON, "-c", program, options=["--name", "broken"], stdin=subprocess.PIPE)
    reason = "ModuleNotFoundError: import of carpool.agent.turns.torch_hooks halted; None in sys.modules"
    check_shown(node, started, "broken", reason)


@pytest.mark.parametrize(
    ("options", "named"),
    [(["-I"], "option -I keeps"), (["-X", "utf8", "-Es"], "option -E keeps"), (["-S", "-u"], "option -S keeps")],
)
def test_a_python_whose_options_keep_carpool_out_is_shown_as_unmanaged(
    node: Node, options: list[str], named: str
) -> None:
    node.start()
    started = node.run(PYTHON, *options, "-c", WAITS, options=["--name", "closed"], stdin=subprocess.PIPE)
    letters = named.split()[1]
    reason = f"Python's {named} carpool out of the program; to take turns, run it without {letters}"
    check_shown(node, started, "closed", reason)
    assert [event["reason"] for event in node.journal("JobDetached")] == [reason]


def test_a_submitted_python_that_keeps_carpool_out_is_unmanaged_for_the_next_daemon_too(node: Node) -> None:
    node.start()
    job = node.submit(PYTHON, "-I", "-c", "import time; time.sleep(60)", options=["--name", "closed"])
    reason = node.wait_state("closed", "unmanaged", seconds=20)["reason"]
    assert reason.endswith("run it without -I")
    said = reason.replace("outside carpool's turns", "unmanaged")
    assert node.carpool("logs", job["id"]).lines == [f"carpool: job {job['id']} {said}"]
    node.kill_daemon()
    node.start()
    assert node.wait_state("closed", "unmanaged", seconds=20)["reason"] == reason


def test_a_python_that_keeps_carpool_out_takes_turns_where_it_asks_for_them_itself(node: Node) -> None:
    node.start()
    loop = "import carpool, time\nwhile True:\n with carpool.turn(): time.sleep(0.01)"
    node.run(PYTHON, "-I", "-c", loop, options=["--name", "asks"])
    node.wait_steps("asks", 20)
    assert node.state("asks") in ("running", "profiling")
    node.kill_daemon()
    node.start()
    node.wait_steps("asks", node.job("asks")["steps"] + 20)
    assert node.state("asks") in ("running", "profiling")


def test_what_an_old_launcher_starts_takes_turns_all_the_same(node: Node, old_python: str) -> None:
    node.start()
    loop = "import carpool, time\nwhile True:\n with carpool.turn(): time.sleep(0.01)"
    launcher = f"import subprocess; subprocess.run([{sys.executable!r}, '-c', {loop!r}])"
    node.run(old_python, "-c", launcher, options=["--name", "launched"])
    node.wait_steps("launched", 20)
    assert node.state("launched") in ("running", "profiling")
    node.kill_daemon()
    node.start()
    node.wait_steps("launched", node.job("launched")["steps"] + 20)
    assert node.state("launched") in ("running", "profiling")


def test_a_helper_that_takes_no_turns_changes_nothing_for_the_job_that_does(node: Node, old_python: str) -> None:
    node.start()
    program = (
        "import carpool, os, subprocess, time\n"
        "for step in range(1000000):\n"
        "    with carpool.turn():\n"
        "        if step == 50:\n"
        f"            subprocess.run([{old_python!r}, '-c', 'pass'])\n"
        "            print('helped', flush=True)\n"
        "        time.sleep(0.005)\n"
    )
    started = node.run(PYTHON, "-c", program, options=["--name", "helped"])
    started.wait_line("helped")
    node.wait_steps("helped", 100)
    assert "runs unmanaged: Python 3.8 is older than 3.11" in started.err
    assert node.state("helped") in ("running", "profiling")
    assert node.journal("JobDetached") == []
    assert node.turns("helped") == 1, "its turn was not taken from it"
