"""One daemon for one user of one machine, whatever the variables say, and it stays reachable.

These tests use the usual places, not CARPOOL_DIR. Only the directory in which the run directories of all users lie is
another one, so that nothing touches the daemon of whoever runs the tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from carpool import calls
from carpool.client import Client
from carpool.daemon.start_and_end import Start
from carpool.errors import CarpoolError
from carpool.wire.lock import BROUGHT_BACK, make_sign, read_sign
from carpool.wire.places import Places
from tests.e2e.node import CARPOOL, PATIENCE, PYTHON, Ended, is_alive, kill, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

ELSEWHERE = """
import sys
from pathlib import Path
import carpool.wire.places as places
places.RUN_PARENT = Path({parent!r})
if "carpool.daemon.main" in sys.orig_argv:
    import carpool.daemon.driver as driver
    driver.NOTE_SECONDS = {note}
"""
SLEEPER = ("sleep", "100")
GIB = 1 << 30
CONFIG = json.dumps({"device": "cpu:4GiB"})


class User:
    """A user of a machine with nothing in it yet; `variables` are those of one shell of many."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.said = directory / "said"
        self.note_seconds = 10.0
        self._started: list[subprocess.Popen[bytes]] = []
        self.use_parent(directory / "parent")
        self.home = directory / "home"
        self.home.mkdir()

    def use_parent(self, parent: Path) -> None:
        """What is /var/tmp from now on."""
        parent.mkdir(exist_ok=True)
        self.run = parent / f"carpool-{os.geteuid()}"
        self.hook = self.directory / f"hook-{parent.name}"
        self.hook.mkdir(exist_ok=True)
        text = ELSEWHERE.format(parent=str(parent), note=self.note_seconds)
        (self.hook / "sitecustomize.py").write_text(text)

    @property
    def state(self) -> Path:
        return self.home / ".local" / "state" / "carpool" / os.uname().nodename

    @property
    def client(self) -> Client:
        return Client(places=Places(run=self.run, state=self.state))

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        unwanted = ("CARPOOL", "XDG_", "TMPDIR")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}
        kept |= {"HOME": str(self.home), "PYTHONPATH": str(self.hook), "TEST_USER": str(self.directory)}
        return {key: value for key, value in {**kept, **variables}.items() if value != "unset"}

    def carpool(self, *words: str, before: Sequence[str] = (), cwd: str = "", **variables: str) -> Ended:
        done = subprocess.run(
            [*before, CARPOOL, *words],
            env=self.environment(variables),
            capture_output=True,
            timeout=PATIENCE,
            cwd=cwd or str(self.directory),
        )
        return Ended(code=done.returncode, out=done.stdout, err=done.stderr.decode())

    def submit(self, *words: str, **variables: str) -> dict[str, Any]:
        done = self.carpool("submit", "--json", *words, **variables)
        assert done.code == 0, (done.out, done.err)
        found: dict[str, Any] = json.loads(done.out)["job"]
        return found

    def enter(self, name: str, *argv: str, cap_bytes: int) -> str:
        """A job in the background of a daemon that runs, past the command line; returns its id."""
        spec = calls.Spec(name=name, cap_bytes=cap_bytes)
        return self.client.submit(argv, spec=spec, cwd=self.directory, environment=self.environment({})).job.id

    def daemon(self, *more: str, **variables: str) -> subprocess.Popen[bytes]:
        """A daemon's process, without the command that first looks whether there is one."""
        with self.said.open("wb") as errors:
            process = subprocess.Popen(
                [PYTHON, "-m", "carpool.daemon.main", CONFIG, *more],
                env=self.environment(variables),
                stderr=errors,
                cwd="/",
            )
        self._started.append(process)
        return process

    def started(self, *more: str, **variables: str) -> subprocess.Popen[bytes]:
        process = self.daemon(*more, **variables)
        wait_until(lambda: self.pid() == process.pid or process.poll() is not None, "it answers")
        assert process.poll() is None, self.said.read_text()
        return process

    def pid(self) -> int:
        """Of the daemon that answers; 0 if none does."""
        try:
            return self.client.status().pid
        except CarpoolError:
            return 0

    def daemons(self) -> list[int]:
        """All of them, reachable or not."""
        return [pid for pid, words in self._processes() if b"carpool.daemon.main" in words]

    def _processes(self) -> list[tuple[int, list[bytes]]]:
        found = []
        mark = f"TEST_USER={self.directory}".encode()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                is_marked = entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0")
                if is_marked and is_alive(int(entry.name)):
                    found.append((int(entry.name), (entry / "cmdline").read_bytes().split(b"\0")))
        return found

    def end_all(self) -> None:
        def kill_all() -> bool:
            left = self._processes()
            for pid, _ in left:
                kill(pid)
            return not left

        wait_until(kill_all, "nothing is left")

    def close(self) -> None:
        self.end_all()
        for process in self._started:
            process.wait(PATIENCE)
        shutil.rmtree(self.directory, ignore_errors=True)


@pytest.fixture
def user() -> Iterator[User]:
    made = User(Path(tempfile.mkdtemp(prefix="cp-", dir="/tmp")))
    yield made
    made.close()


def refused(user: User) -> str:
    """What a second daemon says that may not run."""
    assert user.daemon().wait(PATIENCE) == 1
    return user.said.read_text()


@pytest.mark.parametrize("names", [["XDG_RUNTIME_DIR", "XDG_STATE_HOME", "TMPDIR"], ["HOME"]])
def test_a_shell_in_which_variables_differ_finds_the_same_daemon(user: User, names: list[str]) -> None:
    """As cron, su and some ssh do; HOME of a length that no socket's name can have."""
    other = user.directory / ("long" * 50)
    other.mkdir(mode=0o700)
    variables = dict.fromkeys(names, str(other))
    first = user.submit("--device", "cpu:4GiB", "--memory", "3GiB", "--name", "x", "--", *SLEEPER, **variables)
    second = user.submit("--device", "cpu:4GiB", "--memory", "3GiB", "--name", "x", "--", *SLEEPER)
    assert (first["id"], second["id"]) == ("x-1", "x-2")
    assert {job.id: job.state for job in user.client.jobs()}["x-2"] == "queued", "the memory is promised once"
    assert user.daemons() == [user.pid()]
    stopped = user.carpool("daemon", "stop", "--force", **variables)
    assert stopped.err == f"carpool: daemon {read_pid(user)} stopped (it ran in {user.run})\n"


def read_pid(user: User) -> int:
    sign = read_sign(user.run / "daemon.lock")
    assert sign is not None
    return sign.pid


def test_a_logout_that_removes_the_runtime_directory_changes_nothing(user: User) -> None:
    runtime = user.directory / "runtime"
    runtime.mkdir(mode=0o700)
    variables = {"XDG_RUNTIME_DIR": str(runtime)}
    user.submit("--device", "cpu:4GiB", "--memory", "3GiB", "--name", "night", "--", *SLEEPER, **variables)
    queued = user.enter("queued", "true", cap_bytes=3 * GIB)
    shutil.rmtree(runtime)
    shown = user.carpool("ps", "--json")
    assert (shown.code, len(json.loads(shown.out)["jobs"])) == (0, 2)
    user.client.cancel("night")
    assert user.client.wait(queued, seconds=PATIENCE).state == "finished"
    assert len(user.daemons()) == 1


@pytest.mark.parametrize("removed", [["daemon.sock"], ["daemon.lock"], ["daemon.sock", "daemon.lock"], ["."]])
def test_a_daemon_whose_files_were_removed_is_reached_again_and_stays_the_only_one(
    user: User, removed: list[str]
) -> None:
    process = user.started()
    user.enter("runs", *SLEEPER, cap_bytes=3 * GIB)
    wait_until(lambda: user.client.job("runs").pids, "its runner has read its files")
    queued = user.enter("queued", "true", cap_bytes=3 * GIB)
    remove(user.run, removed)
    second = refused(user)
    assert f"daemon {process.pid} is already running (it holds {user.state}/journal.lock" in second, second
    shown = user.carpool("ps", "--json")  # what cannot reach it wakes it
    assert (shown.code, len(json.loads(shown.out)["jobs"])) == (0, 2), shown.err
    assert user.enter("third", "true", cap_bytes=3 * GIB) == "third-3"
    assert user.daemons() == [process.pid]
    process.send_signal(signal.SIGUSR1)  # where only the lock is gone nobody has woken it
    wait_until(lambda: read_pid_or_none(user) == process.pid, "its lock is there again")
    user.client.cancel("runs")
    assert user.client.wait(queued, seconds=PATIENCE).state == "finished"
    process.terminate()
    assert process.wait(PATIENCE) == 0
    assert not (user.run / "daemon.sock").exists()


def read_pid_or_none(user: User) -> int | None:
    sign = read_sign(user.run / "daemon.lock")
    return sign.pid if sign is not None else None


def is_started(directory: Path) -> bool:
    start = Start.load(directory, os.geteuid())
    return start is not None and start.child_pid > 0


def remove(run: Path, names: list[str]) -> None:
    for name in names:
        if name == ".":
            shutil.rmtree(run)
        else:
            (run / name).unlink()


def test_a_daemon_with_jobs_looks_by_itself_whether_it_can_be_reached(user: User) -> None:
    user.note_seconds = 0.2
    user.use_parent(user.directory / "parent")
    user.started()
    user.enter("runs", *SLEEPER, cap_bytes=GIB)
    wait_until(lambda: is_started(user.run / "jobs" / "runs-1"), "its program runs")
    shutil.rmtree(user.run, ignore_errors=True)  # what is made meanwhile stays
    wait_until(lambda: (user.run / "daemon.sock").exists(), "it bound its socket again")
    wait_until(lambda: (user.run / "jobs" / "runs-1" / "job.json").exists(), "and wrote its jobs' files again")


def test_a_daemon_whose_place_another_has_gives_up_and_removes_nothing(user: User) -> None:
    """All that could keep a second one away is gone before the first one looks. The second has the jobs by then."""
    first = user.started()
    user.enter("runs", *SLEEPER, cap_bytes=GIB)
    for path in (user.run / "daemon.sock", user.run / "daemon.lock", user.state / "journal.lock"):
        path.unlink()
    assert f"another process answers at {user.run}/knock" in refused(user), "the last sign of life that is left"
    first.send_signal(signal.SIGUSR1)
    wait_until(lambda: read_pid_or_none(user) == first.pid, "it is there again")
    for path in (user.run / "daemon.sock", user.run / "daemon.lock", user.run / "knock", user.state / "journal.lock"):
        path.unlink()
    second = user.started()
    first.send_signal(signal.SIGUSR1)
    assert first.wait(PATIENCE) == 1
    assert user.pid() == second.pid
    assert [job.id for job in user.client.jobs()] == ["runs-1"]
    assert f"daemon {second.pid} is already running" in (user.state / "daemon.log").read_text()


def test_a_daemon_that_is_stopped_leaves_the_socket_of_another_alone(user: User) -> None:
    process = user.started()
    (user.run / "daemon.sock").unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(user.run / "daemon.sock"))
        other.listen()
        process.send_signal(signal.SIGUSR1)
        wait_until(lambda: "another process answers" in (user.state / "daemon.log").read_text(), "it saw that")
        process.terminate()
        assert process.wait(PATIENCE) == 0
        assert (user.run / "daemon.sock").exists()
    assert "is no socket of yours" not in (user.state / "daemon.log").read_text()


def test_what_is_no_socket_is_not_removed_for_one(user: User) -> None:
    user.run.mkdir(mode=0o700)
    (user.run / "daemon.sock").write_text("mine")
    started = user.carpool("daemon", "start", "--device", "cpu:1GiB")
    assert started.code == 1
    assert started.err.endswith(
        f"{user.run}/daemon.sock is no socket of yours; remove it, or set CARPOOL_DIR to another place\n"
    )
    assert (user.run / "daemon.sock").read_text() == "mine"


def test_a_second_daemon_that_finds_another_run_directory_is_refused_by_the_journal(user: User) -> None:
    """A service with a /var/tmp of its own, say."""
    first, where = user.started(), user.run
    user.use_parent(user.directory / "private")
    said = refused(user)
    assert f"daemon {first.pid} is already running (it holds {user.state}/journal.lock)" in said
    assert f"is reached in {where}, not in {user.run}; stop it there, or set CARPOOL_DIR" in said
    unseen = user.carpool("ps")
    assert (unseen.code, f"daemon {first.pid} runs and does not answer at {user.run}/daemon.sock" in unseen.err) == (
        3,
        True,
    )


def test_carpool_dir_rules_and_may_be_said_as_seen_from_here(user: User) -> None:
    usual = user.started()
    (user.directory / "inner").mkdir()
    done = user.carpool(
        "daemon", "start", "--device", "cpu:1GiB", cwd=str(user.directory / "inner"), CARPOOL_DIR="mine"
    )
    assert done.code == 0, done.err
    assert done.err.endswith(f"runs in {user.directory}/inner/mine/run (policy fair, device cpu:1GiB)\n")
    assert len(user.daemons()) == 2
    assert user.pid() == usual.pid
    shown = user.carpool("daemon", "status", CARPOOL_DIR=str(user.directory / "inner" / "mine"))
    assert f"run directory {user.directory}/inner/mine/run\n" in shown.out.decode()


def test_a_lock_does_not_outlive_a_daemon_that_is_killed(user: User) -> None:
    first = user.started()
    first.kill()
    first.wait(PATIENCE)
    shown = user.carpool("ps")
    assert (shown.code, "no daemon answers at" in shown.err) == (3, True)
    assert user.carpool("daemon", "start", "--device", "cpu:4GiB").code == 0


NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can name a machine")


@NEEDS_ROOT
def test_two_machines_with_one_home_have_a_daemon_and_a_journal_each(user: User) -> None:
    other_machine = ("unshare", "--uts", "sh", "-c", 'hostname other && exec "$0" "$@"')
    if subprocess.run([*other_machine, "true"], capture_output=True).returncode:
        pytest.skip("NOT TESTED here: this process may not name a machine")
    here = user.started()
    user.use_parent(user.directory / "of-the-other")
    there = user.carpool("daemon", "start", "--device", "cpu:4GiB", before=other_machine)
    assert there.code == 0, there.err
    journals = {path.parent.name for path in user.home.rglob("journal.db")}
    assert journals == {os.uname().nodename, "other"}
    assert len(user.daemons()) == 2
    assert here.poll() is None


def test_one_carpool_dir_on_two_machines_is_refused_with_the_name_of_the_first(user: User) -> None:
    """As far as the file system lets both see a lock."""
    first = user.started()
    lock = user.run / "daemon.lock"
    sign = json.loads(lock.read_text())
    lock.write_text(json.dumps({**sign, "host": "elsewhere", "boot": "another"}))
    (user.state / "journal.lock").unlink()
    said = refused(user)
    assert f"daemon {first.pid} on elsewhere is already running (it holds {lock})" in said
    assert "set CARPOOL_DIR to a directory that only this machine uses" in said


def test_a_pid_that_was_used_again_is_not_taken_for_a_daemon(user: User) -> None:
    places = Places(run=user.run, state=user.state)
    user.run.mkdir(mode=0o700)
    sign = json.dumps({"pid": os.getpid(), "birth": 1, "boot": "another", "host": "h", "run": "", "state": "/"})
    (user.run / "daemon.lock").write_text(sign[:-1] + ', "is_brought_back": true}')
    assert places.find_daemon() is None
    assert user.carpool("ps").err.startswith("carpool: no daemon answers at ")
    assert user.carpool("daemon", "start", "--device", "cpu:1GiB").code == 0, "and this process was not sent a signal"
    assert make_sign(run=user.run, state=user.state, is_brought_back=False).is_alive()


def test_after_a_boot_no_process_is_taken_for_one_of_a_job(user: User) -> None:
    """The run directory outlives the machine, and pids are given again."""
    first = user.started()
    user.enter("ran", *SLEEPER, cap_bytes=3 * GIB)
    wait_until(lambda: user.client.job("ran").pids, "it runs")
    queued = user.enter("queued", "true", cap_bytes=3 * GIB)
    first.kill()
    first.wait(PATIENCE)
    user.end_all()
    lock, file = user.run / "daemon.lock", user.run / "jobs" / queued / "job.json"
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "boot": "the one before"}))
    file.write_text(json.dumps({**json.loads(file.read_text()), "device": "cpu", "runner_pid": os.getpid()}))
    user.started()
    assert user.client.wait(queued, seconds=PATIENCE).state == "finished"
    assert user.client.job("ran").state == "failed"


def test_a_user_without_a_home_is_told_so(user: User) -> None:
    nobody = ("unshare", "--user", "--map-user=4242")
    if subprocess.run([*nobody, "true"], capture_output=True).returncode:
        pytest.skip("NOT TESTED here: this process may not become a user that nobody knows")
    for words in (["ps"], ["daemon", "start"]):
        done = user.carpool(*words, before=nobody, HOME="unset")
        assert (done.code, done.err) == (
            2,
            "carpool: user 4242 has no home: HOME is not set, and /etc/passwd does not know the user; set HOME, or"
            " set CARPOOL_DIR to a directory for carpool's files\n",
        )
    done = user.carpool("daemon", "start", HOME="not/absolute")
    assert (done.code, done.err) == (
        2,
        "carpool: HOME=not/absolute is no absolute path; set it to your home, or set CARPOOL_DIR\n",
    )


# --- whoever starts a daemon by hand wins -----------------------------------------------------------------------


def test_settings_that_somebody_chooses_win_over_a_daemon_that_a_runner_brought_back(user: User) -> None:
    """However soon the runner was: it starts the last daemon anew after 2 s."""
    first = user.started()
    job = user.enter("kept", *SLEEPER, cap_bytes=GIB // 2)
    wait_until(lambda: user.client.job("kept").pids, "it runs")
    first.kill()
    first.wait(PATIENCE)
    back = wait_until(user.pid, "its runner brought the daemon back")
    same = user.carpool("daemon", "start", "--device", "cpu:4GiB")
    assert (same.code, same.err) == (0, f"carpool: daemon {back} runs already in {user.run}\n")
    chosen = user.carpool("daemon", "start", "--device", "cpu:1GiB")
    status = user.client.status()
    assert chosen.err == (
        f"carpool: daemon {status.pid} runs in {user.run} (policy fair, device cpu:1GiB), in place of {back}, which"
        " was brought back with the settings of the one before it\n"
    )
    assert (status.device, user.client.job("kept").id) == ("cpu:1GiB", job)
    wait_until(lambda: user.daemons() == [status.pid], "the other one, which let go of its locks, has ended")
    again = user.carpool("daemon", "start", "--device", "cpu:2GiB")
    assert (again.code, f"daemon {status.pid} runs already in {user.run}, with device cpu:1GiB" in again.err) == (
        2,
        True,
    )


def test_a_daemon_makes_way_only_if_it_was_brought_back_and_the_next_is_not(user: User) -> None:
    back = user.started(BROUGHT_BACK)
    assert user.daemon(BROUGHT_BACK).wait(PATIENCE) == 1
    chosen = user.started()
    assert back.wait(PATIENCE) == 0
    assert user.daemon(BROUGHT_BACK).wait(PATIENCE) == 1
    assert f"daemon {chosen.pid} is already running" in refused(user)
    assert user.daemons() == [chosen.pid]
