"""What a program puts into its job's directory costs its own job only: the daemon neither waits nor reads on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carpool.calls import Spec
from tests.e2e.node import Node, kill, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]
DRAFTS = ("job.json.new", "end.json", "started.json", "checkpoint.refused", "checkpoint.new")


def put(path: Path, what: str) -> None:
    """Something of which a plain read or write would never come to an end."""
    draft = path.with_name(f"{path.name}.made")
    if what == "pipe":
        os.mkfifo(draft)
    elif what == "endless":
        draft.symlink_to("/dev/zero")
    else:
        draft.touch(mode=0o600)
        os.truncate(draft, 1 << 40)
    draft.replace(path)


@pytest.mark.parametrize("what", ["pipe", "endless", "huge"])
def test_a_job_whose_files_are_no_files_keeps_nobody_waiting(node: Node, what: str) -> None:
    node.start()
    job = node.client.submit(["sleep", "1000"], spec=Spec(name="wild"), environment=node.environment).job.id
    wait_until(lambda: node.program_pid("wild"), "it runs")
    directory = node.places.jobs / job
    program = node.program_pid("wild")
    for name in (*DRAFTS, f"end.{node.status()['pid']}"):
        put(directory / name, what)
    assert "started" in node.client.explain("wild")
    node.client.resize("wild", weight_milli=2000)
    node.client.suspend("wild")
    node.client.resume("wild")
    assert node.status()["jobs"] == 1
    kill(program)
    assert "signal 9" in node.wait_state("wild", "failed", seconds=30)["reason"]
    done = node.client.submit(["/bin/true"], spec=Spec(name="after"), environment=node.environment).job.id
    assert node.client.wait(done, seconds=30).state == "finished"


@pytest.mark.parametrize("what", ["pipe", "endless", "huge"])
def test_a_daemon_starts_though_files_of_a_job_are_no_files(node: Node, what: str) -> None:
    node.start()
    job = node.client.submit(["sleep", "1000"], spec=Spec(name="wild"), environment=node.environment).job.id
    wait_until(lambda: node.program_pid("wild"), "it runs")
    directory, program = node.places.jobs / job, node.program_pid("wild")
    for name in ("end.json", "started.json", "job.json"):
        put(directory / name, what)
    node.kill_daemon()
    node.start()
    done = node.client.submit(["/bin/true"], spec=Spec(name="after"), environment=node.environment).job.id
    assert node.client.wait(done, seconds=30).state == "finished"
    assert int(done.rpartition("-")[2]) > int(job.rpartition("-")[2])
    kill(program)


def test_an_id_is_not_given_twice_though_only_the_name_of_its_directory_is_left(node: Node) -> None:
    """No log has it, as the job ran in the foreground; its file cannot be read, and the journal is lost."""
    node.start()
    runner = node.run("sleep", "1000", options=["--name", "wild"])
    job = wait_until(lambda: node.find("wild"), "it is known")["id"]
    program = wait_until(lambda: node.program_pid("wild"), "it runs")
    runner.process.kill()  # it would bring a daemon back
    node.kill_daemon()
    put(node.places.jobs / job / "job.json", "pipe")
    for path in node.places.journal.parent.glob(f"{node.places.journal.name}*"):
        path.unlink()
    node.start()
    again = node.client.submit(["/bin/true"], spec=Spec(name="wild"), environment=node.environment).job.id
    assert int(again.rpartition("-")[2]) == int(job.rpartition("-")[2]) + 1
    assert node.client.wait(again, seconds=30).state == "finished"
    kill(program)
