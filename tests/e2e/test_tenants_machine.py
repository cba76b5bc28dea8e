"""Tenants on the machine's daemon, with programs of real users: ceilings hold, and change while jobs run."""

from __future__ import annotations

import time

import pytest

from tests.e2e.machine import SETTINGS, Machine
from tests.e2e.node import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

LOOP = """
import carpool, time
end = time.monotonic() + 200
while time.monotonic() < end:
    with carpool.turn():
        sum(range(100000))
"""


def served_ns(machine: Machine) -> int:
    return sum(job["served_ns"] for job in machine.ps(ended=False)["jobs"])


def test_ceilings_of_a_tenant_hold_and_change_while_its_jobs_run(machine: Machine) -> None:
    ana = machine.people["ana"]
    lab = f'[tenant.lab]\nmembers = ["{ana.login}"]\njobs = 1\ncompute = "30%"\n'
    machine.start_machine(f"{SETTINGS}{lab}")
    python = machine.population.python.python
    for name in ("one", "two"):
        ana.submit(python, "-c", LOOP, options=["--name", name, "--memory", "100MiB"])
    machine.wait_steps("one", 20)
    assert machine.job("two")["reason"] == (
        "waits for tenant lab's number of jobs: 1 job is started, and it may have 1 at once"
    )
    began, before = time.monotonic_ns(), served_ns(machine)
    wait_until(lambda: time.monotonic_ns() - began > 5 * 10**9, "five seconds are over")
    had, span = served_ns(machine) - before, time.monotonic_ns() - began
    assert 0.1 * span < had < 0.4 * span, "three tenths, whatever else the machine does"
    done = machine.root.carpool("tenant", "set", "lab", "--jobs", "2")
    assert done.code == 0, done.err
    machine.wait_steps("two", 20)
    done = machine.root.carpool("system", "reload")
    assert done.code == 0, done.err
    steps = {name: machine.job(name)["steps"] for name in ("one", "two")}
    assert [each["jobs"] for each in ana.ask("tenant", "list") if each["name"] == "lab"] == [1], "as the file says"
    for name, made in steps.items():
        machine.wait_steps(name, made + 20)
