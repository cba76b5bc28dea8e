"""Jobs of several users under the machine's daemon: each runs as its user, and is closed to the others."""

from __future__ import annotations

import pytest

from tests.e2e.machine import Machine
from tests.e2e.node import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def start(machine: Machine) -> None:
    """Its daemon has a Python that all users may execute, as an installed one has."""
    machine.start_machine(python=machine.population.python.python)


def test_two_users_take_turns_and_neither_sees_the_others_files(machine: Machine) -> None:
    start(machine)
    ana, ben = machine.people["ana"], machine.people["ben"]
    jobs = {
        person: person.run("plain_loop.py", "--steps", "400", "--width", "1024", options=["--name", person.name])
        for person in (ana, ben)
    }
    for person in jobs:
        machine.wait_steps(person.name, 30)
    wait_until(lambda: machine.turns("ana") > 3 and machine.turns("ben") > 3, "both have had several turns")
    for person, other in ((ana, ben), (ben, ana)):
        found = machine.job(person.name)
        directory = machine.places.jobs / found["id"]
        page = directory / "page"
        assert (directory.stat().st_uid, directory.stat().st_mode & 0o777) == (person.uid, 0o700)
        assert (page.stat().st_uid, page.stat().st_mode & 0o777) == (person.uid, 0o600)
        kept = machine.places.kept_jobs / found["id"]
        assert (kept.stat().st_uid, kept.stat().st_mode & 0o777) == (0, 0o700)
        tried = [f"cat {page}", f"ls {directory}", f"cat {kept}/job.json", f"ls {kept}", f"touch {directory}/x"]
        tried += [f"cat /proc/{machine.program_pid(person.name)}/environ", f"ls {machine.places.bells}"]
        for words in tried:
            done = other.start("sh", "-c", words).wait()
            assert done.code != 0 and "Permission denied" in done.err, (words, done)
    for person, job in jobs.items():
        done = job.wait()
        assert done.code == 0 and b"done steps=400" in done.out, (person.name, done.err)
