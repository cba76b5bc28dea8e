"""Users of one machine whose programs join: each is served as who the kernel says he is, in a container too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.boxes import LINKS, why_not
from tests.e2e.joins import BEGIN
from tests.e2e.machine import Machine, Person
from tests.e2e.node import Started, wait_until

pytestmark = pytest.mark.timeout(240)
JOINS = BEGIN + "job = carpool.join(sys.argv[1]); print(job.id, flush=True); turns(sys.argv[2])"


def join(machine: Machine, person: Person, name: str) -> Started:
    return person.start(machine.population.python.python, "-c", JOINS, name, str(machine.files / "stop"))


def test_programs_of_two_users_join_and_take_turns(machine: Machine) -> None:
    machine.start_machine()
    machine.files.chmod(0o755)
    ana, ben = machine.people["ana"], machine.people["ben"]
    programs = [join(machine, ana, "anas"), join(machine, ben, "bens")]
    for name, person in (("anas", ana), ("bens", ben)):
        machine.wait_steps(name, 20)
        assert machine.job(name)["user"] == person.login
    wait_until(lambda: min(machine.turns("anas"), machine.turns("bens")) >= 3, "both had several turns")
    refused = ben.carpool("cancel", "anas")
    assert refused.code == 1 and "only its owner and admins may cancel it" in refused.err
    (machine.files / "stop").touch()
    for name, program in zip(("anas", "bens"), programs, strict=True):
        assert program.wait().code == 0
        machine.wait_state(name, "finished")


def test_x10_root_adopts_for_another_user_and_nobody_else_does(machine: Machine) -> None:
    machine.start_machine()
    ana, ben = machine.people["ana"], machine.people["ben"]
    sleeper = ana.start("sleep", "100")
    refused = ben.carpool("adopt", "--pid", str(sleeper.pid))
    assert refused.code == 1 and "each joins for his own only" in refused.err
    done = machine.root.carpool("adopt", "--pid", str(sleeper.pid), "--name", "prolog", "--json")
    assert done.code == 0, done.err
    job = machine.job("prolog")
    assert job["user"] == ana.login and job["pids"] == [sleeper.pid]
    page = Path(json.loads(done.out)["page"])
    assert page.stat().st_uid == ana.uid and page.stat().st_mode & 0o077 == 0
    assert ana.carpool("cancel", "prolog").code == 0
    machine.wait_state("prolog", "cancelled")


def test_a_user_runs_a_container_on_the_machines_daemon(machine: Machine) -> None:
    if why_not("bwrap"):
        pytest.skip(why_not("bwrap"))
    machine.start_machine()
    machine.files.chmod(0o755)
    ana = machine.people["ana"]
    done = ana.carpool("container-args", "--bwrap", "--json", "--name", "boxed")
    assert done.code == 0, done.err
    added: list[str] = json.loads(done.out)
    words = [
        "bwrap",
        "--unshare-all",
        "--die-with-parent",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--ro-bind",
        "/usr",
        "/usr",
    ]
    words += ["--tmpfs", "/run", "--ro-bind", str(machine.files), "/job"]
    for link in LINKS:
        words += ["--symlink", f"usr/{link}", f"/{link}"]
    inside = ana.start(*words, "--clearenv", *added, "/usr/bin/python3", "-c", JOINS, "boxed", "/job/stop")
    machine.wait_steps("boxed", 20)
    job = machine.job("boxed")
    assert job["user"] == ana.login and job["container"].startswith("ns")
    (machine.files / "stop").touch()
    assert inside.wait().code == 0, inside.err
    machine.wait_state("boxed", "finished")
