"""How long the device is idle when a turn changes hands, against killing a job and starting it again.

Measured: two real PyTorch training jobs (`programs/train.py`, tiny, about a millisecond an iteration) share one
daemon under policy fair with a quantum of 4 ms, so the turn changes hands every few iterations.
Each job stamps the first and the last operation of every iteration with the machine's monotonic clock. A hand-over is
from the last operation of one job (end of its optimizer's update) to the first operation of the other (start of its
forward): hooks, the bell that the one rings at the other, its wake-up, and the program's own Python up to its first
operation. The daemon is not on that way (docs/design/0006-bells.md): it decided beforehand who follows, and finds
the hand-over afterwards; only where no pass was armed does the turn go through it, and such hand-overs count as the
others do. `same_job_p50_us` is how long the same takes between two iterations of one job with no hand-over. The last
iteration of a job is left out, since what follows it is the end of a program. From the stamps it is also checked that
no two iterations ever overlapped; if any did, the benchmark fails.

The other arm is the same program outside carpool, killed with SIGKILL while it trains and started again: from the
kill to its first operation (interpreter, import of torch, building the model, with a warm page cache). The arms take
turns within the run.

Not measured: moving memory (nothing moves at a hand-over on the CPU device), a restart's lost iterations and
checkpoint, a GPU's context.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from carpool.bench.node import (
    Node,
    check_alive,
    open_node,
    python,
    read_stamps,
    start_plain,
    stop,
    wait_all,
    wait_files,
)
from carpool.bench.report import Report, Say, Target, percentile

TINY = {"width": 16, "depth": 1, "batch": 1}
QUANTUM = "4ms"  # a few iterations; much less and the daemon, looking at its timers, is never asleep
MEMORY = "1GiB"  # declared, so that both jobs are resident from the start
START_SECONDS = 120.0
RUN_SECONDS = 300.0
ROUNDS_MAX = 8
ENDLESS = 1_000_000_000

Stamps = list[tuple[int, int]]


@dataclass(slots=True)
class Found:
    """What all rounds together saw."""

    gaps_ns: list[int] = field(default_factory=list)
    own_gaps_ns: list[int] = field(default_factory=list)
    overlaps: int = 0
    restarts_ns: list[int] = field(default_factory=list)
    wall_s: float = 0.0
    daemon_s: float = 0.0


def run(say: Say, *, handovers: int, restarts: int, steps: int) -> Report:
    found = Found()
    with open_node(policy="fair", quantum=QUANTUM) as node:
        for number in range(ROUNDS_MAX):
            place = node.directory / f"round{number}"
            place.mkdir()
            share(node, place, steps, found, (node.run, node.run))
            say(f"handover: {len(found.gaps_ns)} hand-overs of {handovers}, {found.overlaps} overlaps")
            if len(found.restarts_ns) < restarts:
                _restart(node.directory, -(-restarts // 2), found)
                say(f"handover: {len(found.restarts_ns)} restarts of {restarts}")
            if len(found.gaps_ns) >= handovers:
                break
        while len(found.restarts_ns) < restarts:
            _restart(node.directory, restarts - len(found.restarts_ns), found)
    return _report(found)


def _report(found: Found) -> Report:
    report = Report(bench="handover")
    p50 = percentile(found.gaps_ns, 50) / 1000
    restart = median(found.restarts_ns) / 1000
    report.add("p50_us", p50, Target(limit=100))
    report.add("p99_us", percentile(found.gaps_ns, 99) / 1000, Target(limit=1000))
    report.add("restart_p50_us", restart)
    report.add("ratio_restart_over_handover", restart / p50, Target(limit=1000, is_least=True))
    report.add("overlaps", found.overlaps, Target(limit=0))
    report.add("handovers", len(found.gaps_ns))
    report.add("restarts", len(found.restarts_ns))
    report.add("min_us", min(found.gaps_ns) / 1000)
    report.add("p90_us", percentile(found.gaps_ns, 90) / 1000)
    report.add("same_job_p50_us", percentile(found.own_gaps_ns, 50) / 1000)
    report.add("daemon_us_per_handover", found.daemon_s * 1e6 / len(found.gaps_ns))
    report.add("daemon_core_fraction", found.daemon_s / found.wall_s)
    report.notes.append("the turn changes hands all the time here: daemon_core_fraction is a worst case")
    if found.overlaps:
        report.failure = f"two jobs had the device at the same time in {found.overlaps} iterations"
    return report


# --- the turn changes hands ------------------------------------------------------------------------------------


def share(
    node: Node, place: Path, steps: int, found: Found, runs: Sequence[Callable[..., subprocess.Popen[bytes]]]
) -> None:
    """One round: two jobs, each started by one of `runs`, from their first iteration to their last."""
    go = place / "go"
    jobs, ready, stamps = [], [], []
    for name, run in zip("ab", runs, strict=True):
        ready.append(place / f"{name}.ready")
        stamps.append(place / f"{name}.stamps")
        options = {**TINY, "steps": steps, "go": go, "ready": ready[-1], "stamps": stamps[-1]}
        jobs.append(run(python("train.py", options), "--memory", MEMORY, "--name", name))
    wait_files(ready, node.check_jobs, seconds=START_SECONDS)
    cpu_s, began = node.cpu_s(), time.monotonic()
    go.touch()
    wait_all(jobs, seconds=RUN_SECONDS)
    found.wall_s += time.monotonic() - began
    found.daemon_s += node.cpu_s() - cpu_s
    find_gaps([read_stamps(path) for path in stamps], found)


def find_gaps(jobs: list[Stamps], found: Found) -> None:
    """Note the times between the last operation of one job and the first of the next, and iterations that overlap."""
    rows = sorted((first, last, owner) for owner, stamps in enumerate(jobs) for first, last in stamps)
    ends = {stamps[-1][1] for stamps in jobs}
    until = dict.fromkeys(range(len(jobs)), 0)  # the end of each job's newest iteration so far
    before = -1
    for first, last, owner in rows:
        if any(first < end for other, end in until.items() if other != owner):
            found.overlaps += 1
        elif before == owner:
            found.own_gaps_ns.append(first - until[owner])
        elif before >= 0 and until[before] not in ends:
            found.gaps_ns.append(first - until[before])
        until[owner], before = last, owner


# --- kill and restart ------------------------------------------------------------------------------------------


def _restart(directory: Path, count: int, found: Found) -> None:
    """Kill a training program and start it again, so many times."""
    child, _ = _begin(directory)
    try:
        for _ in range(count):
            killed_ns = time.monotonic_ns()
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            child, first_ns = _begin(directory)
            found.restarts_ns.append(first_ns - killed_ns)
    finally:
        child.kill()
        stop(child)


def _begin(directory: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start the program outside carpool; returns when it trains, with the time of its first operation."""
    first = directory / "first"
    first.unlink(missing_ok=True)
    command = python("train.py", {**TINY, "steps": ENDLESS, "first": first})
    child = start_plain(command)
    try:
        wait_files([first], lambda: check_alive([child]), seconds=START_SECONDS)
    except BaseException:
        stop(child)
        raise
    return child, int(first.read_text())
