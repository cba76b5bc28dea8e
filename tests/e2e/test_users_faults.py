"""What goes wrong, or is made to go wrong, between users of the machine's daemon: each fault stays its user's own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.machine import Machine
from tests.e2e.node import PATIENCE, PROGRAMS, is_alive, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
LOOP = ("plain_loop.py", "--steps", "100000", "--width", "64")


def restart(machine: Machine) -> None:
    machine.kill_daemon()
    machine.start_machine()


def runs(machine: Machine, name: str) -> int:
    """The pid of a job's program, when it has one."""
    wait_until(lambda: (machine.find(name) or {}).get("pids"), f"{name} runs")
    return machine.program_pid(name)


def test_jobs_of_all_users_outlive_their_daemon_and_a_queued_one_still_runs_as_its_user(machine: Machine) -> None:
    machine.start_machine()
    ana, ben = machine.people["ana"], machine.people["ben"]
    running = {
        person: person.run(*LOOP, options=["--name", person.name, "--memory", "1GiB"]) for person in (ana, ben)
    }
    for person in running:
        machine.wait_steps(person.name, 5)
    full = [ben.run("sleep", "1000", options=["--name", f"sleep{number}"]) for number in range(3)]
    for number in range(len(full)):
        runs(machine, f"sleep{number}")
    says = "id -u; id -G; umask; ulimit -n; pwd"
    words = f"ulimit -n 600; umask 037; exec carpool submit --name late --memory 3GiB -- sh -c '{says}'"
    assert ana.start("sh", "-c", words).wait().code == 0
    assert machine.state("late") == "queued"
    waits = ben.run("sleep", "1000", options=["--name", "waits", "--memory", "3GiB"])
    before = machine.wait_state("waits", "queued")["id"]
    restart(machine)
    for person in running:
        steps = machine.job(person.name)["steps"]
        machine.wait_steps(person.name, steps + 5)
        assert machine.job(person.name)["uid"] == person.uid
    wait_until(lambda: machine.find("waits") is not None, "its runner came back")
    assert machine.job("waits")["id"] == before
    assert ben.carpool("cancel", "waits").code == 0
    assert waits.wait().code != 0
    for person, job in running.items():
        assert person.carpool("cancel", person.name).code == 0
        assert job.wait().code != 0
    assert ben.carpool("cancel", "sleep0", "sleep1").code == 0
    assert machine.wait_state("late", "finished", "failed")["state"] == "finished"
    groups = " ".join(map(str, os.getgrouplist(ana.login, ana.gid)))
    assert ana.carpool("logs", "late").lines[-5:] == [str(ana.uid), groups, "0037", "600", str(ana.home)]


def test_a_program_that_does_not_listen_is_ended_across_users(machine: Machine) -> None:
    machine.start_machine()
    ana = machine.people["ana"]
    ana.submit("sh", "-c", "trap '' TERM; while :; do sleep 1; done", options=["--name", "deaf"])
    pid = runs(machine, "deaf")
    assert ana.carpool("cancel", "deaf").code == 0
    machine.wait_state("deaf", "cancelled")
    wait_until(lambda: not is_alive(pid), "it was killed")


def test_a_job_whose_runner_was_killed_is_watched_by_the_daemon(machine: Machine) -> None:
    machine.start_machine()
    ana = machine.people["ana"]
    ana.submit("sh", "-c", "sleep 1000", options=["--name", "sleeps"])
    pid = runs(machine, "sleeps")
    file = json.loads((machine.places.kept_jobs / machine.job("sleeps")["id"] / "job.json").read_text())
    os.kill(file["runner_pid"], signal.SIGKILL)
    assert machine.state("sleeps") != "failed"
    assert ana.carpool("cancel", "sleeps").code == 0
    machine.wait_state("sleeps", "cancelled", "failed")
    wait_until(lambda: not is_alive(pid), "it was ended")


SPOILS = """
import json, os, sys, time
from pathlib import Path
place = Path(os.environ["CARPOOL_PAGE"]).parent
victim = int(sys.argv[1])
nonsense = [b"{", b'{"code": 99999999999999999999}', b'{"code": 0, "state": "nonsense"}']
for number, name in enumerate(("end.json", "checkpoint.ready", "checkpoint.refused")):
    (place / name).unlink(missing_ok=True)
    (place / name).write_bytes(nonsense[number])
(place / "started.json").unlink()
(place / "started.json").write_text(json.dumps({"runner_pid": victim, "runner_birth": 0, "child_pid": victim,
    "child_birth": 0}))
(place / "job.json").write_text("{}")
os.mkfifo(place / "checkpoint.order.new")
os.truncate(place / "page", 100)
for number in range(1000):
    (place / f"{number}.junk").write_text("x")
print("spoilt", flush=True)
time.sleep(1000)
"""


def test_i41_whatever_a_program_does_to_its_directory_the_next_daemon_starts_and_others_go_on(
    machine: Machine,
) -> None:
    machine.start_machine()
    ana, eve = machine.people["ana"], machine.people["eve"]
    job = ana.run(*LOOP, options=["--name", "ana"])
    machine.wait_steps("ana", 5)
    python = machine.population.python.python
    victim = machine.program_pid("ana")
    spoiler = eve.run(python, "-S", "-c", SPOILS, str(victim), options=["--name", "spoils"])
    spoiler.wait_line("spoilt")
    restart(machine)
    machine.wait_steps("ana", machine.job("ana")["steps"] + 5)
    assert eve.carpool("cancel", "spoils").code in (0, 1)
    wait_until(lambda: machine.state("spoils") not in ("running", "waiting", "unmanaged", "starting"), "it is over")
    assert job.process.poll() is None and is_alive(victim), "a pid that eve named is not hers to end"
    restart(machine)
    machine.wait_steps("ana", machine.job("ana")["steps"] + 5)
    assert not [path for path in machine.places.jobs.iterdir() if path.name.startswith("spoils")]


def test_i42_a_process_of_another_user_is_of_no_job_whatever_its_variables_say(machine: Machine) -> None:
    machine.start_machine()
    ana, eve = machine.people["ana"], machine.people["eve"]
    job = ana.run(*LOOP, options=["--name", "ana"])
    machine.wait_steps("ana", 5)
    page = machine.places.jobs / machine.job("ana")["id"] / "page"
    hers = eve.start("sleep", "1000", added={"CARPOOL_PAGE": str(page), "CARPOOL_JOB": machine.job("ana")["id"]})
    assert ana.carpool("cancel", "ana").code == 0
    job.wait()
    machine.wait_state("ana", "cancelled")
    assert hers.process.poll() is None


@pytest.fixture
def stuck() -> Iterator[Path]:
    """A directory with a file that cannot be closed."""
    place = Path("/tmp") / f"cp-stuck-{os.getpid()}"
    place.mkdir()
    server = subprocess.Popen(["python3", PROGRAMS / "stuck_files.py", place], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        if server.stdout.readline() != "ready\n":
            pytest.skip("no file system can be made here (/dev/fuse, mount), so a held up /proc is NOT tested")
        yield place
    finally:
        server.kill()
        server.wait(PATIENCE)
        if server.stdout is not None:
            server.stdout.close()
        subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)
        shutil.rmtree(place, ignore_errors=True)


HOLDS_UP = """
import os, sys
os.open(sys.argv[1] + "/x", os.O_RDWR | os.O_CLOEXEC)
print("executes", flush=True)
os.execv("/bin/sleep", ["sleep", "1000"])
"""


def test_i40_a_process_whose_files_in_proc_do_not_open_holds_up_nobody(machine: Machine, stuck: Path) -> None:
    machine.start_machine()
    ana, eve = machine.people["ana"], machine.people["eve"]
    job = ana.run(*LOOP, options=["--name", "ana", "--memory", "1GiB"])
    machine.wait_steps("ana", 5)
    python = machine.population.python.python
    holders = [
        eve.run(python, "-S", "-c", HOLDS_UP, str(stuck), options=["--name", f"holds{number}", "--memory", "64MiB"])
        for number in range(4)
    ]
    for each in holders:
        each.wait_line("executes")
    slowest = 0.0
    for _ in range(20):
        began = time.monotonic()
        machine.ps()
        assert ana.carpool("explain", "ana").code == 0
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < PATIENCE / 2, "each look at eve's processes was waited for"
    ended = ana.run("true", options=["--name", "short"])
    assert ended.wait().code == 0
    machine.wait_state("short", "finished")
    machine.wait_steps("ana", machine.job("ana")["steps"] + 20)
    restart(machine)
    machine.wait_steps("ana", machine.job("ana")["steps"] + 20)
    assert ana.carpool("cancel", "ana").code == 0
    assert job.wait().code != 0


CLAIMS_AN_ID = """
import sys
from carpool import __version__
from carpool.client import DaemonSocket
from carpool.wire import messages as m
from carpool.wire.places import find_places
import os
wire = DaemonSocket(find_places())
wire.send(m.Enter(job=sys.argv[1], spec={"name": "hers"}, argv=["true"], cwd="/", pid=os.getpid(), child_pid=0,
    version=__version__, protocol=m.PROTOCOL))
print(wire.receive().job, flush=True)
"""


def test_nobody_gets_the_id_of_a_job_by_naming_it(machine: Machine) -> None:
    """Else eve could have the id that the next job of ana is given, or keep a queued one from coming back."""
    machine.start_machine()
    python = machine.population.python.python
    for wanted in ("ana-2", "ana-4", "x-99"):
        done = machine.people["eve"].start(python, "-c", CLAIMS_AN_ID, wanted).wait()
        assert done.code == 0 and done.lines[0].startswith("hers-"), (wanted, done)
    assert machine.people["ana"].run("true", options=["--name", "ana"]).wait().code == 0


def test_a_queued_job_runs_as_its_user_after_the_machine_was_started_anew(machine: Machine) -> None:
    """Then /run is empty, and nothing runs any more: what is kept of the job is all there is."""
    machine.start_machine()
    ana, ben = machine.people["ana"], machine.people["ben"]
    full = [ben.run("sleep", "1000", options=["--name", f"sleep{number}"]) for number in range(4)]
    for number in range(len(full)):
        runs(machine, f"sleep{number}")
    ana.submit("id", "-u", options=["--name", "late", "--memory", "3GiB"])
    assert machine.state("late") == "queued"
    machine.kill_daemon()
    for job in full:
        os.kill(job.pid, signal.SIGKILL)
    for pid in machine.processes():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not machine.processes(), "nothing runs")
    shutil.rmtree(machine.places.run)
    machine.start_machine()
    assert machine.wait_state("late", "finished", "failed")["state"] == "finished"
    assert ana.carpool("logs", "late").lines[-1] == str(ana.uid)
    for number in range(len(full)):
        machine.wait_state(f"sleep{number}", "failed")


def test_programs_start_cold_under_the_machines_daemon_and_are_told_why(machine: Machine) -> None:
    machine.start_machine()
    ana = machine.people["ana"]
    done = ana.run("plain_loop.py", "--steps", "3", options=["--name", "cold", "--warm"]).wait()
    assert done.code == 0, done.err
    found = machine.wait_state("cold", "finished")
    assert found["start"] == "cold: the machine's daemon keeps no warm parents"
