"""The daemon dies or is stopped while jobs run: no job restarts, no number changes, its successor takes over."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from tests.e2e.alone import Alone
from tests.e2e.node import PYTHON, Node, Started, is_alive, kill, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LOOP = ["held.py", "sgd", "--width", "64", "--pause", "0.005"]
TORCHRUN = str(Path(PYTHON).parent / "torchrun")
SLEEPER = "echo ready; exec sleep 60"


def run(node: Node, name: str, *more: str) -> Started:
    return node.run(*LOOP, "--steps", "1000000", *more, options=["--name", name, "--memory", "250MiB"])


def test_jobs_go_through_a_daemon_that_is_killed_again_and_again(node: Node, alone: Alone) -> None:
    """A plain job and one of two ranks, which must stop together or wait for each other for ever."""
    node.start(quantum="10ms")
    enough = node.files / "enough"
    ddp = ["ddp.py", "--steps", "1000000", "--pause", "0.015", "--until", str(enough)]
    node.environment["OMP_NUM_THREADS"] = "2"  # torchrun would choose 1
    node.use_whole_torch()  # distributed training asks the compiler for its settings
    options = ["--name", "ranks", "--memory", "700MiB"]
    jobs = {
        "plain": run(node, "plain"),
        "ranks": node.run(TORCHRUN, "--standalone", "--nproc-per-node", "2", *ddp, options=options),
    }
    for name in jobs:
        node.wait_steps(name, 10)
    pids = {name: node.job(name)["pids"] for name in jobs}

    def one_waits() -> bool:
        states = [node.state(name) for name in jobs]
        assert "finished" not in states, "it ended before the test did"
        return "waiting" in states

    for _ in range(3):
        wait_until(one_waits, "one waits", every=0.001)
        node.kill_daemon()
        before = {name: len(started.lines) for name, started in jobs.items()}
        time.sleep(0.2)
        node.start(quantum="10ms")
        assert node.job("plain")["steps"] >= before["plain"] - 1, "the page knows its steps"
        for name, started in jobs.items():
            assert set(pids[name]) <= set(node.job(name)["pids"]), "the same processes as before"
            started.wait_lines(before[name] + 25)
    enough.touch()
    ended = jobs["ranks"].wait()
    assert ended.code == 0, ended.err
    steps = str(node.wait_state("ranks", "finished", "failed")["steps"])
    lines = jobs["plain"].lines
    assert jobs["plain"].err == ""
    jobs["plain"].process.terminate()
    assert jobs["plain"].wait().code == 143
    assert node.wait_state("plain", "cancelled", "failed")["steps"] >= len(lines) - 1
    assert sorted(ended.out.splitlines()) == sorted(alone.output("ddp.py", "--steps", steps, ranks=2).splitlines())
    compared = min(2000, len(lines))
    truth = alone.output(*LOOP, "--steps", str(compared)).decode().splitlines()
    assert lines[:compared] == truth[:compared]

    last = max(grant["run"] for grant in node.journal("GrantLease"))
    turns = [grant["job"].partition("-")[0] for grant in node.journal("GrantLease") if grant["run"] == last]
    assert min(turns.count("plain"), turns.count("ranks")) >= 2, "they take turns under the newest daemon too"
    assert node.status()["devices"][0]["free_bytes"] == 4 << 30


def test_the_queue_survives_the_daemon(node: Node) -> None:
    node.start(device="cpu:1GiB")
    holder = node.run("/bin/sh", "-c", SLEEPER, options=["--name", "holder", "--memory", "1GiB"])
    holder.wait_line("ready")
    submitted = node.submit("/bin/sh", "-c", "echo from the queue", options=["--name", "kept", "--memory", "1GiB"])
    foreground = node.run("/bin/sh", "-c", "echo my turn", options=["--name", "typed", "--memory", "1GiB"])
    node.wait_state("typed", "queued")
    assert submitted["state"] == "queued"
    pid = node.program_pid("holder")
    node.kill_daemon()
    node.start(device="cpu:1GiB")
    assert node.wait_state("holder", "starting")["promised_bytes"] == 1 << 30
    assert node.state("kept") == "queued"
    node.wait_state("typed", "queued")
    assert is_alive(pid)
    holder.process.terminate()
    assert holder.wait().code == 143
    ended = foreground.wait()
    assert (ended.code, ended.out) == (0, b"my turn\n")
    node.wait_state("kept", "finished")
    assert node.carpool("logs", "kept").lines == ["from the queue"]
    assert list(node.places.jobs.iterdir()) == []


SLOW_RUNNER = """
import os, sys, time
deadline = time.monotonic() + 60
while "carpool.cli.runner" in sys.orig_argv and not os.path.exists({go!r}) and time.monotonic() < deadline:
    time.sleep(0.01)
"""


@pytest.fixture
def starting(node: Node) -> tuple[Path, Path]:
    """A submitted job whose runner is held before its first line, and a daemon killed at that moment; returns the
    file that lets runners go and the one to which the program writes."""
    go, marks, slow = node.files / "go", node.files / "marks", node.files / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(SLOW_RUNNER.format(go=str(go)))
    node.environment["PYTHONPATH"] = f"{slow}:{node.environment.get('PYTHONPATH', '')}"
    node.start()
    program = f"echo started once >> {marks}; {SLEEPER}"
    node.submit("/bin/sh", "-c", program, options=["--name", "early"])
    assert node.program_pid("early") == 0, "its runner has not started it"
    node.kill_daemon()
    return go, marks


def check_it_runs_once(node: Node, marks: Path) -> None:
    node.wait_state("early", "starting")
    wait_until(lambda: node.program_pid("early") and marks.exists(), "it runs under the new one")
    assert is_alive(node.program_pid("early"))
    assert node.carpool("cancel", "early").code == 0
    node.wait_state("early", "cancelled")
    assert marks.read_text() == "started once\n"


@pytest.mark.parametrize("comes", ["while no daemon is there", "to the next daemon"])
def test_a_submitted_job_survives_a_daemon_that_dies_while_it_starts(
    node: Node, starting: tuple[Path, Path], comes: str
) -> None:
    """Between the order to start and the program's first instruction lies the start of a runner."""
    go, marks = starting
    if comes == "to the next daemon":
        node.start()
        go.touch()
    else:
        go.touch()
        time.sleep(0.8)  # it knocks every 0.2 s, and starts a daemon itself after 2 s
        node.start()
    check_it_runs_once(node, marks)


def test_a_job_whose_daemon_died_before_it_noted_the_runner_runs_once(
    node: Node, starting: tuple[Path, Path]
) -> None:
    go, marks = starting
    (directory,) = node.places.jobs.iterdir()
    file = directory / "job.json"
    text = json.loads(file.read_text())
    assert is_alive(text["runner_pid"])
    file.write_text(json.dumps({**text, "runner_pid": 0}))
    node.start()
    node.wait_state("early", "starting")
    assert json.loads(file.read_text())["runner_pid"] not in (0, text["runner_pid"]), "there are two now"
    go.touch()
    check_it_runs_once(node, marks)
    wait_until(lambda: not is_alive(text["runner_pid"]), "the one that was too many left")


def test_a_job_that_runs_outside_the_turns_is_taken_back_as_that(node: Node, tmp_path: Path) -> None:
    node.start()
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '0.0-stand-in'\n")
    node.environment["PYTHONPATH"] = f"{tmp_path}:{node.environment['PYTHONPATH']}"
    program = "import time, torch; print('ready', flush=True); time.sleep(300)"
    job = node.run(PYTHON, "-c", program, options=["--name", "odd"])
    job.wait_line("ready")
    before = node.wait_state("odd", "unmanaged")
    node.kill_daemon()
    node.start()
    after = node.job("odd")
    assert (after["state"], after["pids"]) == ("unmanaged", before["pids"])
    reason = "runs outside carpool's turns: torch 0.0-stand-in could not be hooked"
    assert after["reason"].startswith(reason) and before["reason"].startswith(reason)
    job.process.terminate()
    assert job.wait().code == 143


def test_a_job_that_ends_while_no_daemon_runs_is_not_a_ghost_afterwards(node: Node) -> None:
    node.start()
    runs = node.run("/bin/sh", "-c", SLEEPER, options=["--name", "ghost", "--memory", "4GiB"])
    runs.wait_line("ready")
    kept = node.submit("/bin/sh", "-c", SLEEPER, options=["--name", "kept-ghost", "--memory", "64MiB"])
    wait_until(lambda: node.state("kept-ghost") == "queued", "there is no room for it")
    node.kill_daemon()
    runs.process.terminate()
    assert runs.wait().code == 143
    node.start()
    ghost = node.job("ghost")
    assert (ghost["state"], ghost["reason"]) == ("failed", "it ended while no daemon ran; ended by signal 15")
    assert node.wait_state("kept-ghost", "starting")["id"] == kept["id"]
    assert node.status()["devices"][0]["promised_bytes"] == 64 << 20


def test_a_submitted_job_that_ends_while_no_daemon_runs_keeps_its_exit_code_and_log(node: Node) -> None:
    node.start()
    mark = node.files / "go"
    program = f"echo ready; until [ -e {mark} ]; do sleep 0.05; done; echo done; exit 3"
    job = node.submit("/bin/sh", "-c", program, options=["--name", "gone"])
    wait_until(lambda: node.carpool("logs", "gone").lines == ["ready"], "it runs")
    assert node.carpool("daemon", "stop", "--force").code == 0
    mark.touch()
    wait_until(lambda: (node.places.jobs / job["id"] / "end.json").exists(), "its runner noted its end")
    node.start()
    ended = node.job("gone")
    assert (ended["state"], ended["reason"]) == ("failed", "it ended while no daemon ran; exit code 3")
    assert node.carpool("logs", "gone").lines == ["ready", "done"]
    assert list(node.places.jobs.iterdir()) == []


def test_the_daemon_that_a_run_brings_back_is_the_one_that_died(node: Node) -> None:
    node.start(policy="srtf", device="cpu:2x512MiB")
    kept = node.submit("/bin/sh", "-c", SLEEPER, options=["--name", "kept", "--memory", "64MiB"])
    node.wait_state("kept", "starting")
    wait_until(lambda: node.program_pid("kept"), "it runs")
    node.kill_daemon()
    assert node.carpool("run", "--", "true").code == 0
    status = node.status()
    assert (status["policy"], status["device"]) == ("srtf", "cpu:2x512MiB")
    assert node.job("kept")["id"] == kept["id"]


def test_jobs_of_a_device_that_is_gone_are_counted_on_another_of_its_kind(node: Node) -> None:
    node.start(device="cpu:2x512MiB")
    node.submit("/bin/sh", "-c", SLEEPER, options=["--name", "kept", "--memory", "64MiB", "--device", "cpu1"])
    wait_until(lambda: node.program_pid("kept"), "it runs")
    node.kill_daemon()
    node.start(device="cpu:1GiB")
    assert node.job("kept")["device"] == "cpu"
    assert node.status()["devices"][0]["promised_bytes"] == 64 << 20


def test_a_stopped_daemon_stays_away_and_its_jobs_finish(node: Node, alone: Alone) -> None:
    node.start(quantum="20ms")
    enough = node.files / "enough"
    jobs = {name: run(node, name, "--until", str(enough)) for name in ("first", "second")}
    for name in jobs:
        node.wait_steps(name, 20)
    polite = node.carpool("daemon", "stop")
    assert polite.code == 1
    assert polite.err.startswith("carpool: 2 jobs still run (")
    assert "; cancel them first, or stop with --force" in polite.err
    forced = node.carpool("daemon", "stop", "--force")
    assert (forced.code, forced.out) == (0, b"")
    assert node.daemon is not None
    assert node.daemon.process.wait(10) == 0
    for started in jobs.values():
        started.wait_lines(len(started.lines) + 20)
    enough.touch()
    for started in jobs.values():
        ended = started.wait()
        assert ended.code == 0
        assert ended.out == alone.same_steps(ended.out, *LOOP)
    assert not node.places.socket.exists(), "nobody brought the stopped daemon back"


def test_a_dead_daemon_is_brought_back_by_a_runner_that_needs_it(node: Node) -> None:
    node.start(device="cpu:1GiB")
    holder = node.run("/bin/sh", "-c", SLEEPER, options=["--name", "holder", "--memory", "1GiB"])
    holder.wait_line("ready")
    queued = node.run("/bin/sh", "-c", "echo my turn", options=["--name", "queued", "--memory", "1GiB"])
    node.wait_state("queued", "queued")
    node.kill_daemon()
    node.daemon = None
    status = node.wait_daemon()
    assert (status["device"], status["policy"]) == ("cpu:1GiB", "fair")
    kill(node.program_pid("holder"))
    assert queued.wait().out == b"my turn\n"


def test_a_daemon_that_a_runner_started_can_be_sent_any_signal(node: Node) -> None:
    """A runner blocks all that it passes on, and what it starts inherits that."""
    node.start()
    held = node.run("/bin/sh", "-c", SLEEPER, options=["--name", "held"])
    held.wait_line("ready")
    node.kill_daemon()
    node.daemon = None
    pid = node.wait_daemon()["pid"]
    [blocked] = re.findall(r"SigBlk:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    assert int(blocked, 16) == 0
    kill(node.program_pid("held"))
    assert held.wait().code == 137
