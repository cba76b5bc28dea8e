"""What the daemon reads of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from carpool.daemon import processes
from carpool.daemon.families import children_of, with_descendants
from carpool.daemon.start_ups import descendants_of
from carpool.wire.protocol import ENV_PAGE

SPIN = "import os; os.nice({nice})\nwhile True: pass"
SECONDS = 20.0


def start(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", code])


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waits for a processor"
)
def test_a_process_that_gets_no_processor_is_busy_and_one_that_sleeps_is_not() -> None:
    core = min(os.sched_getaffinity(0))
    starved, rival, asleep = (
        start(SPIN.format(nice=19)),
        start(SPIN.format(nice=0)),
        start("import time; time.sleep(60)"),
    )
    try:
        for child in (starved, rival):
            os.sched_setaffinity(child.pid, {core})
        began = time.monotonic()
        while processes.busy_ns(starved.pid) < 500_000_000 and time.monotonic() - began < SECONDS:
            time.sleep(0.05)
        assert processes.busy_ns(starved.pid) >= 500_000_000
        assert processes.busy_ns(asleep.pid) < 250_000_000
    finally:
        for child in (starved, rival, asleep):
            child.kill()
            child.wait()
    assert processes.busy_ns(starved.pid) == 0


def test_a_process_is_not_dead_because_no_descriptor_is_left() -> None:
    """In a process of its own, which has used up all that it may have."""
    code = (
        "import os, resource\n"
        "from carpool.daemon import processes\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "try:\n"
        "    while True: os.open('/dev/null', os.O_RDONLY)\n"
        "except OSError: pass\n"
        "assert processes.is_alive(os.getppid()) and processes.is_alive(os.getppid()), 'its parent lives'\n"
        "assert not processes.is_alive(2**22 - 1)\n"
        "assert processes.open_pidfd(2**22 - 1) is None, 'there is no such process'\n"
        "try:\n"
        "    processes.open_pidfd(os.getppid())\n"
        "except OSError as error:\n"
        "    print(error.strerror)\n"
        "print(processes.descriptor_trouble())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "Too many open files",
        "40 of 40 descriptors are in use: start the daemon with a higher hard limit (ulimit -Hn)",
    ]


def test_a_process_sleeps_if_no_thread_of_it_runs_or_wants_to() -> None:
    sleeps = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); print(1, flush=True)"
    spins = sleeps + "\nwhile 1: 1"
    for program, is_asleep in ((sleeps, True), (spins, False)):
        with subprocess.Popen([sys.executable, "-S", "-c", program], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            looks: list[bool] = []
            while len(looks) < 200 and is_asleep not in looks:
                looks.append(processes.is_asleep(child.pid))
                time.sleep(0.01)
            child.kill()
        assert is_asleep in looks
        assert is_asleep or not any(looks)
    assert not processes.is_asleep(child.pid), "it is gone"
    assert not processes.is_asleep(processes.UNSEEN)


def test_processes_of_several_users_are_found_in_one_look_and_each_with_its_own(tmp_path: Path) -> None:
    page = str(tmp_path / "page")
    with subprocess.Popen(["sleep", "60"], env={**os.environ, ENV_PAGE: page}) as child:
        try:
            deadline = time.monotonic() + 60
            while processes.page_of(child.pid) != page and time.monotonic() < deadline:  # until it executes that
                time.sleep(0.01)
            found = processes.by_pages({os.geteuid(), 60_001})
            assert found[os.geteuid()][page] == processes.by_page(os.geteuid())[page] == {child.pid}
            assert found[60_001] == {}
            assert processes.by_pages(set()) == {}
            children = children_of(processes.parents())
            assert child.pid in with_descendants({os.getpid()}, children)
        finally:
            child.kill()


def test_all_that_a_process_started_is_found_by_its_children() -> None:
    script = "sleep 100 & (sleep 100 & sleep 100) & echo ready; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            deadline = time.monotonic() + 60
            while len(found := descendants_of(process.pid)) < 4 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert found == with_descendants({process.pid}, children_of(processes.parents()))
            assert len(found) >= 4 and process.pid in found
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert descendants_of(process.pid) == {process.pid}
