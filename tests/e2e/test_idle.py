"""A daemon for which there is nothing to do does nothing: no loop of its own wakes it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.node import PYTHON, Node, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

WATCHED_SECONDS = 12.0  # longer than the daemon's longest pause between two notes of its jobs' accounts
SETTLE_SECONDS = 2.0  # the journal is written half a second after the last thing that happened
SLEEPER = """
import carpool, time
for _ in range(9):
    with carpool.turn():
        pass
print("rests", flush=True)
time.sleep(900)
"""
GROWER = """
import carpool, time
with carpool.turn():
    pass
time.sleep(3)
print(time.monotonic_ns(), flush=True)
try:
    bytearray(64 << 20)
except MemoryError:
    print("refused", flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What a process has done so far, as the kernel counts it."""

    switches: int  # how often one of its threads went to sleep by itself: once for each time it was woken
    cpu_s: float

    @classmethod
    def of(cls, pid: int) -> Effort:
        switches = 0
        for task in Path(f"/proc/{pid}/task").iterdir():
            words = (task / "status").read_text().split()
            switches += int(words[words.index("voluntary_ctxt_switches:") + 1])
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return cls(switches=switches, cpu_s=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))

    def since(self, earlier: Effort) -> Effort:
        return Effort(switches=self.switches - earlier.switches, cpu_s=self.cpu_s - earlier.cpu_s)


def noted_ns(node: Node) -> int:
    """When the daemon last wrote that its jobs do what they did; read past the daemon."""
    with contextlib.closing(sqlite3.connect(f"file:{node.places.journal}?mode=ro", uri=True)) as db:
        return int(db.execute("select max(at_ns) from noted").fetchone()[0])


def test_a_daemon_without_jobs_sleeps_and_one_with_two_idle_jobs_hardly_wakes(node: Node) -> None:
    empty = Node()
    try:
        for each in (empty, node):
            each.start()
            assert each.daemon is not None
        for name in ("first", "second"):
            node.run(PYTHON, "-c", SLEEPER, options=["--name", name]).wait_line("rests")
        wait_until(lambda: len(node.holders()) <= 1 and node.state("first") == "idle", "they rest")
        assert empty.run("/bin/true").wait().code == 0
        wait_until(lambda: not empty.ps(ended=False)["jobs"], "it had a job, and has none")
        time.sleep(SETTLE_SECONDS)
        pids = [each.daemon.pid for each in (empty, node) if each.daemon is not None]
        before, noted = [Effort.of(pid) for pid in pids], noted_ns(empty)
        time.sleep(WATCHED_SECONDS)
        without, with_two = (Effort.of(pid).since(earlier) for pid, earlier in zip(pids, before, strict=True))
        assert noted_ns(empty) == noted, "nothing to note, nothing written"
    finally:
        empty.close()
    print(f"without jobs {without}, with two that rest {with_two}")
    assert without.switches <= 15 and without.cpu_s <= 0.2
    assert with_two.switches <= 30 and with_two.cpu_s <= 0.4


def test_an_allocation_that_waits_in_an_idle_job_is_heard_though_nobody_looks(node: Node) -> None:
    node.start()
    node.run(PYTHON, "-c", SLEEPER, options=["--name", "rests"]).wait_line("rests")
    options = ["--name", "grows", "--memory", "32MiB", "--wait-memory", "2s"]
    ended = node.run(PYTHON, "-c", GROWER, options=options).wait()
    assert ended.lines[1:] == ["refused"], ended
    assert "waited 2.0 s, as long as --wait-memory allows" in ended.err, "it was the daemon that counted"
    waits = [event["at_ns"] for event in node.journal("ProgressSeen") if event["pending_bytes"]]
    assert 0 < min(waits) - int(ended.lines[0]) < 10**9
