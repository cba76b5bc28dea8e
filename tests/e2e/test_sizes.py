"""Answers and logs of any size: no list is too long for its reader, and no log for the memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.e2e.node import CARPOOL, PYTHON, Node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
WORDS = ["x" * 100_000] * 15
REST = "import time; time.sleep(600)"
LOG_BYTES = 256 << 20
LOGS_KIB_MAX = 50_000


def test_jobs_with_megabytes_of_arguments_do_not_break_the_lists(node: Node) -> None:
    node.start()
    started = [node.client.submit([PYTHON, "-c", REST, *WORDS]).job.id for _ in range(3)]
    for command in (["ps"], ["ps", "--all"], ["ps", "--json"], ["top", "--count", "1"]):
        done = node.carpool(*command)
        assert done.code == 0, (command, done.err)
        assert all(job in done.out.decode() for job in started), command
    argv = {job.id: job.argv for job in node.client.jobs()}
    assert all(words[:3] == [PYTHON, "-c", REST] and len(str(words)) < 6000 for words in argv.values())
    assert argv[started[0]][-1].startswith("… 15 more, 1.4")
    assert node.client.job(started[0]).argv[3:] == WORDS, "whole where one job is asked for"
    for job in started:
        node.client.cancel(job)
        node.wait_state(job, "cancelled")
    ended = node.ps()["jobs"]
    assert [job["id"] for job in ended] == started
    assert all(job["argv"][-1].startswith("… 15 more") for job in ended)


def log_of(node: Node, size: int) -> tuple[str, Path]:
    """A job that is over, and its log made as long as that: a hole, and a line at its end."""
    job = node.submit(PYTHON, "-c", "print('begins')")["id"]
    node.wait_state(job, "finished")
    path = node.client.log_path(job)
    with path.open("r+b") as file:
        file.seek(size)
        file.write(b"the last line\n")
    return job, path


@pytest.mark.parametrize("follow", [[], ["-f"]], ids=["logs", "logs -f"])
def test_a_log_is_printed_piece_by_piece(node: Node, follow: list[str]) -> None:
    node.start()
    job, path = log_of(node, LOG_BYTES)
    done = subprocess.run(
        [PYTHON, "-c", PEAK, CARPOOL, "logs", *follow, job],
        env=node.environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    peak_kib, size, tail = done.stdout.split(maxsplit=2)
    assert (int(size), tail) == (path.stat().st_size, "the last line\n"), done.stderr
    assert int(peak_kib) < LOGS_KIB_MAX


# Runs a command, counts what it prints, and says its largest resident size in KiB, the count and the last line.
PEAK = """
import resource, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
count, tail = 0, b""
while piece := child.stdout.read(1 << 20):
    count, tail = count + len(piece), (tail + piece)[-100:]
assert child.wait() == 0
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, count, tail.rpartition(bytes(1))[2].decode(), end="")
"""
