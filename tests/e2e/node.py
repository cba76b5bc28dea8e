"""A node under test: a real daemon in a directory of its own, real jobs, and nothing left behind.

Commands a user types go through the `carpool` executable; frequent looks go over the same socket from this process,
because starting Python for every look would take longer than what is looked at.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from carpool.calls import as_dict
from carpool.client import Client
from carpool.errors import CarpoolError
from carpool.journal.reader import read_facts
from carpool.wire import page as pages
from carpool.wire.places import Places
from tests import eager

PROGRAMS = Path(__file__).parents[1] / "programs"
PYTHON = sys.executable
CARPOOL = str(Path(sys.executable).parent / "carpool")
PATIENCE = 100.0  # an upper bound for anything; the machine may be busy with something else
LOOK_SECONDS_MIN, LOOK_SECONDS_MAX = 0.03, 0.1

STARTS = re.compile(r"^carpool: \S+ waits for its start: \d+ programs? (is|are) being started")

Found = TypeVar("Found")


def wait_until(
    look: Callable[[], Found | None], what: str, *, seconds: float = PATIENCE, every: float | None = None
) -> Found:
    """Look again and again until it is true; returns what was seen, fails after `seconds`.

    Where nobody says how often, ever more seldom: a look at a daemon is 2 ms of a core.
    """
    began = time.monotonic()
    deadline = began + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds} s still not: {what}")
        time.sleep(every or min(LOOK_SECONDS_MAX, max(LOOK_SECONDS_MIN, (time.monotonic() - began) / 20)))


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()


class Started:
    """A command that runs; its output goes to files, so nobody has to read along."""

    def __init__(self, node: Node, arguments: Sequence[str], **options: Any) -> None:
        number = len(node.started)
        self._out, self._err = node.files / f"{number}.out", node.files / f"{number}.err"
        stdin, cwd = options.pop("stdin", subprocess.DEVNULL), options.pop("cwd", PROGRAMS)
        environment = options.pop("env", node.environment)
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                arguments, stdin=stdin, stdout=out, stderr=err, env=environment, cwd=cwd, **options
            )
        node.started.append(self)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def out(self) -> bytes:
        return self._out.read_bytes()

    @property
    def err(self) -> str:
        """What it said on stderr, without the word that few programs are started at once: whether a start waits so
        long that this is said depends on how busy the machine is."""
        return "".join(line for line in self.whole_err.splitlines(True) if not STARTS.search(line))

    @property
    def whole_err(self) -> str:
        return self._err.read_text(errors="replace")

    @property
    def lines(self) -> list[str]:
        """The whole lines written until now."""
        text = self.out.decode()
        return text[: text.rfind("\n") + 1].splitlines()

    def wait_line(self, text: str, *, seconds: float = PATIENCE) -> None:
        def look() -> bool:
            assert self.process.poll() is None or text in self.out.decode(), (self.process.poll(), self.err)
            return any(text in line for line in self.lines)

        wait_until(look, f"a line with '{text}'", seconds=seconds)

    def wait_lines(self, count: int, *, seconds: float = PATIENCE) -> None:
        def look() -> bool:
            code = self.process.poll()
            is_there = len(self.lines) >= count
            assert code is None or is_there, f"ended with code {code} after {len(self.lines)} lines: {self.err}"
            return is_there

        wait_until(look, f"{count} lines", seconds=seconds)

    def wait(self, *, seconds: float = PATIENCE) -> Ended:
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"still running after {seconds} s; stderr: {self.err}") from error
        return Ended(code=code, out=self.out, err=self.err)

    def end(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)


class Node:
    """One daemon's directory, and everything started in it."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="cp-", dir="/tmp"))  # short: socket paths are limited
        self.places = Places(run=self.directory / "run", state=self.directory / "state")
        self.client = Client(places=self.places)
        self.files = self.directory / "files"
        self.files.mkdir()
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("CARPOOL", "COLUMNS"))}
        kept |= {"CARPOOL_DIR": str(self.directory), "PYTHONDONTWRITEBYTECODE": "1"}
        kept["CARPOOL_ROOT"] = str(self.directory)  # whatever is installed on the machine that runs the tests
        self.environment = eager.without_compiler(kept)
        self.mark = f"CARPOOL_DIR={self.directory}"  # in the environment of all that is started here
        self.started: list[Started] = []
        self.daemon: Started | None = None

    def use_stand_in(self, place: Path) -> None:
        """GPUs of the stand-in driver that lies at this place; its books are kept in this node's directory."""
        self.environment |= {
            "CARPOOL_NATIVE": str(place),
            "CARPOOL_STUB_FILE": str(self.directory / "books"),
            "CARPOOL_STUB_CONTEXT": "0",  # what these tests count is what programs ask for
            "TMPDIR": str(self.directory),
        }

    def use_whole_torch(self) -> None:
        """As users have it; else the programs of a test do without its compiler, and more (tests/eager)."""
        self.environment = eager.with_compiler(self.environment)

    # --- the daemon ---------------------------------------------------------------------------------------

    def start(
        self,
        *,
        policy: str = "fair",
        device: str = "cpu:4GiB",
        quantum: str = "",
        hog_after: str = "",
        park_to: str = "",
        **more: str,
    ) -> None:
        """Start a daemon as a child of the test, so that its death is seen at once; `more` of its configuration."""
        for directory in (self.places.run, self.places.state, self.places.jobs):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = json.dumps(
            {
                "policy": policy,
                "device": device,
                "quantum": quantum,
                "hog_after": hog_after,
                "park_to": park_to,
                **more,
            }
        )
        self.daemon = Started(self, [PYTHON, "-m", "carpool.daemon.main", config])
        self.wait_daemon()

    def wait_daemon(self) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            assert self.daemon is None or self.daemon.process.poll() is None, self.daemon.err
            try:
                found = self.status()
            except CarpoolError:
                return None
            # Until it has taken the place of one that a runner brought back, that one answers.
            return found if self.daemon is None or found["pid"] == self.daemon.pid else None

        return wait_until(look, "a daemon that answers")

    def kill_daemon(self) -> None:
        assert self.daemon is not None
        self.daemon.process.kill()
        self.daemon.process.wait(PATIENCE)

    # --- commands -----------------------------------------------------------------------------------------

    def carpool(self, *arguments: str, seconds: float = PATIENCE, **options: Any) -> Ended:
        """One command of the command line, to its end."""
        return Started(self, [CARPOOL, *arguments], **options).wait(seconds=seconds)

    def run(self, *program: str, options: Iterable[str] = (), **popen: Any) -> Started:
        """`carpool run` in the background of the test; a name ending in .py is one of tests/programs."""
        return Started(self, [CARPOOL, "run", *options, "--", *command(program)], **popen)

    def submit(self, *program: str, options: Iterable[str] = ()) -> dict[str, Any]:
        done = self.carpool("submit", "--json", *options, "--", *command(program))
        assert done.code == 0, done.err
        found: dict[str, Any] = json.loads(done.out)["job"]
        return found

    # --- looks --------------------------------------------------------------------------------------------

    def ps(self, *, ended: bool = True) -> dict[str, Any]:
        return as_dict(self.client.ps(ended=ended))

    def status(self) -> dict[str, Any]:
        return as_dict(self.client.status())

    def find(self, name: str) -> dict[str, Any] | None:
        """The newest job of this name, live or ended, or None."""
        for ended in (False, True):  # the ended ones cost the daemon a look into its journal
            found = [job for job in self.ps(ended=ended)["jobs"] if name in (job["name"], job["id"])]
            if found:
                newest: dict[str, Any] = found[-1]
                return newest
        return None

    def job(self, name: str) -> dict[str, Any]:
        found = self.find(name)
        assert found is not None, f"no job {name}"
        return found

    def state(self, name: str) -> str:
        found = self.find(name)
        return str(found["state"]) if found is not None else "unknown"

    def wait_state(self, name: str, *states: str, seconds: float = PATIENCE) -> dict[str, Any]:
        try:
            wait_until(lambda: self.state(name) in states, f"{name} is {' or '.join(states)}", seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.find(name)}") from None
        return self.job(name)

    def wait_steps(self, name: str, count: int, *, seconds: float = PATIENCE) -> None:
        def look() -> bool:
            return bool((self.find(name) or {"steps": -1})["steps"] >= count)

        wait_until(look, f"{name} made {count} steps", seconds=seconds)

    def holders(self) -> list[str]:
        lanes = [lane for device in self.ps(ended=False)["devices"] for lane in device["lanes"]]
        return [str(lane["holder"]) for lane in lanes if lane["holder"]]

    def program_pid(self, name: str) -> int:
        """The process of the program itself (not of its runner)."""
        found = self.job(name)
        text = (self.places.kept_jobs / found["id"] / "job.json").read_text()
        return int(json.loads(text)["child_pid"])

    def page(self, name: str, *, owner: int | None = None) -> pages.Page:
        """The job's shared page; the caller closes it."""
        return pages.Page.open(self.places.jobs / self.job(name)["id"] / "page", owner=owner)

    def journal(self, kind: str) -> list[dict[str, Any]]:
        """Every event or effect of this kind, in order; each body has its time under `at_ns`."""
        self.client.flush()
        found = read_facts(self.places.journal, kind, all_runs=True)
        return [{**msgspec.to_builtins(fact), "run": run, "at_ns": at} for run, at, fact in found]

    def turns(self, name: str) -> int:
        """How often a job was given a turn."""
        wanted = self.job(name)["id"]
        return len([grant for grant in self.journal("GrantLease") if grant["job"] == wanted])

    # --- the end ------------------------------------------------------------------------------------------

    def processes(self) -> list[int]:
        """Every live process that was started in this node's directory, by its environment."""
        mark = self.mark.encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0") and is_alive(int(entry.name)):
                        found.append(int(entry.name))
        return found

    def close(self) -> None:
        for started in self.started:
            started.end()
        deadline = time.monotonic() + PATIENCE
        while (left := self.processes()) and time.monotonic() < deadline:
            for pid in left:
                kill(pid)
            time.sleep(0.01)
        shutil.rmtree(self.directory, ignore_errors=True)


def command(program: Sequence[str]) -> list[str]:
    """A program's command line: `x.py` is a script of tests/programs run by this Python."""
    if program[0].endswith(".py"):
        return [PYTHON, program[0], *program[1:]]
    return list(program)


def with_environment(node: Node, added: Mapping[str, str]) -> contextlib.AbstractContextManager[None]:
    """Add variables to the environment of what is started meanwhile."""

    @contextlib.contextmanager
    def change() -> Any:
        before = dict(node.environment)
        node.environment.update(added)
        try:
            yield
        finally:
            node.environment = before

    return change()
