"""The daemon dies or is stopped while jobs run: no job restarts, no number changes, its successor takes over."""

from __future__ import annotations

import json
import time

import pytest

from tests.e2e.alone import Alone
from tests.e2e.node import Node, Started, is_alive, kill, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LOOP = ["plain_loop.py", "--width", "64"]
SLEEPER = "echo ready; exec sleep 60"


def run(node: Node, name: str, steps: int) -> Started:
    return node.run(*LOOP, "--steps", str(steps), options=["--name", name, "--memory", "250MiB"])


def expected(alone: Alone, steps: int) -> bytes:
    return alone.output(*LOOP, "--steps", str(steps))


def steps_of(started: Started) -> int:
    return len(started.lines)


def test_two_jobs_go_through_a_killed_and_restarted_daemon(node: Node, alone: Alone) -> None:
    steps = 3000
    node.start(quantum="20ms")
    jobs = {name: run(node, name, steps) for name in ("first", "second")}
    for name in jobs:
        node.wait_steps(name, 20)
    pids = {name: node.program_pid(name) for name in jobs}
    wait_until(lambda: "waiting" in (node.state("first"), node.state("second")), "one waits", every=0.001)
    node.kill_daemon()
    before = {name: steps_of(started) for name, started in jobs.items()}
    time.sleep(0.5)
    assert any(steps_of(started) > before[name] for name, started in jobs.items()), "the holder went on"
    node.start(quantum="20ms")

    for name, started in jobs.items():
        shown = node.job(name)
        assert shown["steps"] >= before[name] - 1, "the page knows its steps"
        assert node.program_pid(name) == pids[name]
        assert is_alive(pids[name])
        seen = steps_of(started)
        started.wait_lines(min(steps, seen + 100))
    for name, started in jobs.items():
        ended = started.wait()
        assert ended.code == 0
        assert ended.out == expected(alone, steps)
        assert ended.err == ""
        assert node.wait_state(name, "finished", "failed")["steps"] == steps
        assert node.turns(name) >= 3
    run_number = max(grant["run"] for grant in node.journal("GrantLease"))
    for name in jobs:
        after = [g for g in node.journal("GrantLease") if g["run"] == run_number and g["job"].startswith(name)]
        assert len(after) >= 3, "they take turns under the new daemon too"
    assert node.status()["devices"][0]["free_bytes"] == 4 << 30


def test_a_daemon_killed_again_and_again_costs_nobody_an_iteration(node: Node, alone: Alone) -> None:
    steps = 3000
    node.start(quantum="5ms")
    jobs = {name: run(node, name, steps) for name in ("first", "second")}
    for name in jobs:
        node.wait_steps(name, 5)
    for round_number in range(4):
        node.kill_daemon()
        time.sleep(0.05 * round_number)
        node.start(quantum="5ms")
        for started in jobs.values():
            started.wait_lines(min(steps, steps_of(started) + 30))
    for name, started in jobs.items():
        ended = started.wait()
        assert (ended.code, ended.err) == (0, "")
        assert ended.out == expected(alone, steps)
        assert node.wait_state(name, "finished", "failed")["steps"] == steps


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


def test_a_submitted_job_survives_a_daemon_that_dies_while_it_starts(node: Node) -> None:
    """Between the order to start and the program's first instruction lies the start of a runner."""
    node.start()
    marks = node.files / "marks"
    program = f"echo started once >> {marks}; {SLEEPER}"
    job = node.submit("/bin/sh", "-c", program, options=["--name", "early"])
    file = node.places.jobs / job["id"] / "job.json"
    began_without_program = json.loads(file.read_text())["child_pid"] == 0
    node.kill_daemon()
    assert began_without_program, "the daemon was killed too late for this test"
    node.start()
    wait_until(lambda: node.state("early") == "starting" and node.program_pid("early"), "it runs under the new one")
    assert is_alive(node.program_pid("early"))
    assert node.carpool("cancel", "early").code == 0
    node.wait_state("early", "cancelled")
    assert marks.read_text() == "started once\n"


def test_a_job_that_ends_while_no_daemon_runs_is_not_a_ghost_afterwards(node: Node) -> None:
    node.start()
    runs = node.run("/bin/sh", "-c", SLEEPER, options=["--name", "ghost"])
    runs.wait_line("ready")
    kept = node.submit("/bin/sh", "-c", SLEEPER, options=["--name", "kept-ghost", "--memory", "64MiB"])
    wait_until(lambda: node.state("kept-ghost") == "queued", "it queues behind the unknown one")
    node.kill_daemon()
    runs.process.terminate()
    assert runs.wait().code == 143
    node.start()
    assert node.state("ghost") == "unknown"
    assert node.wait_state("kept-ghost", "starting")["id"] == kept["id"]
    assert node.status()["devices"][0]["promised_bytes"] == 64 << 20


def test_a_stopped_daemon_stays_away_and_its_jobs_finish(node: Node, alone: Alone) -> None:
    steps = 2500
    node.start(quantum="20ms")
    jobs = {name: run(node, name, steps) for name in ("first", "second")}
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
        ended = started.wait()
        assert ended.code == 0
        assert ended.out == expected(alone, steps)
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
