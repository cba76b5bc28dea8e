"""Four walks through the house, measured on real runs: a daemon, jobs and commands under a profile hook.

One lease: a second job asks for a turn while the first computes; the first gives its turn back, the second has it.
One park: somebody suspends a job; its tensors leave the device.
One waiting allocation: a job asks for memory that another holds, waits, and gets it.
One simulated job: `carpool sim` over a workload of a few jobs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from carpool.errors import InternalError
from carpool.units import SECOND

PATIENCE_S = 120.0  # for anything; the machine may be busy
TRACED = "carpool.testing.house.traced"
CONFIG = '{"device": "cpu:1GiB", "quantum": "20ms"}'
STEPS_MAX = 26

TRAINS = """
import pathlib
import sys
import time
import torch
from carpool.testing.house.traced import mark

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters())
for step in range(int(sys.argv[1])):
    if step == 200:
        time.sleep(2)  # long enough to lose the turn
        mark("asks")
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    if step == 200:
        mark("computes")
    if step % 100 == 0 and pathlib.Path("stop").exists():
        break
"""
ALLOCATES = """
import pathlib
import time
import carpool
from carpool.testing.house.traced import mark

held = []
for step in range(40):
    with carpool.turn():
        time.sleep(0.005)
        if step == 30:
            mark("allocates")
            pathlib.Path("asked").touch()
            held.append(bytearray(500 << 20))
            mark("has it")
"""
SLEEPS = """
import pathlib
import time
while not pathlib.Path("wake").exists():
    time.sleep(0.1)
"""
SCRIPTS = {"trains": TRAINS, "allocates": ALLOCATES, "sleeps": SLEEPS}
WALKERS = {
    "daemon": "the daemon",
    "first": "the first job",
    "second": "the second job",
    "command": "the command",
    "waiter": "the job",
}
GAP_NS = 100_000_000  # a process that was silent this long begins a new leg
PLAIN = {"units", "errors", "__init__", "__main__"}  # everybody uses them, and nothing is decided there


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A stay in one room: who walks there, and the modules in the order of their first call."""

    who: str
    room: str
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    name: str
    steps: tuple[Step, ...]


Note = tuple[int, str, str]  # when, who, which module


def room_of(module: str) -> str:
    """The folder of a module, as a path: core/node/turns."""
    folder = module.rpartition(".")[0]
    return folder.replace(".", "/") or module


def steps_of(notes: Iterable[Note]) -> tuple[Step, ...]:
    """The way through the rooms. While one process walks, a room counts when it is first entered."""
    legs: list[tuple[str, dict[str, list[str]]]] = []
    before = 0
    for when, who, module in sorted(notes):
        if module.rpartition(".")[2] in PLAIN:
            continue
        if not legs or legs[-1][0] != who or when > before + GAP_NS:
            legs.append((who, {}))
        before = when
        modules = legs[-1][1].setdefault(room_of(module), [])
        if module not in modules:
            modules.append(module)
    steps = [Step(who=who, room=room, modules=tuple(found)) for who, rooms in legs for room, found in rooms.items()]
    return tuple(_without_echoes(steps))[:STEPS_MAX]


def _without_echoes(steps: Iterable[Step]) -> list[Step]:
    """Without stays that add nothing: the same process in the same modules as some time before."""
    seen: dict[tuple[str, str], set[str]] = {}
    kept: list[Step] = []
    for step in steps:
        known = seen.setdefault((step.who, step.room), set())
        new = tuple(module for module in step.modules if module not in known)
        known.update(new)
        if kept and (kept[-1].who, kept[-1].room) == (step.who, step.room):
            kept[-1] = replace(kept[-1], modules=kept[-1].modules + new)
        elif new:
            kept.append(replace(step, modules=new))
    return kept


class Node:
    """A daemon of its own under the hook, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = {**os.environ, "CARPOOL_DIR": str(folder / "carpool"), "PYTHONUNBUFFERED": "1"}
        self._started: list[subprocess.Popen[bytes]] = []
        for name, text in SCRIPTS.items():
            (folder / f"{name}.py").write_text(text)
        self.daemon = self._start([*self._traced("daemon"), "carpool.daemon.main", CONFIG])
        wait_until(lambda: self.carpool("daemon", "status"), "the daemon answers")

    def _traced(self, role: str) -> list[str]:
        return [sys.executable, "-m", TRACED, str(self.folder), role]

    def _start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        log = (self.folder / "output").open("ab")
        process = subprocess.Popen(arguments, env=self._environment, stdout=log, stderr=log, cwd=self.folder)
        self._started.append(process)
        return process

    def carpool(self, *arguments: str) -> bool:
        """A command of the command line; whether it went well."""
        done = subprocess.run(
            [sys.executable, "-m", "carpool", *arguments], env=self._environment, capture_output=True, check=False
        )
        return done.returncode == 0

    def traced_carpool(self, role: str, *arguments: str) -> None:
        self._start([*self._traced(role), "carpool.cli.main", *arguments]).wait(PATIENCE_S)

    def run(self, role: str, program: str, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        """`carpool run` of one of the programs above; the program walks in this role."""
        script = [*self._traced(role), str(self.folder / f"{program}.py"), *arguments]
        return self._start([sys.executable, "-m", "carpool", "run", "--name", role, *options, "--", *script])

    def state(self, name: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "carpool", "ps", "--all", "--json"],
            env=self._environment,
            capture_output=True,
            check=False,
        )
        listed = json.loads(done.stdout or b"[]")
        jobs = listed["jobs"] if isinstance(listed, dict) else listed
        return next((str(job["state"]) for job in jobs if job["name"] == name), "")

    def close(self) -> None:
        for process in reversed(self._started):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)

    def notes(self, role: str) -> list[Note]:
        path = self.folder / f"{role}.json"
        wait_until(path.exists, f"the notes of {role} are written")
        return [(when, WALKERS[role], module) for when, module in json.loads(path.read_text())]


def wait_until(look: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not look():
        if time.monotonic() > deadline:
            raise InternalError(f"after {PATIENCE_S:.0f} s still not: {what}")
        time.sleep(0.1)


def moment(notes: Iterable[Note], what: str) -> int:
    return next(when for when, _, module in notes if module == f"mark {what}")


def between(notes: Iterable[Note], begin: int, end: int) -> list[Note]:
    return [note for note in notes if begin <= note[0] <= end and not note[2].startswith("mark ")]


def run_jobs(folder: Path) -> dict[str, list[Note]]:
    """A day at a node: two jobs in turns, one is suspended, one waits for memory.

    Nobody asks the daemon anything while a walk is under way: the answer would be part of it.
    """
    node = Node(folder)
    try:
        first = node.run("first", "trains", "10000000")
        wait_until(lambda: node.state("first") == "running", "the first job computes")
        time.sleep(4)
        node.run("second", "trains", "400").wait(PATIENCE_S)
        node.traced_carpool("command", "suspend", "first")
        time.sleep(2)
        wait_until(lambda: node.state("first") == "parked", "the job is parked")
        node.carpool("resume", "first")
        (folder / "stop").touch()
        first.wait(PATIENCE_S)
        node.run("sleeper", "sleeps", options=("--memory", "700MiB"))
        wait_until(lambda: node.state("sleeper") == "starting", "the sleeper is there")
        waiter = node.run("waiter", "allocates", options=("--wait-memory", "100s"))
        wait_until((folder / "asked").exists, "an allocation waits")
        time.sleep(3)
        (folder / "wake").touch()
        waiter.wait(PATIENCE_S)
    finally:
        node.close()
    return {role: node.notes(role) for role in WALKERS}


def simulate(folder: Path) -> list[Note]:
    jobs = folder / "jobs.csv"
    made = ["--generate", "lognormal", "--jobs", "4", "--mean", "10s", "--out", str(jobs)]
    subprocess.run([sys.executable, "-m", "carpool", "sim", *made], check=True, capture_output=True)
    asked = ["--trace", str(jobs), "--turns", "--policy", "fair", "--cluster", "1x1x16GiB", "--json"]
    command = [sys.executable, "-m", TRACED, str(folder), "simulator", "carpool.cli.main", "sim", *asked]
    subprocess.run(command, check=True, capture_output=True)
    return [(when, "the command", module) for when, module in json.loads((folder / "simulator.json").read_text())]


def take_walks() -> list[Walk]:
    """All four, on this machine, now; about a minute."""
    with tempfile.TemporaryDirectory(prefix="carpool-house-") as name:
        seen = run_jobs(Path(name))
        simulated = simulate(Path(name))
    daemon, first, second, waiter = (seen[role] for role in ("daemon", "first", "second", "waiter"))
    asks, computes = moment(second, "asks"), moment(second, "computes")
    ordered, done = seen["command"][0][0], seen["command"][-1][0]
    allocates, has_it = moment(waiter, "allocates"), moment(waiter, "has it")
    lease = between([*daemon, *first, *second], asks, computes)
    told = next(when for when, _, module in seen["command"] if module.startswith("wire."))
    habits = {module for when, _, module in first if ordered - SECOND < when < ordered}
    leaves = [note for note in first if note[2] not in habits]
    park = between([*seen["command"], *between([*daemon, *leaves], told, done + SECOND)], ordered, done + SECOND)
    # The program is inside malloc until it has its memory: the C library's part is no Python function.
    waiting = [(allocates, WALKERS["waiter"], "native.meter"), *between([*daemon, *waiter], allocates, has_it)]
    waiting.append((has_it, WALKERS["waiter"], "native.meter "))
    return [
        Walk(name="one lease", steps=steps_of(lease)),
        Walk(name="one park", steps=steps_of(park)),
        Walk(name="one waiting allocation", steps=steps_of(waiting)),
        Walk(name="one simulated job", steps=steps_of(simulated)),
    ]


def to_plain(walks: Iterable[Walk]) -> list[dict[str, Any]]:
    """As lists and dicts, to be kept."""
    return [
        {"name": walk.name, "steps": [[step.who, step.room, list(step.modules)] for step in walk.steps]}
        for walk in walks
    ]


def from_plain(kept: Iterable[Mapping[str, Any]]) -> list[Walk]:
    return [
        Walk(
            name=walk["name"],
            steps=tuple(Step(who=who, room=room, modules=tuple(modules)) for who, room, modules in walk["steps"]),
        )
        for walk in kept
    ]
