"""A job lives until its last process: what a first process leaves behind stays in the books and can be ended."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.node import PYTHON, Node, Started, is_alive, kill, wait_until

pytestmark = pytest.mark.timeout(120)

# A rank: it writes its pid, holds 64 MiB and takes turns until the file `stop` is there.
RANK = """
import carpool, os, pathlib, sys, time
here = pathlib.Path(sys.argv[1])
held = bytearray(64 << 20)
(here / f"rank-{os.getpid()}").touch()
while not (here / "stop").exists():
    with carpool.turn():
        time.sleep(0.002)
"""
# A launcher: it starts two ranks and waits for them, as torchrun does.
LAUNCHER = """
import subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]]) for _ in range(2)]
for rank in ranks: rank.wait()
"""
# A program that detaches: setsid and a double fork, and then its first process ends with code 3.
DETACHING = """
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", sys.argv[2], sys.argv[1]])
    os._exit(0)
os.wait()
while not any(name.startswith("rank-") for name in os.listdir(sys.argv[1])):
    time.sleep(0.01)
sys.exit(3)
"""
MIB = 1 << 20


def ranks_in(directory: Path, count: int) -> list[int]:
    def look() -> list[int] | None:
        found = [int(path.name.partition("-")[2]) for path in directory.glob("rank-*")]
        return found if len(found) == count else None

    return wait_until(look, f"{count} ranks run")


def run(node: Node, program: str, directory: Path, *options: str) -> Started:
    return node.run(PYTHON, "-c", program, str(directory), RANK, options=["--name", "left", *options])


def orphans_of(node: Node, count: int) -> dict[str, object]:
    """The job as it is shown once its first process has ended and so many others go on."""

    def look() -> dict[str, object] | None:
        found = node.job("left")
        return found if len(found.get("orphans", ())) == count else None

    return wait_until(look, f"the job is shown with {count} orphans", seconds=20)


def test_ranks_whose_launcher_is_killed_keep_their_turns_their_bytes_and_can_be_cancelled(
    node: Node, tmp_path: Path
) -> None:
    node.start()
    started = run(node, LAUNCHER, tmp_path)
    ranks = ranks_in(tmp_path, 2)
    node.wait_steps("left", 3)
    kill(node.program_pid("left"))
    assert started.wait().code == 128 + signal.SIGKILL
    job = orphans_of(node, 2)
    assert sorted(job["orphans"]) == sorted(ranks)  # type: ignore[call-overload]
    steps = node.job("left")["steps"]
    node.wait_steps("left", steps + 5)
    assert node.job("left")["live_bytes"] >= 128 * MIB
    said = node.carpool("explain", "left").lines[0]
    assert "its first process has ended (ended by signal 9); 2 of its processes go on" in said, said
    assert all(str(pid) in said for pid in ranks), said
    assert node.carpool("ps").lines[-1].startswith(str(job["id"]))
    assert node.carpool("cancel", "left").code == 0
    ended = node.wait_state("left", "cancelled", "failed", "finished")
    assert ended["state"] == "cancelled"
    assert not any(map(is_alive, ranks))


def test_a_program_that_detaches_ends_with_the_code_of_its_first_process(node: Node, tmp_path: Path) -> None:
    node.start()
    started = run(node, DETACHING, tmp_path)
    assert started.wait().code == 3
    (orphan,) = ranks_in(tmp_path, 1)
    orphans_of(node, 1)
    (tmp_path / "stop").touch()
    ended = node.wait_state("left", "failed", "finished", "cancelled")
    assert ended["reason"].startswith("failed: exit code 3; "), ended
    assert not is_alive(orphan)


def test_the_next_daemon_takes_orphans_back(node: Node, tmp_path: Path) -> None:
    node.start()
    assert run(node, DETACHING, tmp_path).wait().code == 3
    orphans_of(node, 1)
    node.kill_daemon()
    node.start()
    orphans_of(node, 1)
    steps = node.job("left")["steps"]
    node.wait_steps("left", steps + 3)
    (tmp_path / "stop").touch()
    ended = node.wait_state("left", "failed", "finished", "cancelled")
    assert ended["reason"].startswith("failed: exit code 3; "), ended


def test_a_killed_runner_changes_nothing_for_orphans(node: Node, tmp_path: Path) -> None:
    node.start()
    started = run(node, LAUNCHER, tmp_path)
    ranks = ranks_in(tmp_path, 2)
    started.process.kill()
    started.process.wait()
    kill(node.program_pid("left"))
    orphans_of(node, 2)
    kill(ranks[0])
    job = orphans_of(node, 1)
    assert job["orphans"] == [ranks[1]]
    kill(ranks[1])
    ended = node.wait_state("left", "failed", "finished", "cancelled")
    assert "exit code unknown" in ended["reason"]


def test_orphans_are_ended_where_the_user_wants_it(node: Node, tmp_path: Path) -> None:
    node.start()
    assert run(node, DETACHING, tmp_path, "--on-orphans", "end").wait().code == 3
    (orphan,) = ranks_in(tmp_path, 1)
    ended = node.wait_state("left", "failed", "finished", "cancelled")
    assert ended["reason"].startswith("failed: exit code 3; "), ended
    assert not is_alive(orphan)


def test_a_job_of_another_daemon_with_the_same_id_is_not_mistaken_for_ours(node: Node, tmp_path: Path) -> None:
    node.start()
    other = Node()
    try:
        other.start()
        theirs = other.run("sleep", "100", options=["--name", "twin"])
        other.wait_state("twin", "starting")
        wait_until(lambda: other.program_pid("twin"), "it runs")
        assert node.run("/bin/true", options=["--name", "twin"]).wait().code == 0
        node.wait_state("twin", "finished")
        assert theirs.process.poll() is None
    finally:
        other.close()


def test_the_option_is_refused_with_what_there_is(node: Node) -> None:
    done = node.carpool("run", "--on-orphans", "adopt", "--", "true")
    assert done.code == 2
    assert "--on-orphans adopt is not one of keep, end" in done.err
    assert not node.places.socket.exists(), "nothing was started"
