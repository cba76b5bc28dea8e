"""Two users and an admin at the machine's daemon: who may do what, who is named for it, and what each sees."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from carpool.daemon import processes
from tests.e2e.machine import Machine, Person
from tests.e2e.node import wait_until

SETTINGS = 'device = "cpu:2GiB"\n'
SECRET = "the-secret-word"
SLEEPER = ("/bin/sh", "-c", f"sleep 1000; : {SECRET}")
ORDERS = (
    ("suspend", "--no-wait", "{job}"),
    ("resume", "--no-wait", "{job}"),
    ("resize", "--no-wait", "{job}", "--memory", "1GiB"),
    ("migrate", "--no-wait", "{job}", "--to", "cpu"),
    ("checkpoint", "{job}", "{file}"),
    ("cancel", "{job}"),
)


def start(machine: Machine, text: str = SETTINGS) -> tuple[Person, Person, Person]:
    machine.start_machine(text)
    return machine.people["ana"], machine.people["ben"], machine.people["eve"]


def begin(machine: Machine, person: Person, name: str, *options: str) -> dict[str, Any]:
    """A job of this user that runs and takes no turns."""
    person.run(*SLEEPER, options=["--name", name, *options])
    found = wait_until(lambda: machine.find(name), f"job {name} is known")
    return machine.wait_state(found["id"], "starting", "unmanaged", "idle")


def words_of(order: tuple[str, ...], job: str, file: Path) -> list[str]:
    return [each.format(job=job, file=file) for each in order]


def test_others_can_give_no_order_about_a_job_and_admins_can(machine: Machine) -> None:
    ana, ben, eve = start(machine, f'{SETTINGS}[access]\nadmins = ["{machine.people["eve"].login}"]\n')
    job = begin(machine, ana, "bert")["id"]
    for order in ORDERS:
        for named in (job, "bert"):
            done = ben.carpool(*words_of(order, named, ben.home / "x"))
            assert done.code == 1, (order, done.out, done.err)
            assert f"job {job} is of user {ana.login}: only its owner and admins may {order[0]} it" in done.err
    for verb in ("stop",):
        done = ben.carpool("daemon", verb)
        assert done.code == 1 and "only an admin may stop the daemon" in done.err, done.err
    assert machine.job(job)["orders"] == []
    assert ana.carpool("resize", "--no-wait", job, "--weight", "3").code == 0
    assert eve.carpool("resize", "--no-wait", job, "--weight", "2").code == 0
    assert [order["by"] for order in machine.job(job)["orders"]] == [ana.login, eve.login]
    assert f"resized by {eve.login}" in ana.carpool("explain", job).out.decode()
    assert eve.carpool("cancel", job).code == 0
    ended = machine.wait_state(job, "cancelled", "failed")
    assert f"ordered by {eve.login}" in ended["reason"]
    assert [order["verb"] for order in ended["orders"]] == ["resized", "resized", "cancelled"]
    (asked,) = machine.journal("CancelAsked")
    assert asked["by"] == eve.login


def test_who_ordered_it_is_known_after_the_daemon_was_killed(machine: Machine) -> None:
    ana, _, _ = start(machine)
    job = begin(machine, ana, "bert")["id"]
    assert machine.root.carpool("resize", "--no-wait", job, "--weight", "2").code == 0
    machine.client.flush()
    wait_until(lambda: machine.journal("JobResized"), "the order is in the journal")
    machine.kill_daemon()
    machine.start_machine(SETTINGS)
    found = wait_until(lambda: machine.find(job), "the job is taken back")
    assert [(order["verb"], order["by"]) for order in found["orders"]] == [("resized", "root")]
    assert found["user"] == ana.login and found["uid"] == ana.uid
    done = machine.people["ben"].carpool("cancel", job)
    assert done.code == 1 and "only its owner and admins may cancel it" in done.err


def test_others_see_who_has_what_and_no_command_line(machine: Machine) -> None:
    ana, ben, _ = start(machine)
    job = begin(machine, ana, "bert")["id"]
    seen = next(each for each in ben.ask("ps")["jobs"] if each["id"] == job)
    assert (seen["user"], seen["name"], seen["tenant"]) == (ana.login, "bert", ana.login)
    assert seen["state"] and seen["reason"] and seen["device"] == "cpu"
    for words in (("ps",), ("explain", job), ("history",)):
        assert SECRET not in json.dumps(ben.ask(*words)), words
    assert SECRET in json.dumps(ana.ask("ps")) and SECRET in json.dumps(machine.ps())
    done = ben.carpool("logs", job)
    assert done.code == 1 and not done.out
    assert f"job {job} is of {ana.login}: only its owner and admins may read its log" in done.err
    assert ana.carpool("cancel", job).code == 0
    machine.wait_state(job, "cancelled", "failed")
    ended = next(each for each in ben.ask("ps", "--all")["jobs"] if each["id"] == job)
    assert ended["user"] == ana.login and ended["argv"] == []
    assert SECRET in json.dumps(ana.ask("ps", "--all"))


def test_in_private_mode_others_have_no_names(machine: Machine) -> None:
    ana, ben, _ = start(machine, f"{SETTINGS}[access]\nprivate = true\n")
    ana.run(*SLEEPER, options=["--name", "topsecret"])
    own = wait_until(lambda: [each for each in ana.ask("ps")["jobs"] if each["name"] == "topsecret"], "it is there")
    job = own[0]["id"]
    assert "topsecret" not in job
    text = json.dumps([ben.ask(*words) for words in (("ps",), ("explain", job), ("history",), ("daemon", "status"))])
    for hidden in ("topsecret", ana.login, SECRET):
        assert hidden not in text, hidden
    assert next(each for each in ben.ask("ps")["jobs"] if each["id"] == job)["user"] == "another user"
    assert ana.ask("explain", "topsecret")["id"] == job
    done = ben.carpool("explain", "topsecret")
    assert done.code == 2 and "no job 'topsecret' is known" in done.err
    assert f"job {job} is of another user" in ben.carpool("cancel", job).err


INTRUDER = """
import json, os, sys
from carpool import __version__
from carpool.client import DaemonSocket
from carpool.wire import messages as m
from carpool.wire.places import find_places
job, said = sys.argv[1], {"version": __version__, "protocol": m.PROTOCOL}
enter = {"spec": {"name": "x"}, "argv": ["x"], "cwd": "/", **said}
for message in (
    m.Attach(job=job, pid=os.getpid(), slot=0, holding=True, **said),
    m.Enter(job=job, pid=os.getpid(), child_pid=0, **enter),
    m.Enter(job=job, pid=os.getpid(), child_pid=os.getpid(), **enter),
    m.Enter(job="", pid=1, child_pid=0, **enter),
):
    wire = DaemonSocket(find_places())
    wire.send(message)
    answer = wire.receive(seconds=60)
    print(type(answer).__name__, getattr(answer, "reason", ""), flush=True)
"""


def test_a_process_of_another_user_gets_no_seat_in_a_job_and_is_not_its_runner(machine: Machine) -> None:
    """Also with the variables of the job in its environment, and after the daemon was started anew."""
    ana, ben, _ = start(machine)
    job = begin(machine, ana, "bert")["id"]
    added = {"CARPOOL_JOB": job, "CARPOOL_PAGE": str(machine.places.jobs / job / "page")}
    for is_restarted in (False, True):
        if is_restarted:
            machine.kill_daemon()
            machine.start_machine(SETTINGS)
            wait_until(lambda: machine.find(job), "the job is taken back")
        python = machine.population.python.python
        done = ben.start(python, "-c", INTRUDER, job, added=added).wait()
        assert done.code == 0, done.err
        said = done.lines
        assert [line.split(" ", 1)[0] for line in said] == ["Refuse"] * 4, said
        assert all("is another user's" in line for line in said[:3]), said
        assert "says that it is process 1" in said[3], said
        assert {processes.owner_of(pid) for pid in machine.job(job)["pids"]} <= {ana.uid, -1}


def test_a_tenant_is_what_the_configuration_says_and_admins_change_it_live(machine: Machine) -> None:
    ana, ben, _ = start(machine, f'{SETTINGS}[tenant.lab]\nmembers = ["{machine.people["ana"].login}"]\n')
    assert begin(machine, ana, "bert")["tenant"] == "lab"
    assert begin(machine, ben, "gpt")["tenant"] == ben.login
    done = ben.carpool("run", "--tenant", "lab", "--", "true")
    assert done.code == 1 and f"user {ben.login} is no member of tenant lab" in done.err
    done = ben.carpool("system", "reload")
    assert done.code == 1 and "Traceback" not in done.err, done.err
    claims = begin(machine, ben, "claims", "--compute", "60%:80%")
    assert (claims["guaranteed_milli"], claims["limit_milli"]) == (0, 800), "its tenant is guaranteed nothing (I38)"
    done = ben.carpool("tenant", "set", "lab", "--members", f"{ana.login},{ben.login}")
    assert done.code == 1 and "only an admin may change what a tenant may have" in done.err
    changes = ("--members", f"{ana.login},{ben.login}", "--jobs", "1", "--priorities", "0..3")
    done = machine.root.carpool("tenant", "set", "lab", *changes, "--save")
    assert done.code == 0, done.err
    found = ben.ask("tenant", "show", "lab")
    assert (found["members"], found["jobs"], found["priorities"]) == ([ana.login, ben.login], 1, "0..3")
    written = tomllib.loads(machine.places.settings.read_text())["tenant"]["lab"]
    assert written == {"members": [ana.login, ben.login], "jobs": 1, "priorities": "0..3"}
    done = ben.carpool("run", "--tenant", "lab", "--priority", "4", "--", "true")
    assert done.code == 1 and "tenant lab may use 0 to 3" in done.err
    (told,) = machine.journal("TenantSet")
    assert (told["tenant"], told["by"], told["terms"]["jobs_max"]) == ("lab", "root", 1)
    assert machine.root.carpool("tenant", "unset", "lab", "--save").code == 0
    assert "tenant" not in tomllib.loads(machine.places.settings.read_text())
    assert "lab" not in [each["name"] for each in ben.ask("tenant", "list") if each["is_named"]]


@pytest.mark.parametrize("words", [("--weight", "-1"), ("--memory", "much"), ("--devices", "gpu9"), ("--order", "x")])
def test_terms_that_make_no_sense_change_nothing_i37(machine: Machine, words: tuple[str, ...]) -> None:
    start(machine)
    before = machine.places.settings.read_text()
    done = machine.root.carpool("tenant", "set", "lab", *words, "--save")
    assert done.code in (1, 2) and "Traceback" not in done.err, done.err
    assert machine.root.ask("tenant", "list") == []
    assert machine.places.settings.read_text() == before
