"""Users who ask too much of the machine's daemon hurt themselves only."""

from __future__ import annotations

import time

import pytest

from tests.e2e.machine import SETTINGS, Machine
from tests.e2e.node import is_alive, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def test_i51_a_flood_of_questions_costs_the_daemon_its_part_and_others_are_answered(machine: Machine) -> None:
    machine.start_machine()
    ana, ben = machine.people["ana"], machine.people["ben"]
    floods = [ben.start(*machine.command(["flood.py", "4", "60"])) for _ in range(3)]
    for flood in floods:
        flood.wait_line("flooding")
    cost_s, began = float(machine.status()["cpu_s"]), time.monotonic()
    for _ in range(3):
        assert ana.carpool("ps").code == 0
        time.sleep(1)
    spent = (float(machine.status()["cpu_s"]) - cost_s) / (time.monotonic() - began)
    assert all(is_alive(flood.pid) for flood in floods), "they have to flood all the while"
    assert spent < 0.6, f"the flood cost the daemon {spent:.0%} of a core"  # a quarter, and what reading costs


def test_i50_a_user_has_so_many_connections_and_the_one_too_many_is_told_why(machine: Machine) -> None:
    machine.start_machine(SETTINGS + "[limits]\nconnections = 3\n")
    ana, ben = machine.people["ana"], machine.people["ben"]
    waiting = [ana.run("sleep", "60") for _ in range(3)]
    wait_until(lambda: len(machine.ps(ended=False)["jobs"]) == 3, "all three are jobs")
    done = ana.carpool("ps")
    assert done.code == 3 and "may have 3" in done.err, (done.code, done.err)
    assert ben.carpool("ps").code == 0
    machine.write_settings(SETTINGS + "[limits]\nconnections = 4\n")
    assert machine.root.carpool("system", "reload").code == 0
    assert ana.carpool("ps").code == 0
    assert all(is_alive(each.pid) for each in waiting)


def test_i50_a_user_has_so_many_jobs_and_the_one_too_many_is_told_why(machine: Machine) -> None:
    machine.start_machine(SETTINGS + "[limits]\njobs = 1\n")
    ana, ben = machine.people["ana"], machine.people["ben"]
    first = ana.run("sleep", "60")
    wait_until(lambda: machine.ps(ended=False)["jobs"], "it is a job")
    done = ana.carpool("run", "--", "true")
    assert done.code == 1 and "have 1 jobs, and may have 1" in done.err, (done.code, done.err)
    assert ben.carpool("run", "--", "true").code == 0
    assert is_alive(first.pid)
