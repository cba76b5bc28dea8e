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


SILENT = """
import os, socket, time
from carpool.client import Client
peers = [socket.socket(socket.AF_UNIX) for _ in range(3)]
for peer in peers:
    peer.connect(os.fsencode(Client().places.socket))
print("connected", flush=True)
time.sleep(100)
"""


def test_i50_a_user_has_so_many_connections_and_the_one_too_many_is_told_why(machine: Machine) -> None:
    machine.start_machine(SETTINGS + "[limits]\nconnections = 3\n")
    ana, ben = machine.people["ana"], machine.people["ben"]
    ana.start(machine.population.python.python, "-c", SILENT).wait_line("connected")
    done = ana.carpool("ps")
    assert done.code == 3 and "may have 3" in done.err, (done.code, done.err)
    assert ben.carpool("ps").code == 0
    machine.write_settings(SETTINGS + "[limits]\nconnections = 5\n")
    assert machine.root.carpool("system", "reload").code == 0
    assert ana.carpool("ps").code == 0


def test_i50_a_user_has_so_many_jobs_and_the_one_too_many_is_told_why(machine: Machine) -> None:
    machine.start_machine(SETTINGS + "[limits]\njobs = 1\n")
    ana, ben = machine.people["ana"], machine.people["ben"]
    first = ana.run("sleep", "60")
    wait_until(lambda: machine.ps(ended=False)["jobs"], "it is a job")
    done = ana.carpool("run", "--", "true")
    assert done.code == 1 and "have 1 jobs, and may have 1" in done.err, (done.code, done.err)
    assert ben.carpool("run", "--", "true").code == 0
    assert is_alive(first.pid)


def test_i54_who_fills_the_daemons_disk_loses_the_job_that_does_it(machine: Machine) -> None:
    machine.start_machine(SETTINGS + '[limits]\nrun_size = "2MiB"\n')
    ana, ben = machine.people["ana"], machine.people["ben"]
    good = ana.run("sleep", "300", options=["--name", "good"])
    fill = 'head -c 8000000 /dev/urandom > "$(dirname "$CARPOOL_PAGE")/junk"; exec sleep 300'
    bad = ben.run("sh", "-c", fill, options=["--name", "bad"])
    done = bad.wait()
    assert done.code != 0
    reason = machine.job("bad")["reason"]
    assert "beside their pages, and may have 2.00 MiB ([limits] run_size)" in reason, reason
    assert is_alive(good.pid) and machine.state("good") not in ("failed", "cancelled")


def test_i54_who_forks_without_end_loses_the_job_that_does_it(machine: Machine) -> None:
    machine.start_machine(SETTINGS + "[limits]\nprocesses = 30\n")
    ana, ben = machine.people["ana"], machine.people["ben"]
    good = ana.run("sleep", "300", options=["--name", "good"])
    bad = ben.run("sh", "-c", "for i in $(seq 60); do sleep 300 & done; wait", options=["--name", "bad"])
    done = bad.wait()
    assert done.code != 0
    reason = machine.job("bad")["reason"]
    assert "processes, and may be 30 ([limits] processes)" in reason, reason
    assert is_alive(good.pid)


def test_i53_a_users_old_logs_make_room_and_a_job_that_prints_goes_on(machine: Machine) -> None:
    machine.start_machine(SETTINGS + '[limits]\nlog_size = "3MiB"\n')
    ana = machine.people["ana"]
    old = ana.submit("sh", "-c", "head -c 2000000 /dev/zero | tr '\\0' a", options=["--name", "old"])["id"]
    machine.wait_state(old, "finished")
    printing = "head -c 8000000 /dev/zero | tr '\\0' b; exec sleep 300"
    new = ana.submit("sh", "-c", printing, options=["--name", "new"])["id"]
    logs = machine.places.logs_of(ana.uid)
    wait_until(lambda: not (logs / f"{old}.log").exists(), "the log of the ended job is gone")
    wait_until(lambda: (logs / f"{new}.log").stat().st_blocks * 512 < 5_000_000, "the other one is cut")
    assert machine.state(new) not in ("failed", "cancelled")
