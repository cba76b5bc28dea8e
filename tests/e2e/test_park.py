"""Suspended and resumed: memory leaves the device and comes back, and no number changes."""

from __future__ import annotations

import json
import re
import signal
import tempfile
import time
from pathlib import Path

import pytest

from tests.e2e.alone import Alone
from tests.e2e.node import PYTHON, Node, Started, is_alive, kill, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MIB = 1 << 20
SHAPES = ["sgd", "groups", "tied", "views", "half", "accumulation", "ema", "gan"]
STEPS = 120
ROUNDS = 2
BIG = ["held.py", "groups", "--width", "4500", "--steps", "1000000"]


def command(shape: str, steps: int = STEPS) -> list[str]:
    width = {"tied": "3000", "gan": "500"}.get(shape, "250")
    return ["held.py", shape, "--steps", str(steps), "--width", width, "--pause", "0.01"]


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def start(node: Node, name: str, *program: str) -> Started:
    return node.run(*program, options=["--name", name])


def suspend(node: Node, name: str) -> dict[str, object]:
    done = node.carpool("suspend", "--json", name)
    assert done.code == 0, done.err
    job: dict[str, object] = json.loads(done.out)
    if job["state"] == "idle":  # on a crowded machine it rested longer than the command waits
        return node.wait_state(name, "parked")
    assert job["state"] == "parked", job
    return job


def resume(node: Node, name: str) -> None:
    done = node.carpool("resume", name)
    assert done.code == 0, done.err


def test_pages_kept_for_the_next_move_are_shown_beside_the_budget(node: Node) -> None:
    if not Path("/dev/shm").is_dir():
        pytest.skip("no tmpfs to put a store into")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        node.start(park_to=directory)
        job = start(node, "a", *command("groups", 1_000_000))
        node.wait_steps("a", 5)
        moved = int(str(suspend(node, "a")["parked_bytes"]))
        away = node.status()
        assert (away["host_bytes"], away["kept_bytes"]) == (moved, 0)
        resume(node, "a")
        node.wait_steps("a", node.job("a")["steps"] + 5)
        back = node.status()
        assert (back["host_bytes"], moved <= back["kept_bytes"] < moved + 4 * MIB) == (0, True), back["kept_bytes"]
        assert "beside that, jobs that are back keep " in node.carpool("daemon", "status").out.decode()
        job.process.terminate()
        assert job.wait().code == 143


def test_t2_every_shape_gives_the_same_numbers_suspended_resumed_and_shared(node: Node, alone: Alone) -> None:
    """Four at a time share the device; each is suspended and resumed again and again on its way."""
    node.start(quantum="20ms")
    for number, batch in enumerate((SHAPES[:4], SHAPES[4:])):
        enough = node.files / f"enough{number}"
        jobs = {shape: start(node, shape, *command(shape, 1_000_000), "--until", str(enough)) for shape in batch}
        for shape in batch:  # all of them at once
            node.wait_steps(shape, 5)
            suspend(node, shape)
        for shape in batch:
            resume(node, shape)
        for shape, job in [*jobs.items()] * ROUNDS:  # one among others that go on
            node.wait_steps(shape, node.job(shape)["steps"] + 5)
            node.client.call("suspend", job=shape)  # as the command does it, without the start of a Python
            node.wait_state(shape, "parked")
            before = len(job.lines)
            time.sleep(0.05)
            assert len(job.lines) == before
            node.client.call("resume", job=shape)
        enough.touch()
        for shape, job in jobs.items():
            ended = job.wait()
            assert (ended.code, ended.err) == (0, "")
            assert ended.out == alone.same_steps(ended.out, *command(shape)), shape
    parked = [event["job"].rpartition("-")[0] for event in node.journal("JobParked")]
    assert {shape: parked.count(shape) for shape in SHAPES} == dict.fromkeys(SHAPES, 1 + ROUNDS)
    assert node.status()["devices"][0]["free_bytes"] == 4 << 30


def test_a_suspended_job_frees_its_memory_and_others_use_it(node: Node) -> None:
    node.start(device="cpu:1200MiB")
    start(node, "big", *BIG)
    node.wait_state("big", "running")
    wait_until(lambda: node.job("big")["needs"], "it is measured")
    pid = node.program_pid("big")
    before, counted = resident_bytes(pid), node.job("big")
    needs = counted["needs"]
    job = suspend(node, "big")
    moved, left = int(str(job["parked_bytes"])), int(str(job["live_bytes"]))
    held = int(counted["live_bytes"]) - needs["overhead_bytes"]
    assert moved >= 600 * MIB
    assert left - needs["overhead_bytes"] <= 0.05 * held, (left, needs, held)
    assert resident_bytes(pid) <= before - 0.9 * moved, "the operating system has it back"
    device = node.status()["devices"][0]
    assert device["promised_bytes"] == job["promised_bytes"] == left
    assert device["lanes"] == []
    second = start(node, "second", "held.py", "groups", "--width", "4500", "--steps", "3")
    assert second.wait().code == 0
    assert "carpool resume" in node.job("big")["reason"]
    resume(node, "big")
    steps = node.job("big")["steps"]
    node.wait_steps("big", steps + 5)


def test_a_parked_job_can_be_killed_and_leaves_nothing(node: Node) -> None:
    node.start()
    job = start(node, "gone", *command("sgd", 100000))
    node.wait_steps("gone", 5)
    suspend(node, "gone")
    kill(node.program_pid("gone"))
    assert job.wait().code == 137
    node.wait_state("gone", "failed")
    status = node.status()["devices"][0]
    assert (status["free_bytes"], status["lanes"]) == (4 << 30, [])
    assert node.ps()["host_bytes"] == 0
    assert list(node.places.parked.iterdir()) == [], "the store has no name"


def test_a_job_stays_parked_while_the_daemon_dies_and_goes_on_where_it_was(node: Node, alone: Alone) -> None:
    node.start()
    job = start(node, "kept", *command("groups"))
    node.wait_steps("kept", 5)
    before = suspend(node, "kept")
    lines = len(job.lines)
    for _ in range(2):
        node.kill_daemon()
        time.sleep(0.3)
        node.start()
        adopted = node.job("kept")
        assert (adopted["state"], adopted["is_suspended"]) == ("parked", True)
        assert adopted["parked_bytes"] == before["parked_bytes"]
        time.sleep(0.3)
        assert len(job.lines) == lines, "it does not compute"
    resume(node, "kept")
    ended = job.wait()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == alone.output(*command("groups"))


def test_a_job_is_brought_back_when_the_daemon_never_returns(node: Node, alone: Alone) -> None:
    node.start()
    job = start(node, "orphan", *command("gan"))
    node.wait_steps("orphan", 5)
    suspend(node, "orphan")
    assert node.carpool("daemon", "stop", "--force").code == 0
    ended = job.wait()
    assert ended.code == 0
    assert ended.out == alone.output(*command("gan"))
    assert "goes on without taking turns" in ended.err


def test_a_full_disk_leaves_the_job_where_it_is_with_the_reason(node: Node, alone: Alone) -> None:
    """A limit on the size of files stands in for the disk."""
    node.start()
    limited = f"ulimit -f 1024; exec {PYTHON} {' '.join(command('sgd'))}"
    job = node.run("/bin/sh", "-c", limited, options=["--name", "full"])
    node.wait_steps("full", 5)
    done = node.carpool("suspend", "full")
    assert done.code == 0
    assert "still on cpu: its memory could not be copied" in done.out.decode()
    lines = len(job.lines)
    time.sleep(0.3)
    assert len(job.lines) == lines, "it is stopped all the same"
    assert node.job("full")["parked_bytes"] == 0
    resume(node, "full")
    ended = job.wait()
    assert ended.out == alone.output(*command("sgd"))


def test_k1_an_interrupt_of_a_parked_program_finds_its_tensors(node: Node) -> None:
    """Its own handler saves a checkpoint while the program is suspended; then Ctrl-C ends it."""
    node.start()
    script = node.files / "saves.py"
    script.write_text(SAVES)
    job = node.run(str(script), options=["--name", "saves"])
    node.wait_steps("saves", 5)
    suspend(node, "saves")
    pid = node.program_pid("saves")
    kill(pid, signal.SIGUSR1)
    job.wait_line("saved")
    assert node.state("saves") == "parked"
    kill(pid, signal.SIGINT)
    ended = job.wait()
    assert "interrupted, weights are there: True" in ended.out.decode(), ended.err
    wait_until(lambda: not is_alive(pid), "it ended")


def test_k2_a_program_whose_threads_might_touch_tensors_is_not_parked(node: Node) -> None:
    node.start()
    script = node.files / "threads.py"
    script.write_text(THREADS)
    start(node, "threads", str(script))
    node.wait_steps("threads", 5)
    done = node.carpool("suspend", "threads")
    assert "its thread watcher might touch its tensors" in done.out.decode()
    resume(node, "threads")
    steps = node.job("threads")["steps"]
    node.wait_steps("threads", steps + 5)


def test_k2_a_program_that_says_which_thread_computes_is_parked_until_another_one_does(node: Node) -> None:
    node.start()
    script = node.files / "declared.py"
    script.write_text(DECLARED)
    job = start(node, "declared", str(script))
    node.wait_steps("declared", 5)
    suspend(node, "declared")
    resume(node, "declared")
    node.wait_steps("declared", node.job("declared")["steps"] + 5)
    kill(node.program_pid("declared"), signal.SIGUSR1)
    job.wait_line("the watcher computed")
    done = node.carpool("suspend", "declared")
    assert "its thread watcher computes, and the program said that it does not" in done.out.decode()
    resume(node, "declared")
    node.wait_steps("declared", node.job("declared")["steps"] + 5)
    job.process.terminate()
    said = job.wait().err
    assert said.count("thread watcher computes, but was not named in carpool.only_these_threads_compute()") == 1, said


def test_what_cannot_be_suspended_is_refused_in_words(node: Node) -> None:
    node.start()
    done = node.carpool("suspend", "nobody")
    assert done.code == 2
    assert "no job 'nobody' is running or queued" in done.err
    start(node, "a", *command("sgd", 100000))
    node.wait_steps("a", 5)
    assert "is not suspended" in node.carpool("resume", "a").err


def test_the_wall_time_of_a_parked_job_is_explained_to_the_last_second(node: Node) -> None:
    node.start(quantum="20ms")
    began = time.monotonic_ns()
    first = start(node, "first", *command("sgd", 150))
    second = start(node, "second", *command("sgd", 150))
    for name in ("first", "second"):
        node.wait_steps(name, 5)
    suspend(node, "first")
    time.sleep(1.0)
    resume(node, "first")
    assert (first.wait().code, second.wait().code) == (0, 0)
    outside = time.monotonic_ns() - began
    node.wait_state("first", "finished")
    explained = json.loads(node.carpool("explain", "--json", "first").out)
    spent = explained["spent_ns"]
    at = {kind: [e["at_ns"] for e in node.journal(kind) if e["job"] == explained["id"]] for kind in SPAN}
    wall = at["JobExited"][0] - at["JobSubmitted"][0]
    assert abs(sum(spent.values()) - wall) <= 0.02 * wall
    assert wall <= outside
    assert spent["parked"] >= 900_000_000
    assert spent["move"] > 0 and spent["run"] > 0 and spent["start"] > 0
    assert list(explained["waited_for_ns"]) == [node.job("second")["id"]]
    said = node.carpool("explain", "first").out.decode()
    assert " instead of " in said and "waiting for job second-" in said


SPAN = ("JobSubmitted", "JobExited")

SAVES = """
import signal, time, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(500, 500)
optimizer = torch.optim.Adam(model.parameters())
signal.signal(signal.SIGUSR1, lambda *_: print("saved", model.weight.sum().item(), flush=True))
try:
    while True:
        optimizer.zero_grad()
        model(torch.randn(4, 500)).mean().backward()
        optimizer.step()
        time.sleep(0.005)
except KeyboardInterrupt:
    print("interrupted, weights are there:", bool(torch.isfinite(model.weight).all()), flush=True)
"""

THREADS = """
import threading, time, torch
from torch import nn
torch.set_num_threads(1)
model = nn.Linear(500, 500)
optimizer = torch.optim.Adam(model.parameters())
def look():
    while True:
        model.weight.sum().item()
        time.sleep(0.001)
threading.Thread(target=look, name="watcher", daemon=True).start()
while True:
    optimizer.zero_grad()
    model(torch.randn(4, 500)).mean().backward()
    optimizer.step()
    time.sleep(0.005)
"""

DECLARED = """
import signal, threading, time, torch, carpool
from torch import nn
torch.set_num_threads(1)
model = nn.Linear(500, 500)
optimizer = torch.optim.Adam(model.parameters())
asked = threading.Event()
signal.signal(signal.SIGUSR1, lambda number, frame: asked.set())
def look():
    asked.wait()
    model(torch.randn(4, 500))
    print("the watcher computed", flush=True)
    time.sleep(1000)
threading.Thread(target=look, name="watcher", daemon=True).start()
carpool.take_turns_here()
carpool.only_these_threads_compute()
while True:
    optimizer.zero_grad()
    model(torch.randn(4, 500)).mean().backward()
    optimizer.step()
    time.sleep(0.005)
"""


def test_what_a_program_shares_with_others_stays_and_every_alias_sees_the_same_numbers(
    node: Node, alone: Alone
) -> None:
    node.start()
    job = start(node, "a", "aliases.py", "60", "0.05")
    for steps in (5, 20):
        node.wait_steps("a", steps)
        reason = str(suspend(node, "a")["reason"])
        assert "320 KiB of its tensors stays there because the program gave it away (DLPack in aliases.py:" in reason
        assert int(node.job("a")["parked_bytes"]) >= 400 * 400 * 4, "the weights leave"
        resume(node, "a")
    ended = job.wait()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == alone.output("aliases.py", "60", "0")


def test_k2_a_program_with_a_raw_thread_stays_where_it_is_and_goes_on(node: Node) -> None:
    node.start()
    job = start(node, "a", "raw_thread.py", "60")
    node.wait_steps("a", 5)
    node.client.call("suspend", job="a")
    look = "suspended with .* still on cpu: a thread that Python's threading does not know .* might touch its tensors"
    wait_until(lambda: re.search(look, str(node.job("a")["reason"])), "it says what is in the way")
    resume(node, "a")
    ended = job.wait()
    assert (ended.code, ended.err, ended.lines[-1]) == (0, "", "done 60.0")


def test_p6_a_job_with_no_park_is_stopped_by_suspend_and_keeps_its_memory(node: Node) -> None:
    node.start()
    job = node.run(*command("sgd", 1_000_000), options=["--name", "a", "--no-park"])
    node.wait_steps("a", 5)
    done = node.carpool("suspend", "a")
    assert "it was started with --no-park and keeps its memory on the device" in done.out.decode() + done.err
    before = len(job.lines)
    found = node.job("a")
    assert (found["state"], found["parked_bytes"]) == ("waiting", 0)
    resume(node, "a")
    job.wait_lines(before + 5)
    job.process.terminate()
    assert job.wait().code == 143
