"""How long a program takes from `carpool run` to its first training step, cold and warm.

Measured: `programs/first_step.py`, a small model and one step of Adam, started with `carpool run --cold` and `--warm`
in turns. *Wall* is from before the command is started until the step is over. *CPU* is what all who take part have
used of the processors until then: the runner, the program, and for a warm start the keeper and what the parent used
meanwhile; the daemon's part is the same in both. *Seven at once* is from before the first command until the last of
the programs has begun its first step: from there on they wait for each other's turns. The memory that a warm program
adds is what parent, keeper and program have together (PSS: shared pages count in parts), less what the parent had.

The parent is there before anything is measured; `parent_s` is the first warm start, which makes it. Every warm arm is
checked to have been one. The package is compiled first, as an installed one is.
"""

from __future__ import annotations

import compileall
import contextlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import carpool
from carpool.bench.node import Node, open_node, python, wait_all, wait_files
from carpool.bench.report import Report, Say, Target
from carpool.errors import PeerError

START_SECONDS = 300.0
END_SECONDS = 120.0
MEMORY = "512MiB"  # declared, so that all are resident from the start
COLD, WARM = "--cold", "--warm"


@dataclass(slots=True)
class Found:
    """What the rounds saw, by arm, in ns and bytes."""

    wall: dict[str, list[int]] = field(default_factory=lambda: {COLD: [], WARM: []})
    cpu: dict[str, list[int]] = field(default_factory=lambda: {COLD: [], WARM: []})
    together: dict[str, list[int]] = field(default_factory=lambda: {COLD: [], WARM: []})
    added_bytes: list[int] = field(default_factory=list)
    parent_ns: int = 0


def run(say: Say, *, rounds: int, programs: int) -> Report:
    compileall.compile_dir(Path(carpool.__file__).parent, quiet=2)
    found = Found()
    with open_node(policy="fair") as node:
        began = time.monotonic_ns()
        _one(node, "first", WARM, Found())
        found.parent_ns = time.monotonic_ns() - began
        for number in range(rounds):
            for arm in (COLD, WARM):
                _one(node, f"one{number}{arm}", arm, found)
                say(f"start: one {arm}, {found.wall[arm][-1] / 1e9:.3f} s, {found.cpu[arm][-1] / 1e9:.3f} s of CPU")
            for arm in (COLD, WARM):
                _together(node, f"all{number}{arm}", arm, programs, found)
                say(f"start: {programs} at once {arm}, {found.together[arm][-1] / 1e9:.3f} s")
    return _report(found, programs)


def _report(found: Found, programs: int) -> Report:
    report = Report(bench="start")
    report.add("warm_over_cold", _ratio(found.wall), Target(limit=0.12))
    report.add("warm_cpu_over_cold", _ratio(found.cpu), Target(limit=0.05))
    report.add("seven_warm_over_cold", _ratio(found.together), Target(limit=0.05))
    report.add("pss_added_mib", median(found.added_bytes) / (1 << 20), Target(limit=30))
    for name, arms in (("", found.wall), ("_cpu", found.cpu), ("_seven", found.together)):
        report.add(f"cold{name}_s", median(arms[COLD]) / 1e9)
        report.add(f"warm{name}_s", median(arms[WARM]) / 1e9)
    report.add("parent_s", found.parent_ns / 1e9)
    report.add("programs_at_once", programs)
    return report


def _ratio(arms: dict[str, list[int]]) -> float:
    """The median of the rounds: the arms of a round were on the machine one after the other."""
    return median(warm / cold for warm, cold in zip(arms[WARM], arms[COLD], strict=True))


@dataclass(slots=True)
class Start:
    """One program on its way."""

    name: str
    begun: Path
    stepped: Path
    go: Path

    def command(self) -> list[str]:
        return python("first_step.py", {"begun": self.begun, "stepped": self.stepped, "go": self.go})


def _start_of(node: Node, name: str) -> Start:
    files = [node.directory / f"{name}.{part}" for part in ("begun", "stepped", "go")]
    return Start(name, *files)


def _one(node: Node, name: str, arm: str, found: Found) -> None:
    start, parents = _start_of(node, name), _parents(node)
    before_ns, before_bytes = sum(map(_cpu_ns, parents)), sum(map(_pss_bytes, parents))
    began = time.monotonic_ns()
    child = node.run(start.command(), arm, "--memory", MEMORY, "--name", name)
    wait_files([start.stepped], node.check_jobs, seconds=START_SECONDS)
    told = json.loads(start.stepped.read_text())
    used = told["cpu_ns"] + _cpu_ns(child.pid)
    job = node.client.job(name)
    _check(name, arm, job.start)
    if arm == WARM:
        kept = [pid for pid in (_parent_of(pid) for pid in job.pids) if pid]
        used += sum(map(_cpu_ns, (*parents, *kept))) - before_ns
        found.added_bytes.append(sum(map(_pss_bytes, (*parents, *kept, *job.pids))) - before_bytes)
    found.wall[arm].append(told["at_ns"] - began)
    found.cpu[arm].append(used)
    start.go.touch()
    wait_all([child], seconds=END_SECONDS)


def _together(node: Node, name: str, arm: str, programs: int, found: Found) -> None:
    starts = [_start_of(node, f"{name}-{number}") for number in range(programs)]
    began = time.monotonic_ns()
    children = [node.run(start.command(), arm, "--memory", MEMORY, "--name", start.name) for start in starts]
    wait_files([start.begun for start in starts], node.check_jobs, seconds=START_SECONDS)
    last = max(json.loads(start.begun.read_text())["at_ns"] for start in starts)
    for start in starts:
        _check(start.name, arm, node.client.job(start.name).start)
        start.go.touch()
    found.together[arm].append(last - began)
    wait_all(children, seconds=END_SECONDS)


def _check(name: str, arm: str, start: str) -> None:
    if (start == "warm") != (arm == WARM):
        raise PeerError(f"{name} was to start {arm.removeprefix('--')}, and started {start or 'cold'}")


def _parents(node: Node) -> list[int]:
    return [parent.pid for parent in node.client.status().warm_parents]


def _parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _cpu_ns(pid: int) -> int:
    """Of all threads of a process, by the scheduler's own count: clock ticks are too coarse."""
    used = 0
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            used += int((task / "schedstat").read_text().split()[0])
    return used


def _pss_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
