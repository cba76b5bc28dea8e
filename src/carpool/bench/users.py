"""What it costs that one daemon serves all users of a machine. It needs root.

Measured, on the daemon of a private machine:

`handover_between_users_over_inside`: the median time of a hand-over between jobs of two users over that between two
jobs of one user. The pairs of jobs take turns within the run, and each is measured like `carpool bench handover`.
`journal_bytes_per_million_handovers` is by how much the journal grew meanwhile.

`handover_between_containers_over_inside`: the same between two containers of bubblewrap over inside none: each has
its own pid, mount, user and network namespaces. It is left out where bubblewrap is not here or may not run.

`ps_200_jobs_s`: how long `carpool ps` of one user takes with 200 jobs of 50 tenants, of which 8 take turns.
`daemon_core_fraction`: the part of a core that the daemon uses then, while nobody asks it anything.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from carpool.bench.handover import START_SECONDS, Found, share
from carpool.bench.machine import Machine, free_uids, open_machine
from carpool.bench.node import python, stop, wait_files
from carpool.bench.report import Report, Say, Target
from carpool.errors import PeerError

QUANTUM = "4ms"
SETTINGS = f'policy = "fair"\ndevice = "cpu:8GiB"\nquantum = "{QUANTUM}"\n'
MANY = 'policy = "fair"\ndevice = "cpu:16GiB"\nstarts = "8"\n'
TENANTS, JOBS, TAKING_TURNS = 50, 200, 8
PS_TIMES = 5
MANY_SECONDS = 240.0

Run = Callable[..., subprocess.Popen[bytes]]


def run(say: Say, *, rounds: int, steps: int, jobs: int, seconds: float) -> Report:
    report = Report(bench="users")
    with open_machine(SETTINGS) as machine:
        _measure_handovers(machine, report, say, rounds=rounds, steps=steps)
    with open_machine(MANY) as machine:
        _measure_many(machine, report, say, jobs=jobs, seconds=seconds)
    return report


# --- hand-overs ------------------------------------------------------------------------------------------------


def _measure_handovers(machine: Machine, report: Report, say: Say, *, rounds: int, steps: int) -> None:
    first, second = free_uids(2)
    names = ["inside", "between_users", "between_containers"]
    missing = machine.why_no_containers(first)
    if missing:
        names.pop()
        report.notes.append(f"hand-overs between containers were not measured: {missing}")
    found = {name: Found() for name in names}
    before = _journal_bytes(machine)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            place = machine.directory / f"{name}{number}"
            place.mkdir()
            place.chmod(0o777)
            runs: dict[str, tuple[Run, Run]] = {
                "inside": (machine.run_as(first), machine.run_as(first)),
                "between_users": (machine.run_as(first), machine.run_as(second)),
                "between_containers": (machine.in_container(first, place), machine.in_container(second, place)),
            }
            share(machine, place, steps, found[name], runs[name])
        say("users: " + ", ".join(f"{len(each.gaps_ns)} hand-overs {name}" for name, each in found.items()))
    grown = _journal_bytes(machine) - before
    medians = {name: median(each.gaps_ns) for name, each in found.items()}
    handovers = sum(len(each.gaps_ns) for each in found.values())
    for name in names[1:]:
        report.add(f"handover_{name}_over_inside", medians[name] / medians["inside"], Target(limit=1.1))
    report.add("journal_bytes_per_million_handovers", round(grown * 1e6 / handovers))
    for name in names:
        report.add(f"handover_{name}_p50_us", medians[name] / 1000)
    report.add("handovers", handovers)
    report.notes.append("what the journal keeps of starts and ends of jobs is in its bytes")
    overlaps = sum(each.overlaps for each in found.values())
    if overlaps:
        report.failure = f"two jobs had the device at the same time in {overlaps} iterations"


def _journal_bytes(machine: Machine) -> int:
    machine.client.flush()
    journal = machine.places.journal
    return sum(path.stat().st_size for path in journal.parent.glob(journal.name + "*"))


# --- many jobs -------------------------------------------------------------------------------------------------


def _measure_many(machine: Machine, report: Report, say: Say, *, jobs: int, seconds: float) -> None:
    uids = free_uids(min(TENANTS, jobs))
    taking = min(TAKING_TURNS, jobs)
    ready = [_start_taking(machine, uid) for uid in uids[:taking]]
    wait_files(ready, machine.check_jobs, seconds=MANY_SECONDS)
    for number in range(jobs - taking):
        machine.run_as(uids[number % len(uids)])(["sleep", "100000"], "--memory", "1MiB")
        if number % 20 == 19:
            _wait_running(machine, taking + number + 1)
            say(f"users: {taking + number + 1} jobs of {jobs}")
    _wait_running(machine, jobs)
    before, began = machine.cpu_s(), time.monotonic()
    time.sleep(seconds)
    cost = machine.cpu_s() - before
    report.add("daemon_core_fraction", cost / (time.monotonic() - began), Target(limit=0.01))
    report.add("ps_200_jobs_s", median(_time_ps(machine, uids[0]) for _ in range(PS_TIMES)), Target(limit=0.3))
    report.add("jobs", jobs)
    report.add("tenants", len(uids))
    report.add("jobs_taking_turns", taking)


def _start_taking(machine: Machine, uid: int) -> Path:
    """A job that trains as long as it is let."""
    home = machine.directory_of(uid)
    ready = home / "first"
    options = {"width": 64, "depth": 1, "batch": 4, "steps": 1_000_000_000, "first": ready}
    machine.run_as(uid)(python("train.py", options), "--memory", "1GiB")
    return ready


def _wait_running(machine: Machine, count: int) -> None:
    deadline = time.monotonic() + MANY_SECONDS
    while len([job for job in machine.jobs() if job["pids"]]) < count:
        machine.check_jobs()
        if time.monotonic() > deadline:
            raise PeerError(f"{count} jobs did not start in {MANY_SECONDS:.0f} s")
        time.sleep(0.5)


def _time_ps(machine: Machine, uid: int) -> float:
    """How long one user waits for `carpool ps`."""
    began = time.monotonic()
    child = machine.popen(uid, [sys.executable, "-m", "carpool.cli.main", "ps"], stdout=subprocess.DEVNULL)
    try:
        if child.wait(START_SECONDS):
            raise PeerError("carpool ps failed")
    finally:
        stop(child)
    return time.monotonic() - began
