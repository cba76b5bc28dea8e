"""A policy of one's own that fails, is slow or does not end: the daemon and its jobs go on, and it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.node import PYTHON, Node, wait_until

pytestmark = pytest.mark.timeout(120)

TURNS = """
import carpool, os, pathlib, sys, time
pathlib.Path(sys.argv[1], f"here-{os.getpid()}").touch()
while len(list(pathlib.Path(sys.argv[1]).glob("here-*"))) < 2:  # so that both want turns at once
    time.sleep(0.005)
for _ in range(60):
    with carpool.turn():
        time.sleep(0.005)
"""
POLICY = """
import sys, time
from carpool.policies import JobView, Policy, Rank

class Mine(Policy):
    name = "mine"
    quantum_ns = 10_000_000

    def rank(self, view: JobView, *, now: int) -> Rank:
        if view.name == "bad":
            {act}
        return (view.served_ns,)

    def why(self, chosen: JobView, over: JobView) -> str:
        return "it is mine"
"""
LINE = 11  # of what it does


def run_two(node: Node, directory: Path, act: str) -> str:
    """Two jobs under that policy to their ends; returns what the daemon says of the policy then."""
    path = directory / "mine.py"
    path.write_text(POLICY.format(act=act))
    node.start(policy=f"{path}:Mine")
    assert node.daemon is not None
    daemon = node.status()["pid"]
    program = [PYTHON, "-c", TURNS, str(directory)]
    jobs = [node.run(*program, options=["--name", name, "--memory", "64MiB"]) for name in ("good", "bad")]
    path.unlink()  # a daemon that runs needs its file no more
    for job in jobs:
        assert job.wait(seconds=60).code == 0
    for name in ("good", "bad"):
        assert node.wait_state(name, "finished", "failed")["steps"] == 60
    assert (node.status()["pid"], node.daemon.process.poll()) == (daemon, None)
    return str(node.status()["policy_trouble"])


@pytest.mark.parametrize(
    ("act", "fault"),
    [
        ("raise KeyError('my table')", "rank() raises KeyError: 'my table'"),
        ("sys.exit(7)", "rank() raises SystemExit: 7"),
        ("return 'first'", "a rank is 'first', not a tuple of whole numbers"),
    ],
)
def test_a_policy_that_fails_is_named_once_and_jobs_go_on(node: Node, tmp_path: Path, act: str, fault: str) -> None:
    said = run_two(node, tmp_path, act)
    assert said.startswith(f"policy mine failed: {fault}"), said
    if "raises" in fault:
        assert f"({tmp_path}/mine.py, line {LINE})" in said
    assert "from now on jobs go in the order in which they came" in said
    assert node.places.daemon_log.read_text().count("policy mine failed") == 1
    assert f"warning: {said}" in node.carpool("daemon", "status").lines


def test_a_policy_that_does_not_end_is_interrupted(node: Node, tmp_path: Path) -> None:
    said = run_two(node, tmp_path, "while True: pass")
    assert said.startswith("policy mine failed: rank() does not come to an end (it was at "), said
    assert f"{tmp_path}/mine.py, line {LINE} after 2 s" in said


def test_a_policy_that_is_slow_is_named_and_used(node: Node, tmp_path: Path) -> None:
    said = run_two(node, tmp_path, "time.sleep(0.06)")
    assert said.startswith("policy mine is slow: it took "), said
    log = node.places.daemon_log.read_text()
    assert (log.count("is slow"), log.count("failed")) == (1, 0)
    wait_until(lambda: f"warning: {said}" in node.carpool("daemon", "status").lines, "status says so", seconds=20)
