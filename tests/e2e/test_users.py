"""Jobs of several users under the machine's daemon: each runs as its user, and is closed to the others."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from carpool.wire.page import FLAG_BELL
from tests.e2e.machine import Machine, Person
from tests.e2e.node import Started, wait_until
from tests.e2e.test_submit_is_run import SETTER, TELLER, told

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_two_users_take_turns_and_neither_sees_the_others_files(machine: Machine) -> None:
    machine.start_machine()
    ana, ben = machine.people["ana"], machine.people["ben"]
    jobs = {
        person: person.run("plain_loop.py", "--steps", "400", "--width", "1024", options=["--name", person.name])
        for person in (ana, ben)
    }
    for person in jobs:
        machine.wait_steps(person.name, 30)
    wait_until(lambda: machine.turns("ana") > 3 and machine.turns("ben") > 3, "both have had several turns")
    names = {machine.program_pid(person.name): machine.page(person.name, owner=person.uid) for person in jobs}
    for pid, page in names.items():
        bell = machine.places.bells / str(pid)
        assert (bell.stat().st_uid, bell.stat().st_mode & 0o777) == (0, 0o666)
        assert any(page.slot(number).has(FLAG_BELL) for number in page.pids())
        page.close()
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
        tried += [f"rm -f {machine.places.bells}/*; touch {machine.places.bells}/4711"]
        for words in tried:
            done = other.start("sh", "-c", words).wait()
            assert done.code != 0 and "Permission denied" in done.err, (words, done)
    for person, job in jobs.items():
        done = job.wait()
        assert done.code == 0 and b"done steps=400" in done.out, (person.name, done.err)


ALSO = """
print(json.dumps({"uids": os.getresuid(), "gids": os.getresgid(), "groups": sorted(os.getgroups()),
    "session": os.getsid(0), "parent_session": os.getsid(os.getppid()), "caps": status["CapEff"].strip(),
    "files": sorted(os.listdir("/proc/self/fd"))[:-1], "oom": open("/proc/self/oom_score_adj").read().strip()}))
"""


def by(person: Person, machine: Machine, *words: str) -> Started:
    """A carpool command of somebody who has limits, priority and signals of his own."""
    path = machine.population.python
    return person.start(path.python, "-c", SETTER, str(person.home), path.python, path.carpool, *words)


def test_i43_a_submitted_program_is_its_submitters_in_everything(machine: Machine) -> None:
    machine.start_machine()
    ana, python = machine.people["ana"], machine.population.python.python
    program = ["--name", "teller", "--", python, "-S", "-c", TELLER + ALSO]
    ran = by(ana, machine, "run", *program).wait()
    assert ran.code == 0, ran.err
    submitted = by(ana, machine, "submit", "--json", *program).wait()
    assert submitted.code == 0, submitted.err
    job = json.loads(submitted.out)["job"]["id"]
    assert machine.wait_state(job, "finished", "failed")["state"] == "finished"
    shown = ana.carpool("logs", job)
    in_run, in_submit = told(ran.out.splitlines()[-2]), told(shown.out.splitlines()[-2])
    for field, expected in in_run.items():
        assert in_submit[field] == expected, field
    ran_as, runs_as = json.loads(ran.lines[-1]), json.loads(shown.lines[-1])
    for field in ("uids", "gids", "groups", "caps", "files", "oom"):
        assert runs_as[field] == ran_as[field], field
    assert runs_as["uids"] == [ana.uid] * 3
    assert runs_as["caps"] == "0" * 16
    assert runs_as["session"] == runs_as["parent_session"] not in (os.getsid(0), ran_as["session"])
    log = machine.places.logs_of(ana.uid) / f"{job}.log"
    assert (log.stat().st_uid, log.stat().st_mode & 0o777) == (ana.uid, 0o600)
    for words in (f"cat {log}", f"ls {log.parent}", f"ls {machine.places.parked_of(ana.uid)}"):
        done = machine.people["ben"].start("sh", "-c", words).wait()
        assert done.code != 0 and "Permission denied" in done.err, (words, done)
    assert b"MARK" not in machine.people["ben"].carpool("ps", "--all", "--json").out


CLAIMS = """
import os, signal, sys
from carpool import calls, client
real = client.inherited()
limits = {name: (-1, -1) for name in real.limits}
client.inherited = lambda: calls.Inherited(umask=0o777, nice=-20, scheduler=os.SCHED_FIFO, cpus=list(range(64)),
    limits=limits, ignored_signals=[], blocked_signals=[])
print(client.Client().submit(sys.argv[1:]).job.id)
"""


def test_i43_nobody_gets_more_than_he_has_by_saying_so(machine: Machine) -> None:
    machine.start_machine()
    ana, python = machine.people["ana"], machine.population.python.python
    says = "import json, os, resource; print(json.dumps([os.getresuid(), os.nice(0), os.sched_getscheduler(0),"
    says += " resource.getrlimit(resource.RLIMIT_NOFILE)]))"
    words = "ulimit -n 512; exec nice -n 7 " + shlex.join([python, "-c", CLAIMS, python, "-S", "-c", says])
    done = ana.start("sh", "-c", words).wait()
    assert done.code == 0, done.err
    job = done.lines[0]
    assert machine.wait_state(job, "finished", "failed")["state"] == "finished"
    last = ana.carpool("logs", job).lines[-1]
    assert json.loads(last) == [[ana.uid] * 3, os.nice(0) + 7, os.SCHED_OTHER, [512, 512]]


def test_i43_who_is_confined_cannot_submit(machine: Machine) -> None:
    machine.start_machine()
    carpool = machine.population.python.carpool
    for words in (["unshare", "--mount"], ["unshare", "--pid", "--fork"], ["unshare", "--net"]):
        done = machine.root.start(*words, carpool, "submit", "--", "true").wait()
        assert done.code == 1 and "container" in done.err, (words, done)
    done = machine.root.start(carpool, "submit", "--", "true").wait()
    assert done.code == 0, done.err


def test_parked_memory_lies_in_its_users_own_store(machine: Machine) -> None:
    machine.start_machine()
    ana, ben = machine.people["ana"], machine.people["ben"]
    job = ana.run("plain_loop.py", "--steps", "100000", "--width", "1024", options=["--name", "ana"])
    machine.wait_steps("ana", 30)
    assert ana.carpool("suspend", "ana").code == 0
    machine.wait_state("ana", "parked")  # its bytes there are booked before
    store = machine.places.parked_of(ana.uid)
    assert (store.stat().st_uid, store.stat().st_mode & 0o777) == (ana.uid, 0o700)
    links = [str(each.readlink()) for each in Path(f"/proc/{machine.program_pid('ana')}/fd").iterdir()]
    assert any(link.startswith(str(store)) for link in links), links
    done = ben.start("ls", str(store)).wait()
    assert done.code != 0 and "Permission denied" in done.err
    assert ana.carpool("resume", "ana").code == 0
    machine.wait_steps("ana", machine.job("ana")["steps"] + 10)
    assert ana.carpool("cancel", "ana").code == 0
    job.wait()


def test_a_checkpoint_is_written_by_its_users_process_alone(machine: Machine) -> None:
    machine.start_machine()
    ana = machine.people["ana"]
    job = ana.run("plain_loop.py", "--steps", "100000", options=["--name", "ana", "--checkpointable"])
    machine.wait_steps("ana", 10)
    file = ana.home / "a.ckpt"
    done = ana.carpool("checkpoint", "ana", str(file), "--stop")
    assert done.code == 0, done.err
    assert file.stat().st_uid == ana.uid
    job.wait()
    nowhere = machine.directory / "of-root.ckpt"
    again = ana.run("plain_loop.py", "--steps", "100000", options=["--name", "again", "--checkpointable"])
    machine.wait_steps("again", 10)
    done = ana.carpool("checkpoint", "again", str(nowhere))
    assert done.code == 1 and not nowhere.exists(), "root wrote nothing for her"
    assert ana.carpool("cancel", "again").code == 0
    again.wait()
