"""A queue that is released at once: every job runs once, few are starting at a time, and one daemon is there."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from carpool.calls import Spec
from tests.e2e.node import Node, is_alive, wait_until

JOBS = int(os.environ.get("RELEASED_JOBS", "24"))  # by hand and in `make chaos`: 2000
STARTS = 3
MIB = 1 << 20
RSS_GROWN_MAX = 64 * MIB  # while the queue runs; each of 2,000 jobs costs some KiB in the journal's memory
FDS_GROWN_MAX = 8
ZOMBIES_MAX = 8
PS_STARTS = 2 + JOBS * 0.9e-3  # what the command `carpool ps` takes, measured in starts of a Python with its modules
ANSWER_SECONDS = 0.02 + JOBS * 0.03e-3  # of processor time: one answer, when the daemon has all jobs
LOOKS = 5
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + JOBS)]


def most_starting(node: Node) -> int:
    """How many programs were being started at the same time, at most, as the journal has it."""
    changes = [(fact["at_ns"], 1, fact["job"]) for fact in node.journal("StartJob")]
    changes += [
        (fact["at_ns"], 0, fact["job"]) for kind in ("ProgramStarted", "JobExited") for fact in node.journal(kind)
    ]
    starting: set[str] = set()
    most = 0
    for _, is_start, job in sorted(changes):
        starting = starting | {job} if is_start else starting - {job}
        most = max(most, len(starting))
    return most


def descriptors(pid: int) -> list[int]:
    return [int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()]


def zombies(pid: int) -> int:
    """Children of the daemon that are over and not yet taken note of."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(not is_alive(int(child)) for child in children)


def queue_up(node: Node, ran: Path) -> None:
    """Jobs that write down that they ran, behind one that has all memory."""
    node.client.submit(["sleep", "10000"], spec=Spec(name="block", cap_bytes=4096 * MIB))
    for number in range(JOBS):
        program = ["/bin/sh", "-c", f"echo {number} >> {ran}; echo ran {number}"]
        node.client.submit(program, spec=Spec(name=f"j{number}", cap_bytes=MIB), environment=node.environment)


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def one_start_seconds() -> float:
    """Processor time of a Python that loads what the command loads: also a slow minute of the machine is in it."""
    before = children_seconds()
    subprocess.run([sys.executable, "-c", "import carpool.cli.main, carpool.cli.ps"], check=True, timeout=60)
    return children_seconds() - before


def check_looks(node: Node) -> None:
    """What `ps` of a whole queue costs. On a machine that is busy with starting it, a person waits several times as
    long as that."""
    before, began = float(node.status()["cpu_s"]), time.monotonic()
    for _ in range(LOOKS):
        assert len(node.client.ps().jobs) == JOBS + 1
    answer, waited = (float(node.status()["cpu_s"]) - before) / LOOKS, (time.monotonic() - began) / LOOKS
    start = one_start_seconds()
    before, began = children_seconds(), time.monotonic()
    shown = node.carpool("ps")
    command, took = children_seconds() - before, time.monotonic() - began
    start = max(start, one_start_seconds())
    print(f"ps of {JOBS}: daemon {answer:.3f} s of cpu ({waited:.2f} s), command {command:.2f} s ({took:.2f} s),")
    print(f"  a start alone {start:.2f} s of cpu")
    assert len(shown.lines) == 3 + 2 * JOBS  # two of the table's head, one of the job that runs
    assert answer <= ANSWER_SECONDS
    assert command <= start * PS_STARTS


def test_a_released_queue_runs_every_job_once_with_few_starting_at_a_time(node: Node, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    node.start(device="cpu:4GiB", starts=str(STARTS))
    queue_up(node, ran)
    pid, began, slowest = node.status()["pid"], time.monotonic(), 0.0
    before, fds = Path(f"/proc/{pid}/statm").read_text().split(), len(descriptors(pid))
    check_looks(node)
    node.client.cancel("block")
    said: set[str] = set()

    def is_over() -> bool:
        nonlocal slowest
        asked = time.monotonic()
        jobs = node.client.ps().jobs
        slowest = max(slowest, time.monotonic() - asked)
        said.update(job.reason for job in jobs if job.state == "queued")
        return not jobs

    wait_until(is_over, "all jobs are over", seconds=60 + JOBS)
    took, most = time.monotonic() - began, most_starting(node)
    print(f"{JOBS} jobs in {took:.1f} s, slowest ps {slowest:.2f} s, most starting {most}")
    assert Counter(ran.read_text().split()) == Counter(map(str, range(JOBS)))
    assert most <= STARTS
    assert node.status()["pid"] == pid
    grown = Path(f"/proc/{pid}/statm").read_text().split()
    assert (int(grown[1]) - int(before[1])) * os.sysconf("SC_PAGE_SIZE") < RSS_GROWN_MAX
    wait_until(lambda: len(descriptors(pid)) <= fds + FDS_GROWN_MAX, "its descriptors are closed")
    wait_until(lambda: zombies(pid) <= ZOMBIES_MAX, "its runners are reaped")
    assert f"waits for its start: {STARTS} programs are being started, and at most {STARTS} at once" in said


def test_a_job_waits_where_descriptors_are_short_and_runs_when_they_are_not(node: Node, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    node.start()
    pid = int(node.status()["pid"])
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = max(descriptors(pid))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 3, before[1]))  # for a connection and little more
    program = ["/bin/sh", "-c", f"echo ran >> {ran}"]
    node.client.submit(program, spec=Spec(name="late", cap_bytes=MIB), environment=node.environment)
    assert node.job("late")["state"] == "queued"
    assert node.job("late")["reason"].startswith("waits for its start: Too many open files")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    node.wait_state("late", "finished")
    assert ran.read_text() == "ran\n"
