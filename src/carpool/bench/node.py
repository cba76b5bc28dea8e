"""A private node for one measurement: a daemon of its own in a directory of its own, and the jobs started on it.

Everything goes through the same command line that people use. The directory, the daemon and whatever still runs of
its jobs are gone when the `with` block ends, however it ends. The user's own daemon and settings are not touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

from carpool.calls import as_dict
from carpool.client import Client
from carpool.daemon.processes import TICK_NS, birth_of
from carpool.errors import PeerError

PROGRAMS = Path(__file__).parent / "programs"
COMMAND_SECONDS = 60.0
STOP_SECONDS = 15.0
POLL_SECONDS = 0.02
CHECK_SECONDS = 2.0
EXCHANGE_SECONDS = 0.1

Found = TypeVar("Found")


def plain_environment() -> dict[str, str]:
    """This process's environment without anything of carpool's: what a program outside carpool sees."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CARPOOL_")}


def python(program: str, options: Mapping[str, object]) -> list[str]:
    """The command line of one of our programs; an option that is None is left out."""
    words = [sys.executable, str(PROGRAMS / program)]
    for name, value in options.items():
        if value is not None:
            words += [f"--{name}", str(value)]
    return words


class Node:
    """A running daemon. Use `open_node` to get one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {**plain_environment(), "CARPOOL_DIR": str(directory)}
        self.client = Client(directory)
        self.started: list[subprocess.Popen[bytes]] = []
        self.pid = 0

    def call(self, *words: str) -> str:
        """Run one carpool command to its end; PeerError with its words if it fails."""
        command = [sys.executable, "-m", "carpool.cli.main", *words]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )
        if done.returncode:
            raise PeerError(f"carpool {' '.join(words[:2])} failed: {done.stderr.strip()}")
        return done.stdout

    def run(self, argv: Sequence[str], *options: str) -> subprocess.Popen[bytes]:
        """`carpool run` in the background of this benchmark; its output goes to our stderr."""
        command = [sys.executable, "-m", "carpool.cli.main", "run", *options, "--", *argv]
        child = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno())
        self.started.append(child)
        return child

    def submit(self, argv: Sequence[str], *options: str) -> str:
        """`carpool submit`; returns the job's id. When this returns the daemon has the job: order is kept."""
        job: str = json.loads(self.call("submit", "--json", *options, "--", *argv))["job"]["id"]
        return job

    def status(self) -> dict[str, Any]:
        return as_dict(self.client.status())

    def jobs(self) -> list[dict[str, Any]]:
        return [as_dict(job) for job in self.client.jobs(ended=True)]

    def check_jobs(self) -> None:
        """Raise if a job failed; asks the daemon, so not for while something is measured."""
        for job in self.jobs():
            if job["state"] in ("failed", "cancelled", "unmanaged"):
                raise PeerError(f"job {job['id']} is {job['state']}: {job['reason']}")

    def cpu_s(self) -> float:
        """Processor seconds the daemon has used since it started."""
        return float(self.status()["cpu_s"])

    def close(self) -> None:
        """End what still runs, then the daemon."""
        for child in self.started:
            stop(child)
        try:
            self.call("daemon", "stop")
        except (PeerError, subprocess.TimeoutExpired):
            self._close_by_force()
        wait_gone(self.pid)

    def _close_by_force(self) -> None:
        """Jobs still run, or the daemon does not answer."""
        with contextlib.suppress(PeerError, subprocess.TimeoutExpired):
            for job in self.jobs():
                for pid in job.get("pids", []):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            self.call("daemon", "stop", "--force")


def stop(child: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """End a process we started, if it has not ended."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


class Lines:
    """The lines of a child's output, each of them waited for only so long."""

    def __init__(self, source: int) -> None:
        self._source = source
        self._rest = b""

    def next(self, *, seconds: float) -> str | None:
        """The next line with its end; empty if the output is over, None if none came in time."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._rest:
            if not select.select([self._source], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            data = os.read(self._source, 1 << 16)
            if not data:
                break
            self._rest += data
        line, end, self._rest = self._rest.partition(b"\n")
        return (line + end).decode(errors="replace")


def wait_gone(pid: int) -> None:
    """Wait for the end of a process that is not our child; force it if it lingers."""
    deadline = time.monotonic() + STOP_SECONDS
    while pid and Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return
        time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def open_node(
    *,
    policy: str,
    quantum: str = "",
    device: str = "cpu:8GiB",
    root: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Node]:
    """A fresh daemon without history, under `root`; gone, with all its jobs, at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="cpb-", ignore_cleanup_errors=True, dir=root) as directory:
        node = Node(Path(directory))
        node.environment |= settings or {}
        if device.startswith("cpu"):  # the cores that the machine's daemon shares may be measured beside it; no GPU
            node.environment.setdefault("CARPOOL_ROOT", directory)
        try:
            node.call("daemon", "start", "--policy", policy, "--device", device, "--quantum", quantum)
            node.pid = int(node.status()["pid"])
            yield node
        finally:
            node.close()


class Side:
    """One of the arms of a measurement that run at once."""

    def __init__(self, cores: list[int], meeting: threading.Barrier) -> None:
        self.cores = cores
        self.pids: list[int] = []  # an arm names processes here that shall change cores with those of the other
        self._meeting = meeting
        self._births: dict[int, int] = {}

    def meet(self) -> None:
        """Wait until all arms have come so far."""
        try:
            self._meeting.wait()
        except threading.BrokenBarrierError as error:
            raise PeerError("another arm of this measurement failed, or did not get so far in time") from error

    def move(self, cores: list[int]) -> None:
        """Put the named processes on these cores, but not whoever has the pid of one that is gone."""
        self.cores = cores
        for pid in self.pids:
            birth = birth_of(pid)
            if birth is None or self._births.setdefault(pid, birth) != birth:
                continue
            with contextlib.suppress(OSError):
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    os.sched_setaffinity(int(thread.name), cores)


def run_at_once(arms: Sequence[Callable[[Side], Found]], *, seconds: float) -> list[Found]:
    """Run two arms of one measurement at once, each on one half of the cores; one by one if there is one core.

    Ten times a second their processes change sides: so whatever happens to the machine's speed is in both. They wait
    for each other for so many seconds at most.
    """
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // len(arms)
    if not half:
        return [arm(Side(cores, threading.Barrier(1))) for arm in arms]
    meeting = threading.Barrier(len(arms), timeout=seconds)
    sides = [Side(cores[number * half : (number + 1) * half], meeting) for number in range(len(arms))]
    failures: list[BaseException] = []

    def run_arm(arm: Callable[[Side], Found], side: Side) -> Found:
        os.sched_setaffinity(0, side.cores)  # of this thread, and of what it starts
        try:
            return arm(side)
        except BaseException as error:
            failures.append(error)
            meeting.abort()
            raise

    with ThreadPoolExecutor(max_workers=len(arms)) as pool:
        running = [pool.submit(run_arm, arm, side) for arm, side in zip(arms, sides, strict=True)]
        while wait(running, timeout=EXCHANGE_SECONDS).not_done:
            if all(side.pids for side in sides):
                for side, now_at in zip(sides, [side.cores for side in reversed(sides)], strict=True):
                    side.move(now_at)
    if failures:
        raise failures[0]  # the others only missed it
    return [arm.result() for arm in running]


def start_plain(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a program outside carpool."""
    return subprocess.Popen(command, env=plain_environment(), stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno())


def check_alive(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """PeerError if one of these programs ended badly, or before it was to."""
    if any(child.poll() is not None for child in children):
        wait_all(children, seconds=0)


def run_plain(commands: Sequence[Sequence[str]], *, seconds: float) -> None:
    """Start these programs at once, outside carpool, and wait for all."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            started.append(start_plain(command))
        wait_all(started, seconds=seconds)
    finally:
        for child in started:
            stop(child)


def wait_all(children: Sequence[subprocess.Popen[bytes]], *, seconds: float) -> None:
    """Wait until every process has ended well; PeerError otherwise."""
    deadline = time.monotonic() + seconds
    try:
        for child in children:
            code = child.wait(max(0.0, deadline - time.monotonic()))
            if code:
                raise PeerError(f"{_said(child)} ended with exit code {code}")
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"{_said(error)} had not ended after {seconds:.0f} s") from error
    finally:
        for child in children:
            stop(child)


def _said(process: subprocess.Popen[bytes] | subprocess.TimeoutExpired) -> str:
    words = process.args if isinstance(process, subprocess.Popen) else process.cmd
    return " ".join(str(word) for word in words) if isinstance(words, list) else str(words)


def wait_files(paths: Sequence[Path], check: Callable[[], None], *, seconds: float) -> None:
    """Wait until all these files are there; `check`, called now and then, raises if they never will be."""
    deadline = time.monotonic() + seconds
    check_at = time.monotonic() + CHECK_SECONDS
    while missing := [path for path in paths if not path.exists()]:
        now = time.monotonic()
        if now > deadline:
            raise PeerError(f"{len(missing)} of {len(paths)} jobs did not get there in {seconds:.0f} s")
        if now > check_at:
            check()
            check_at = now + CHECK_SECONDS
        time.sleep(POLL_SECONDS)


def read_stamps(path: Path) -> list[tuple[int, int]]:
    """The first and last operation of each iteration, as `programs/train.py` wrote them."""
    numbers = array("q")
    numbers.frombytes(path.read_bytes())
    return list(zip(numbers[0::2], numbers[1::2], strict=True))


def steps_per_s(stamps: Sequence[tuple[int, int]], from_ns: int, to_ns: int) -> float:
    """How many iterations ended in a second of that span."""
    ends = [last for _, last in stamps]
    return (bisect_left(ends, to_ns) - bisect_left(ends, from_ns)) * 1e9 / (to_ns - from_ns)


def stolen_ns() -> int:
    """What the host took from all processors of this virtual machine since it began; 0 where there is none."""
    with Path("/proc/stat").open() as stat:
        fields = stat.readline().split()  # cpu user nice system idle iowait irq softirq steal …
    return int(fields[8]) * TICK_NS if len(fields) > 8 else 0
