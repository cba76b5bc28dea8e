"""Who a process is, the kernel says: a seat is for the process itself, or a child that uses its connection (I7)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carpool.core.kernel.ids import JobId
from carpool.core.node.model import JobSpec
from carpool.daemon import processes
from carpool.daemon.files import JobFile
from carpool.daemon.jobs import LiveJob
from carpool.daemon.members import identify
from carpool.errors import RefusedError

WAITS = "import sys; print('ready', flush=True); sys.stdin.read()"
FORKS = (
    "import os, sys; pid = os.fork(); pid and print(pid, flush=True); sys.stdin.read(); pid and os.waitpid(pid, 0)"
)


@contextmanager
def started(program: str, *, job: str = "", enter: tuple[str, ...] = ()) -> Iterator[tuple[int, str]]:
    """A program that waits, its pid, and what it said."""
    env = {"PATH": os.environ["PATH"]} | ({"CARPOOL_JOB": job} if job else {})
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*enter, sys.executable, "-S", "-c", program], env=env, stdin=pipe, stdout=pipe, text=True
    ) as child:
        assert child.stdin and child.stdout
        yield child.pid, child.stdout.readline()
        child.stdin.close()


@pytest.fixture
def live(tmp_path: Path) -> LiveJob:
    file = JobFile(job="job-1", number=1, spec=JobSpec(name="job"), argv=["x"], cwd="/")
    return LiveJob(id=JobId("job-1"), directory=tmp_path, file=file)


def test_i7_a_process_is_who_the_kernel_says(live: LiveJob) -> None:
    with started(WAITS, job="job-1") as (pid, _), started(WAITS, job="job-1") as (other, _):
        assert identify(live, pid, pid) == pid
        with pytest.raises(RefusedError, match=f"process {pid} says that it is process {other}; each takes turns"):
            identify(live, pid, other)
        with pytest.raises(RefusedError, match=f"says that it is process {pid}"):
            identify(live, os.getpid(), pid)  # its parent is not of the job


@pytest.mark.parametrize(("job", "whose"), [("job-2", "of job job-2"), ("", "of no job")])
def test_i7_a_process_of_another_job_has_no_seat(live: LiveJob, job: str, whose: str) -> None:
    with (
        started(WAITS, job=job) as (pid, _),
        pytest.raises(RefusedError, match=f"process {pid} is {whose}; it takes no turns of job job-1"),
    ):
        identify(live, pid, pid)


def test_i7_a_child_may_use_the_connection_of_its_parent(live: LiveJob) -> None:
    with started(FORKS, job="job-1") as (pid, said):
        assert identify(live, pid, int(said)) == int(said)
        with pytest.raises(RefusedError):
            identify(live, int(said), pid)  # not the other way round
        with pytest.raises(RefusedError):
            identify(live, 0, int(said))  # who made that connection is gone: nobody can tell


@pytest.mark.parametrize("claimed", [0, -5, 1 << 22, 1 << 70])
def test_a_number_that_is_no_pid_is_refused_in_a_sentence(live: LiveJob, claimed: int) -> None:
    with pytest.raises(RefusedError, match="is not the pid of a process"):
        identify(live, os.getpid(), claimed)


def test_a_process_that_nobody_sees_is_believed(live: LiveJob) -> None:
    assert identify(live, processes.UNSEEN, 7) == processes.UNSEEN


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes pid namespaces")
def test_processes_of_other_namespaces_are_found_by_their_own_numbers(live: LiveJob) -> None:
    enter = ("unshare", "--pid", "--fork", "--kill-child")
    with (
        started(WAITS, job="job-1", enter=enter) as (first, _),
        started(WAITS, job="job-1", enter=enter) as (last, _),
    ):
        inner = [int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]) for pid in (first, last)]
        assert [processes.inner_pid(pid) for pid in inner] == [1, 1]
        assert [identify(live, pid, 1) for pid in inner] == inner
        fresh = processes.Finder()
        spaces = [processes.namespace_of(pid) for pid in inner]
        assert [fresh.find(1, space) for space in spaces] == inner
    assert [fresh.find(1, space) for space in spaces] == [0, 0], "they ended, and are not taken for process 1"


def test_a_connection_knows_the_process_that_made_it(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        connects = (
            f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({str(tmp_path / 'socket')!r}); {WAITS}"
        )
        with started(connects) as (pid, _):
            peer, _ = listener.accept()
            with peer:
                assert processes.connected_by(peer) == pid
