"""Thousands of short jobs of ten users: the daemon does not grow, and each job costs what the first ones did.

A short part runs with the other tests; `make chaos` runs 5,000 jobs (SOAK_JOBS).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.machine import Machine, Person, Population
from tests.e2e.node import wait_until

JOBS = int(os.environ.get("SOAK_JOBS", "50"))
USERS = 10
PARTS = 5
IS_LONG = JOBS >= 1000  # a short part shows that it runs: caches still fill

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200 + JOBS)]


@dataclass(frozen=True, kw_only=True)
class Size:
    ended: int
    resident_kib: int
    descriptors: int
    cpu_s: float


def measure(machine: Machine, ended: int) -> Size:
    assert machine.daemon is not None
    proc = Path(f"/proc/{machine.daemon.pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    return Size(
        ended=ended,
        resident_kib=int(status["VmRSS"].split()[0]),
        descriptors=len(list((proc / "fd").iterdir())),
        cpu_s=float(machine.status()["cpu_s"]),
    )


def people(machine: Machine, population: Population) -> list[Person]:
    missing = [f"u{number}" for number in range(USERS - len(machine.people))]
    more = [Person(machine, name, population.logins.get(name) or population.add(name)) for name in missing]
    return [*machine.people.values(), *more]


def test_short_jobs_of_many_users_leave_nothing_behind(machine: Machine, population: Population) -> None:
    machine.start_machine()
    users = people(machine, population)
    each = -(-JOBS // len(users))
    programs = [user.start(*machine.command(["submitter.py", str(each)])) for user in users]
    sizes: list[Size] = []

    def count() -> int:
        return sum(len(program.lines) for program in programs)

    for part in range(1, PARTS + 1):
        enough = part * each * len(users) // PARTS
        wait_until(lambda enough=enough: count() >= enough, f"{enough} jobs", seconds=100 + JOBS)  # type: ignore[misc]  # mypy knows no default of a lambda
        sizes.append(measure(machine, count()))
    for program in programs:
        done = program.wait(seconds=100 + JOBS)
        assert done.code == 0 and done.lines[-1] == f"good={each}", done.err
    for user in users:
        wait_until(lambda user=user: not machine.ps(ended=False)["jobs"], "nothing is left")  # type: ignore[misc]  # mypy knows no default of a lambda
        assert not list((machine.places.jobs).iterdir()) and not list(machine.places.kept_jobs.iterdir())
    time.sleep(0.5)
    end = measure(machine, each * len(users))
    costs = [
        1000 * (after.cpu_s - before.cpu_s) / max(1, after.ended - before.ended)
        for before, after in zip(sizes, sizes[1:], strict=False)
    ]
    print(
        f"soak of {end.ended} jobs of {len(users)} users: "
        + ", ".join(f"{size.resident_kib / 1024:.1f} MB" for size in [*sizes, end])
        + f"; descriptors {[size.descriptors for size in [*sizes, end]]}; ms of the daemon a job by fifths: "
        + ", ".join(f"{cost:.1f}" for cost in costs)
    )
    assert end.descriptors <= sizes[0].descriptors + 4
    if IS_LONG:
        assert end.resident_kib <= 1.3 * sizes[0].resident_kib, sizes
        assert costs[-1] <= 1.5 * costs[0], costs
