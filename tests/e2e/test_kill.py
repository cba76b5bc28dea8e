"""kill -9 at any moment: the bystander loses nothing, and the daemon's books are right at once."""

from __future__ import annotations

import functools
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.alone import Alone
from tests.e2e.node import PYTHON, Node, Started, is_alive, kill, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MS = 1_000_000
LEAST_NS_MAX = 100 * MS  # what is promised; the machine of a test may be busy with other things at most kills …
MEDIAN_NS_MAX, EACH_NS_MAX = 500 * MS, 1000 * MS  # … but not so busy
KEEPER = "import carpool\nwith carpool.turn():\n    while True: pass"  # never gives its turn back
TURNS = """
import carpool, select, sys, time
while not select.select([sys.stdin], [], [], 0.005)[0]:
    with carpool.turn():
        time.sleep(0.005)
"""
LOOP = ["held.py", "sgd", "--width", "64", "--pause", "0.005"]  # rests, as most of the time others import torch


def holds_turn(node: Node, job_id: str, *, wanted: bool) -> bool:
    return (job_id in node.holders()) == wanted


def run(node: Node, name: str, steps: int = 1_000_000) -> Started:
    return node.run(*LOOP, "--steps", str(steps), options=["--name", name, "--memory", "250MiB"])


def in_books(node: Node, name: str) -> bool:
    """Whether the daemon still counts anything for this job: bytes, a lane, a turn."""
    picture = node.ps(ended=False)
    lanes = [lane for device in picture["devices"] for lane in device["lanes"]]
    named = [job for lane in lanes for job in [*lane["jobs"], lane["holder"]] if job]
    live = [job["id"] for job in picture["jobs"]]
    return any(job.rpartition("-")[0] == name for job in [*named, *live])


def check_books(node: Node) -> None:
    """What is promised on each device is what its live jobs were promised."""
    picture = node.ps(ended=False)
    for device in picture["devices"]:
        promised = sum(job["promised_bytes"] for job in picture["jobs"] if job["device"] == device["id"])
        assert device["promised_bytes"] == promised
        lanes = sum(lane["bytes"] for lane in device["lanes"])
        assert device["free_bytes"] == device["capacity_bytes"] - promised - lanes


@dataclass(kw_only=True)
class Delays:
    """How long after a kill the daemon had done something, by its journal: both read one monotonic clock."""

    books_ns: list[int] = field(default_factory=list)  # the job was over, and nothing of it in the books
    grant_ns: list[int] = field(default_factory=list)  # the next job had the turn of a killed holder

    def check(self) -> None:
        for what, found in (("out of the books", self.books_ns), ("the next one's grant", self.grant_ns)):
            if found:
                print(f"{what} after {', '.join(f'{delay / MS:.1f}' for delay in sorted(found))} ms")
                assert min(found) <= LEAST_NS_MAX, what
                assert statistics.median(found) <= MEDIAN_NS_MAX, what
                assert max(found) <= EACH_NS_MAX, what


@pytest.fixture(scope="module")
def delays() -> Iterator[Delays]:
    """Of all kills of this file that were made."""
    made = Delays()
    yield made
    made.check()


def kill_and_measure(node: Node, name: str, pids: list[int], delays: Delays) -> int:
    """Kill these processes; returns when. The job must leave the books in time."""
    job_id = node.job(name)["id"]
    killed_ns = time.monotonic_ns()
    for pid in pids:
        kill(pid)
    wait_until(lambda: not in_books(node, name), f"{name} left the books", seconds=10)
    check_books(node)
    (exited,) = (event for event in node.journal("JobExited") if event["job"] == job_id)
    delays.books_ns.append(exited["at_ns"] - killed_ns)
    return killed_ns


def assert_prefix(started: Started, alone: Alone, lines: int) -> None:
    """Its first lines are those of a program that runs alone."""
    expected = alone.output(*LOOP, "--steps", str(lines)).splitlines()[:lines]
    assert started.out.splitlines()[:lines] == expected


def test_the_holder_and_the_waiting_job_die_and_nobody_else_notices(node: Node, alone: Alone, delays: Delays) -> None:
    node.start(quantum="20ms")
    survivor = run(node, "survivor")
    victims = [f"victim{number}" for number in range(4)]
    started = {name: run(node, name) for name in victims}
    for name in ["survivor", *victims]:
        node.wait_steps(name, 5)
    chance = random.Random(5)
    for number, name in enumerate(victims):
        pid, job_id = node.program_pid(name), node.job(name)["id"]
        time.sleep(chance.random() / 10)
        wants_holder = number % 2 == 0
        moment = functools.partial(holds_turn, node, job_id, wanted=wants_holder)
        wait_until(moment, "the right moment", every=0.001)
        kill_and_measure(node, name, [pid], delays)
        ended = started[name].wait()
        assert ended.code == 137
        assert node.state(name) == "failed"
        before = len(survivor.lines)
        survivor.wait_lines(before + 20)
    assert node.state("survivor") in ("running", "profiling")
    lines = min(1500, len(survivor.lines))
    survivor.process.terminate()
    survivor.wait()
    assert_prefix(survivor, alone, lines)
    wait_until(lambda: not in_books(node, "survivor"), "the survivor left the books too")
    assert node.status()["devices"][0]["free_bytes"] == 4 << 30


def test_the_turn_of_a_killed_holder_goes_to_the_next_at_once(node: Node, delays: Delays) -> None:
    node.start()
    names = [f"keeper{number}" for number in range(5)]
    for name in names:
        node.run(PYTHON, "-c", KEEPER, options=["--name", name, "--memory", "250MiB"])
    for name in names:
        node.wait_state(name, "waiting", "running", "profiling")
    for _ in names[1:]:
        (holder,) = wait_until(node.holders, "somebody has the turn")
        killed_ns = kill_and_measure(node, holder.rpartition("-")[0], [node.program_pid(holder)], delays)
        wait_until(node.holders, "the next one has it")
        grants = [grant["at_ns"] for grant in node.journal("GrantLease")]
        assert grants[-1] > killed_ns > grants[-2], "it was the holder that was killed"
        delays.grant_ns.append(grants[-1] - killed_ns)


def test_without_its_runner_a_program_goes_on_and_its_end_is_still_seen(
    node: Node, alone: Alone, delays: Delays
) -> None:
    node.start(quantum="20ms")
    orphan, other = run(node, "orphan"), run(node, "other")
    for name in ("orphan", "other"):
        node.wait_steps(name, 5)
    pid = node.program_pid("orphan")
    kill(orphan.pid)
    orphan.process.wait()
    steps = node.job("orphan")["steps"]
    node.wait_steps("orphan", steps + 50)
    assert is_alive(pid)
    assert node.turns("orphan") > 2
    kill_and_measure(node, "orphan", [pid], delays)
    assert "its runner was killed; exit code unknown" in node.job("orphan")["reason"]

    third = run(node, "third")
    node.wait_steps("third", 5)
    kill_and_measure(node, "third", [third.pid, node.program_pid("third")], delays)
    lines = min(600, len(other.lines))
    other.process.terminate()
    assert other.wait().code == 143
    assert_prefix(other, alone, lines)


@pytest.mark.parametrize("code", [0, 9], ids=["it finished", "it was killed"])
def test_a_stopped_runner_keeps_nothing_in_the_books_and_tells_the_exit_code_later(
    node: Node, delays: Delays, code: int
) -> None:
    node.start()
    name = "stopped"
    started = node.run(PYTHON, "-c", TURNS, options=["--name", name, "--memory", "250MiB"], stdin=subprocess.PIPE)
    node.wait_steps(name, 5)
    kill(started.pid, signal.SIGSTOP)
    assert started.process.stdin is not None
    if code:
        kill_and_measure(node, name, [node.program_pid(name)], delays)
    else:
        started.process.stdin.close()
        wait_until(lambda: not in_books(node, name), "it left the books", seconds=10)
    check_books(node)
    job = node.job(name)
    assert (job["state"], "its runner does not answer; exit code unknown" in job["reason"]) == ("failed", True)
    kill(started.pid, signal.SIGCONT)
    ended = started.wait()
    state, how, shown = ("failed", "ended by signal 9", 137) if code else ("finished", "exit code 0", 0)
    assert ended.code == shown
    wait_until(lambda: node.job(name)["reason"].startswith(f"{state}: {how}; had the device"), "its end is filled in")
    assert node.state(name) == state
    assert len(node.journal("JobExited")) == len(node.journal("CloseJob")) == 1, "it ended once"


@pytest.mark.parametrize("by_signal", [False, True], ids=["by carpool cancel", "by SIGTERM to the runner"])
def test_cancelling_a_shell_script_ends_the_program_it_started(node: Node, by_signal: bool) -> None:
    node.start()
    started = node.run("/bin/sh", "-c", "echo ready; sleep 60; echo after", options=["--name", "wrapped"])
    started.wait_line("ready")
    wait_until(lambda: len(node.job("wrapped")["pids"]) == 2, "the shell's child runs")
    (program,) = set(node.job("wrapped")["pids"]) - {node.program_pid("wrapped")}
    if by_signal:
        started.process.terminate()
    else:
        assert node.carpool("cancel", "wrapped").code == 0
    assert started.wait().code == 143
    assert node.wait_state("wrapped", "cancelled", "failed")["state"] == "cancelled"
    wait_until(lambda: not is_alive(program), "the program is gone too", seconds=8)


def test_a_killed_program_leaves_the_books_with_its_data_workers(node: Node, delays: Delays) -> None:
    """Workers look every 5 s whether their program lives; what they hold until then is counted."""
    node.start()
    program = ["dataloader.py", "--steps", "1000000", "--workers", "2"]
    node.run(*program, options=["--name", "loader", "--memory", "500MiB"])
    node.wait_steps("loader", 20)
    first, pids = node.program_pid("loader"), node.job("loader")["pids"]
    assert len(pids) >= 3
    kill(first)
    wait_until(lambda: (node.find("loader") or {}).get("orphans"), "its workers are orphans", seconds=4)
    assert node.status()["devices"][0]["live_bytes"] > 0
    kill_and_measure(node, "loader", sorted(set(pids) - {first}), delays)
    assert node.status()["devices"][0]["live_bytes"] == 0
    wait_until(lambda: not Path(node.places.jobs, "loader-1").exists(), "its directory is gone", seconds=10)
