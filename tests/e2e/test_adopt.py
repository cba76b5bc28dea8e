"""`carpool adopt`: a job for a program that somebody else starts (X10, X12, X13)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.e2e.joins import stop
from tests.e2e.node import CARPOOL, PYTHON, Node, Started, is_alive, wait_until

pytestmark = pytest.mark.timeout(240)
TURNS = """
import carpool, os, sys, time
print(os.environ["CARPOOL_JOB"], flush=True)
while not os.path.exists("stop"):
    with carpool.turn():
        time.sleep(0.002)
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


def shell(node: Node, text: str) -> Started:
    return Started(node, ["sh", "-c", text, "sh", CARPOOL, PYTHON, TURNS], cwd=node.files)


def test_what_is_started_with_the_printed_lines_is_the_job(node: Node) -> None:
    node.start()
    task = shell(node, 'eval "$("$1" adopt --name task --env --memory 1GiB)" && exec "$2" -c "$3" 4')
    node.wait_steps("task", 10)
    job = node.job("task")
    assert task.lines == [job["id"]] and job["pids"] == [task.pid]
    assert job["cap_bytes"] == 1 << 30 and job["limit_loss"] == ""
    stop(node)
    assert task.wait().code == 4
    assert "exit code 4" in node.wait_state("task", "failed")["reason"]


def test_x12_several_programs_with_the_same_lines_are_one_job_which_ends_with_the_last(node: Node) -> None:
    node.start()
    lines = node.carpool("adopt", "--name", "tasks", "--env").out.decode()
    words = dict(line.removeprefix("export ").split("=", 1) for line in lines.splitlines())
    node.environment |= words
    first = Started(node, [PYTHON, "-c", TURNS], cwd=node.files)
    second = Started(node, [PYTHON, "-c", TURNS.replace('"stop"', '"last"')], cwd=node.files)
    wait_until(lambda: set(node.job("tasks")["pids"]) == {first.pid, second.pid}, "both take turns")
    stop(node)
    assert first.wait().code == 0
    steps = node.job("tasks")["steps"]
    node.wait_steps("tasks", steps + 5)
    stop(node, "last")
    assert second.wait().code == 0
    node.wait_state("tasks", "finished")


def test_x13_a_job_that_nobody_joins_is_cancelled_when_its_patience_ends(node: Node) -> None:
    node.start()
    done = node.carpool("adopt", "--name", "forgotten", "--patience", "1s")
    assert done.lines == ["forgotten-1"]
    assert "no process joined it in time" in node.wait_state("forgotten", "cancelled")["reason"]


def test_x13_cancel_ends_a_job_that_nobody_is_in(node: Node) -> None:
    node.start()
    node.carpool("adopt", "--name", "empty")
    assert node.carpool("cancel", "empty").code == 0
    node.wait_state("empty", "cancelled")


def test_x14_the_next_daemon_waits_for_the_first_process_too(node: Node) -> None:
    node.start()
    found = json.loads(node.carpool("adopt", "--name", "later", "--json").out)
    node.kill_daemon()
    node.start()
    wait_until(lambda: node.find("later"), "it is back")
    node.environment |= found["environment"]
    task = Started(node, [PYTHON, "-c", TURNS], cwd=node.files)
    node.wait_steps("later", 5)
    assert task.lines == [found["job"]]
    stop(node)
    assert task.wait().code == 0
    node.wait_state("later", "finished")


def test_a_process_that_runs_is_the_first_of_the_job_and_what_it_starts_with_the_lines_takes_turns(
    node: Node,
) -> None:
    node.start()
    outer = shell(node, 'eval "$("$1" adopt --pid $$ --name outer --env)"; "$2" -c "$3"; exit 5')
    node.wait_steps("outer", 5)
    pids = node.job("outer")["pids"]
    assert outer.pid in pids and len(pids) == 2
    stop(node)
    assert outer.wait().code == 5
    assert "exit code 5" in node.wait_state("outer", "failed")["reason"]


def test_a_process_that_is_in_a_job_is_not_adopted_again_nor_one_that_is_gone(node: Node) -> None:
    node.start()
    sleeper = node.run("sleep", "60", options=["--name", "sleeps"])
    node.wait_state("sleeps", "starting", "idle", "running")
    pid = wait_until(lambda: node.program_pid("sleeps"), "it runs")
    done = node.carpool("adopt", "--pid", str(pid))
    assert done.code == 1 and "is in job sleeps-1 already" in done.err
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    done = node.carpool("adopt", "--pid", ended.stdout.decode().strip())
    assert done.code == 1 and "there is no process" in done.err
    sleeper.end()
    assert not is_alive(pid) or node.carpool("cancel", "sleeps").code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to have a process of another user")
def test_x10_nobody_joins_for_another_user(node: Node) -> None:
    """Checked in the daemon: here it is asked for by a process that is another user's, as the kernel says."""
    from carpool.daemon.joining import who_joins, whose_job
    from carpool.daemon.people import Caller
    from carpool.errors import RefusedError

    text = "import os, time; os.setuid(65534); print(os.getpid(), flush=True); time.sleep(60)"
    other = Started(node, [PYTHON, "-c", text])
    other.wait_lines(1)
    root, nobody = Caller(uid=0, gid=0, pid=os.getpid()), Caller(uid=65534, gid=65534, pid=other.pid)
    assert who_joins(root, other.pid) == other.pid  # root may, and the job is that user's
    assert whose_job(root, other.pid).uid == 65534
    with pytest.raises(RefusedError, match="each joins for his own only"):
        who_joins(nobody, os.getpid())


def test_without_a_daemon_nothing_is_printed_for_a_shell_to_evaluate(node: Node) -> None:
    done = node.carpool("adopt", "--env")
    assert (done.code, done.out) == (3, b"")
    assert "no daemon answers" in done.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--memory", "much"], "'much' is not a size"),
        (["--patience", "0"], "leaves nobody the time"),
        (["--pid", "-4"], "is no process"),
        (["--on-hog", "shout"], "is one of warn, suspend, kill"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(node: Node, options: list[str], said: str) -> None:
    done = node.carpool("adopt", *options)
    assert done.code == 2 and said in done.err
