"""A program runs once, and its end is kept, wherever between its submission and its end the daemon is killed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from carpool.calls import Spec
from carpool.errors import UnreachableError
from tests.e2e.node import Node, wait_until, with_environment

pytestmark = pytest.mark.slow

STARTS = ["Enter.before", "Enter.after", "Start.before", "Start.after", "Started.before", "Started.after"]
ENDS = ["Exited.before", "ended", "Exited.after"]
SHORT = 'echo ran >> "$RAN"; echo ran; exit 3'


def start_mortal(node: Node, moment: str) -> None:
    with with_environment(node, {"CARPOOL_DIE_AT": moment}):
        node.start()


def follow_up(node: Node) -> None:
    """The daemon dies as it was told to; the next one comes a little later, when the program may be over."""
    assert node.daemon is not None
    node.daemon.process.wait(30)
    time.sleep(0.3)
    node.start()


def check_once(node: Node, ran: Path, name: str) -> None:
    ended = node.wait_state(name, "finished", "failed", "cancelled", seconds=30)
    assert ended["state"] == "failed"
    assert "exit code 3" in ended["reason"], ended["reason"]
    assert ran.read_text() == "ran\n"
    wait_until(lambda: not (node.places.jobs / ended["id"]).exists(), "its directory is gone", seconds=10)
    assert ran.read_text() == "ran\n"


@pytest.mark.parametrize("moment", ["submit.after", "spawned", *STARTS, *ENDS])
def test_a_submitted_program_runs_once(node: Node, tmp_path: Path, moment: str) -> None:
    ran = tmp_path / "ran"
    start_mortal(node, moment)
    environment = {**node.environment, "RAN": str(ran)}
    try:
        node.client.submit(["/bin/sh", "-c", SHORT], spec=Spec(name="once"), environment=environment)
    except UnreachableError:
        assert moment == "spawned", "it was accepted before its client was told"
    follow_up(node)
    check_once(node, ran, "once")
    assert (node.places.logs / "once-1.log").read_text().splitlines().count("ran") == 1


@pytest.mark.parametrize("moment", [*STARTS, *ENDS])
def test_a_program_in_the_foreground_runs_once_and_its_exit_code_is_kept(
    node: Node, tmp_path: Path, moment: str
) -> None:
    ran = tmp_path / "ran"
    start_mortal(node, moment)
    with with_environment(node, {"RAN": str(ran)}):
        started = node.run("/bin/sh", "-c", SHORT, options=["--name", "once"])
    follow_up(node)
    ended = started.wait()
    assert (ended.code, ended.lines) == (3, ["ran"])
    check_once(node, ran, "once")


def test_a_submission_that_was_not_taken_in_is_not_run(node: Node, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    start_mortal(node, "submit.before")
    environment = {**node.environment, "RAN": str(ran)}
    with pytest.raises(UnreachableError):
        node.client.submit(["/bin/sh", "-c", SHORT], spec=Spec(name="once"), environment=environment)
    follow_up(node)
    assert node.ps(ended=True)["jobs"] == []


def test_a_job_that_was_cancelled_in_the_queue_stays_so(node: Node, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    start_mortal(node, "ended")
    node.client.submit(["sleep", "1000"], spec=Spec(name="block", cap_bytes=4 << 30))
    environment = {**node.environment, "RAN": str(ran)}
    queued = Spec(name="queued", cap_bytes=1 << 20)
    node.client.submit(["/bin/sh", "-c", SHORT], spec=queued, environment=environment)
    with pytest.raises(UnreachableError):
        node.client.cancel("queued")
    follow_up(node)
    assert node.wait_state("queued", "cancelled")["reason"].startswith("cancelled: cancelled before it started")
    assert not ran.exists()


def test_a_program_runs_though_the_run_directory_is_removed_while_it_starts(node: Node, tmp_path: Path) -> None:
    """Its runner has not read its files by then, or has not made its own."""
    node.start()
    for number, pause in enumerate((0.0, 0.05, 0.2, 0.3)):
        ran, name = tmp_path / f"ran{number}", f"once{number}"
        environment = {**node.environment, "RAN": str(ran)}
        made = node.client.submit(["/bin/sh", "-c", SHORT], spec=Spec(name=name), environment=environment)
        time.sleep(pause)
        shutil.rmtree(node.places.run, ignore_errors=True)  # what is made meanwhile stays
        wait_until(ran.exists, "it ran, and nobody else woke the daemon")
        check_once(node, ran, name)
        assert (node.places.logs / f"{made.job.id}.log").read_text().splitlines().count("ran") == 1


def test_a_queued_program_whose_directory_was_removed_runs_before_anybody_looks(node: Node, tmp_path: Path) -> None:
    """The job before it ends by itself, so nobody wakes the daemon."""
    node.start(device="cpu:1GiB")
    ran, go = tmp_path / "ran", tmp_path / "go"
    wait = f"while [ ! -e {go} ]; do sleep 0.1; done"
    node.client.submit(["/bin/sh", "-c", wait], spec=Spec(name="first", cap_bytes=1 << 30))
    wait_until(lambda: node.client.job("first").pids, "its program runs")
    environment = {**node.environment, "RAN": str(ran)}
    node.client.submit(["/bin/sh", "-c", SHORT], spec=Spec(name="once", cap_bytes=1 << 30), environment=environment)
    shutil.rmtree(node.places.run, ignore_errors=True)
    go.touch()
    wait_until(ran.exists, "it ran", seconds=60)
    check_once(node, ran, "once")
