"""A disk that hangs or is full under the journal: turns go on, nothing is lost silently, and all is said."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carpool.calls import Spec
from carpool.journal import reader
from carpool.sim.journal import replay
from carpool.wire.lock import WAKE
from tests.e2e.away import away
from tests.e2e.node import PROGRAMS, PYTHON, Node, Started, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FROZEN_SECONDS = 60.0  # for 40 hand-overs; they need 2


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=60)


def mount_disk(state: Path, megabytes: int) -> str:
    """A file system of its own under `state`; returns why there is none."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    image = state.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    try:
        run("mkfs.ext4", "-q", "-m", "0", str(image))
        run("mount", "-o", "loop", str(image), str(state))
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no file system can be mounted: {error}"
    state.chmod(0o700)
    return ""


def unmount_disk(state: Path) -> None:
    subprocess.run(["umount", "-l", str(state)], check=False, capture_output=True, timeout=60)


@contextmanager
def small_disk(state: Path, megabytes: int) -> Iterator[None]:
    """The same; the test is skipped where nobody may mount one."""
    trouble = mount_disk(state, megabytes)
    if trouble:
        pytest.skip(f"NOT TESTED: what carpool does on a disk that hangs: {trouble}")
    try:
        yield
    finally:
        unmount_disk(state)


@contextmanager
def frozen(state: Path) -> Iterator[None]:
    """Whoever writes there waits until it thaws; of itself it does so in time for whoever is stopped by it."""
    run("fsfreeze", "-f", str(state))
    thaw = ["fsfreeze", "-u", str(state)]
    late = threading.Timer(2 * FROZEN_SECONDS, subprocess.run, (thaw,), {"capture_output": True})
    late.start()
    try:
        yield
    finally:
        late.cancel()
        run(*thaw)


def start_two(node: Node) -> list[Started]:
    words = [PYTHON, str(PROGRAMS / "scripted.py"), "--steps", "1000000", "--step-ms", "10"]
    jobs = [node.run(*words, options=["--name", name, "--memory", "100MiB"]) for name in ("a", "b")]
    for name in ("a", "b"):
        node.wait_steps(name, 5)
    return jobs


def end(*jobs: Started) -> None:
    for job in jobs:
        job.process.terminate()
    for job in jobs:
        job.wait()


def made(node: Node) -> dict[str, int]:
    return {job["name"]: job["steps"] for job in node.ps(ended=False)["jobs"]}


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: a disk that hangs; only root may freeze a file system")
def test_j4_hand_overs_go_on_while_the_disk_of_journal_and_log_hangs(node: Node) -> None:
    with small_disk(node.places.state, 64), with_debug_log(node):
        node.start(quantum="20ms")
        jobs = start_two(node)
        with frozen(node.places.state):
            before = made(node)
            wait_until(
                lambda: all(steps >= before[name] + 40 for name, steps in made(node).items()),
                "both take turns though nothing can be written",
                seconds=FROZEN_SECONDS,
            )
            wait_until(lambda: "hangs" in node.status()["journal_trouble"], "it is said", seconds=FROZEN_SECONDS)
            status = node.status()
            assert status["journal_waiting_rows"] > 40
            assert status["journal_dropped_rows"] == 0
            assert "its disk has not answered for" in node.carpool("daemon", "status").out.decode()
        wait_until(lambda: not node.status()["journal_trouble"], "it was written", seconds=FROZEN_SECONDS)
        end(*jobs)
        node.client.flush()
        replayed = replay(reader.read(node.places.journal))
        assert (replayed.difference, replayed.end) == ("", ""), "nothing is missing"
        assert node.places.daemon_log.read_text().count("GrantLease") > 40
        node.client.stop(force=True)
        assert node.daemon is not None
        node.daemon.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: a disk that hangs; only root may freeze a file system")
def test_j4_a_job_that_is_submitted_while_the_disk_of_its_log_hangs_stops_no_turn_and_runs_later(node: Node) -> None:
    with small_disk(node.places.state, 64):
        node.start(quantum="20ms")
        jobs = start_two(node)
        with frozen(node.places.state):
            spec = Spec(name="late", cap_bytes=1 << 20)
            node.client.submit(["/bin/sh", "-c", "echo late"], spec=spec, environment=node.environment)
            before = made(node)
            wait_until(
                lambda: all(made(node)[name] >= before[name] + 40 for name in ("a", "b")),
                "both take turns though a log cannot be made",
                seconds=FROZEN_SECONDS,
            )
            assert node.job("late")["state"] == "starting"
        node.wait_state("late", "finished")
        assert node.client.log_path("late").read_text() == "late\n"
        end(*jobs)
        node.client.stop(force=True)
        assert node.daemon is not None
        node.daemon.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: a disk that is gone; only root may mount one")
def test_j4_hand_overs_go_on_while_nobody_can_enter_the_directory_of_the_journal(node: Node) -> None:
    """The daemon looks whether its locks are still its own, every 10 s and when it is woken."""
    node.start(quantum="20ms")
    jobs = start_two(node)
    pid = int(node.status()["pid"])
    with away(node.places.state):
        os.kill(pid, WAKE)
        before = made(node)
        wait_until(
            lambda: all(steps >= before[name] + 40 for name, steps in made(node).items()),
            "both take turns though the daemon cannot see its journal's lock",
            seconds=FROZEN_SECONDS,
        )
    os.kill(pid, WAKE)
    end(*jobs)
    assert "daemon.restored" not in node.places.daemon_log.read_text(), "nothing was removed"
    (node.places.state / "journal.lock").unlink()
    os.kill(pid, WAKE)
    wait_until((node.places.state / "journal.lock").exists, "it makes its lock again")
    wait_until(lambda: "daemon.restored" in node.places.daemon_log.read_text(), "it says so")
    node.client.stop(force=True)
    assert node.daemon is not None
    node.daemon.wait()


@contextmanager
def with_debug_log(node: Node) -> Iterator[None]:
    """Every hand-over is a line of the log as well."""
    node.environment["CARPOOL_LOG"] = "DEBUG"
    yield
    del node.environment["CARPOOL_LOG"]


def test_j6_after_a_damaged_journal_no_number_is_given_twice_and_it_is_said(node: Node) -> None:
    node.start()
    for _ in range(2):
        job = node.submit(PYTHON, "-c", "print('once')")["id"]
        node.wait_state(job, "finished")
    assert job.endswith("-2")
    node.client.stop()
    assert node.daemon is not None
    node.daemon.wait()
    node.places.journal.write_bytes(os.urandom(40_000))
    node.start()
    third = node.submit(PYTHON, "-c", "print('third')")["id"]
    node.wait_state(third, "finished")
    assert third.endswith("-3")
    assert node.client.log_path(third).read_text() == "third\n", "a log has the output of one job"
    shown = node.carpool("daemon", "status").out.decode()
    assert "was damaged (file is not a database): it is kept as journal.db.damaged-" in shown
    assert node.places.daemon_log.read_text().count("was damaged") == 1
