"""`carpool system`: installed below a directory of its own by root, used by real users, and removed."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carpool.cli import system_steps as steps_of
from carpool.daemon.settings_file import parse_settings
from tests.e2e.machine import Machine, Population, remove_user
from tests.e2e.node import PATIENCE, Ended, is_alive, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

CAP_SETUID = 1 << 7
LOOP = """
import os, sys
import carpool
import carpool.wire.messages as m
while not os.path.exists(sys.argv[1]):
    with carpool.turn(): sum(range(100_000))
    if os.path.exists(sys.argv[1] + os.environ["USER"]): m.PROTOCOL = 1
"""


def system(machine: Machine, *words: str) -> Ended:
    return machine.root.carpool("system", *words)


def asked(machine: Machine, *words: str) -> dict[str, Any]:
    done = system(machine, *words, "--json")
    found: dict[str, Any] = json.loads(done.out)
    return found


def installed(machine: Machine, *words: str, settings: str = 'device = "cpu:2GiB"\n') -> None:
    """With these settings written first: what is there is left alone."""
    machine.write_settings(settings)
    done = system(machine, "install", *words)
    assert done.code == 0, done.err


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.parts[3] != "files"}


def test_a_dry_run_says_all_and_does_nothing(machine: Machine) -> None:
    before = files(machine.directory)
    done = machine.people["ana"].carpool("system", "install", "--dry-run")
    assert done.code == 0, done.err
    places = machine.places
    for path in (places.settings, places.run, places.state, places.logs):
        assert str(path) in done.out.decode()
    assert asked(machine, "install", "--dry-run")["is_done"] is False
    assert files(machine.directory) == before
    done = machine.people["ana"].carpool("system", "install")
    assert done.code == 2 and "only root can do this" in done.err


def test_it_is_installed_used_and_removed(machine: Machine) -> None:
    assert asked(machine, "status")["is_installed"] is False
    assert system(machine, "status").code == 3
    installed(machine)
    facts = asked(machine, "status")
    assert (facts["is_running"], facts["owner"], facts["trouble"], facts["jobs"]) == (True, "root", "", 0)
    ana = machine.people["ana"]
    done = ana.carpool("run", "--", "true")
    assert done.code == 0, done.err
    assert ana.ask("daemon", "status")["pid"] == facts["pid"]
    assert f"its settings are {machine.places.settings}" in ana.carpool("daemon", "status").out.decode()
    again = asked(machine, "install")
    assert again == {"steps": [], "is_done": True}, "what is there is left alone"
    assert system(machine, "uninstall").code == 0
    assert not is_alive(facts["pid"]) and not machine.places.run.exists()
    assert machine.places.settings.exists() and machine.places.journal.exists()
    assert ana.carpool("ps").code == 3 and asked(machine, "status")["is_installed"] is False
    assert system(machine, "install").code == 0, "once more"
    assert system(machine, "uninstall", "--purge").code == 0
    assert not machine.places.settings.exists() and not machine.places.state.exists()


def test_the_first_settings_name_everything_and_an_edited_file_is_kept_i24(machine: Machine) -> None:
    ana = machine.people["ana"]
    assert system(machine, "install", "--group", ana.login, "--no-start").code == 0
    text = machine.places.settings.read_text()
    assert parse_settings(text).access.group == ana.login
    edited = text.replace("# device = ", "device = ").replace('"auto"', '"cpu:2GiB"')
    machine.places.settings.write_text(edited)
    done = system(machine, "install", "--group", machine.people["ben"].login)
    assert done.code == 0 and "was there and lets group" in done.err
    assert machine.places.settings.read_text() == edited
    assert ana.ask("daemon", "status")["device"] == "cpu:2GiB"
    assert machine.people["ben"].carpool("ps").code == 3


def test_it_is_not_removed_under_jobs_unless_told(machine: Machine) -> None:
    installed(machine)
    job = machine.root.submit("sleep", "100", options=("--name", "stays"))["id"]
    machine.wait_state(job, "starting", "waiting", "running", "idle")
    pid = wait_until(lambda: next(iter(machine.client.job(job).pids), 0), "its program runs")
    done = system(machine, "uninstall")
    assert done.code == 1 and "1 of its jobs are not over" in done.err
    assert system(machine, "uninstall", "--force").code == 0
    assert is_alive(pid), "the program goes on"


def test_a_restart_takes_the_jobs_back(machine: Machine) -> None:
    installed(machine)
    job = machine.root.submit("sleep", "100", options=("--name", "stays"))["id"]
    pid = wait_until(lambda: next(iter(machine.client.job(job).pids), 0), "its program runs")
    before = machine.status()["pid"]
    done = system(machine, "restart")
    assert done.code == 0 and f"in place of {before}" in done.err and "with 1 job" in done.err, done.err
    assert machine.client.job(job).pids == [pid]
    machine.client.cancel(job)
    assert machine.client.wait(job, seconds=PATIENCE).state == "cancelled"


def test_settings_that_cannot_be_read_stop_no_daemon_that_runs(machine: Machine) -> None:
    installed(machine)
    pid = machine.status()["pid"]
    machine.write_settings("polcy = 'fair'\n")
    for words in (("restart",), ("reload",)):
        done = system(machine, *words)
        assert done.code == 2 and "do you mean policy?" in done.err
    assert machine.status()["pid"] == pid
    assert "polcy is no setting" in asked(machine, "status")["trouble"]


def test_a_unit_for_systemd_that_it_finds_no_fault_with(machine: Machine) -> None:
    if shutil.which("systemctl") is None:
        pytest.skip("systemd is not installed here: no unit is written")
    assert system(machine, "install", "--no-start").code == 0
    unit = machine.directory / "etc" / "systemd" / "system" / "carpool.service"
    assert "KillMode=process" in unit.read_text() and "OOMPolicy=continue" in unit.read_text()
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed here: the unit was not checked")
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "carpool" in line]) == (0, [])


def test_a_carpool_that_others_cannot_read_is_not_installed_i25(machine: Machine) -> None:
    closed = machine.population.python.directory
    closed.chmod(0o700)
    try:
        done = system(machine, "install")
    finally:
        closed.chmod(0o755)
    assert done.code == 1 and f"other users cannot read {closed}" in done.err
    assert not machine.places.settings.exists()


def test_options_of_an_own_daemon_are_refused_for_the_machines(machine: Machine) -> None:
    installed(machine)
    done = machine.root.carpool("daemon", "start", "--policy", "srtf")
    assert done.code == 2 and f"goes by {machine.places.settings}" in done.err
    done = machine.people["ana"].carpool("daemon", "start")
    assert done.code == 0 and "serves all users of this machine already" in done.err


@pytest.fixture
def account(population: Population) -> Iterator[str]:
    """A service account that nobody has made yet."""
    login = f"cp_t{os.getpid()}_service"
    yield login
    remove_user(login)


def test_as_a_service_account_it_runs_programs_of_all_and_submit_says_what_it_needs_i27(
    machine: Machine, account: str
) -> None:
    installed(machine, "--user", account)
    facts = asked(machine, "status")
    assert (facts["owner"], facts["is_running"]) == (account, True)
    uid = pwd.getpwnam(account).pw_uid
    assert Path(f"/proc/{facts['pid']}").stat().st_uid == uid
    status = Path(f"/proc/{facts['pid']}/status").read_text()
    rights = {
        line.partition(":")[0]: int(line.split()[1], 16) for line in status.splitlines() if line.startswith("Cap")
    }
    assert rights["CapAmb"] == 0 and rights["CapEff"] & CAP_SETUID == 0 == rights["CapBnd"] & CAP_SETUID, rights
    ana = machine.people["ana"]
    done = ana.run("plain_loop.py", "--steps", "30", options=("--name", "hers")).wait()
    assert done.code == 0, done.err
    job = machine.job("hers")
    assert (job["state"], job["user"], job["steps"]) == ("finished", ana.login, 30)
    done = ana.carpool("submit", "--", "true")
    assert done.code == 1 and "need a daemon of root" in done.err
    assert "carpool run, which works for all" in done.err
    assert asked(machine, "install") == {"steps": [], "is_done": True}, "it stays that account's"
    done = system(machine, "install", "--user", ana.login)
    assert done.code == 1 and f"installed to run as {account}" in done.err and "chown -R" in done.err
    assert system(machine, "restart").code == 0, "root starts it as that account again"
    assert Path(f"/proc/{machine.status()['pid']}").stat().st_uid == uid
    assert system(machine, "uninstall").code == 0


def test_after_an_upgrade_jobs_of_all_users_are_taken_back_or_named(machine: Machine) -> None:
    """Ana's goes on taking turns. Ben's is of a version that speaks otherwise: it runs on, and that is said."""
    installed(machine, settings='device = "cpu:2GiB"\nquantum = "50ms"\n')
    ana, ben = machine.people["ana"], machine.people["ben"]
    stop = machine.files / "stop"
    jobs = {
        person: person.run(machine.population.python.python, "-c", LOOP, str(stop), options=("--name", person.name))
        for person in (ana, ben)
    }
    for person in jobs:
        machine.wait_steps(person.name, 20)
    Path(f"{stop}{ben.login}").touch()
    machine.wait_steps("ben", machine.job("ben")["steps"] + 20)
    steps_of.stop_daemon(machine.places)
    (kept,) = machine.places.kept_jobs.glob("ben-*/job.json")
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "protocol": 1}))
    assert machine.root.carpool("daemon", "start").code == 0
    facts = asked(machine, "status")
    assert facts["jobs"] == 2
    machine.wait_state("ben", "unmanaged")
    (said,) = asked(machine, "status")["waits"]
    assert said.startswith("job ben-") and "runs on outside the turns until it ends" in said
    before = machine.turns("ana"), machine.job("ana")["steps"]
    extra = ana.run(machine.population.python.python, "-c", LOOP, str(stop), options=("--name", "new"))
    machine.wait_steps("new", 20)
    machine.wait_steps("ana", before[1] + 20)
    wait_until(lambda: machine.turns("ana") > before[0] and machine.turns("new") > 1, "they take turns again")
    stop.touch()
    for job in (*jobs.values(), extra):
        done = job.wait()
        assert done.code == 0, done.err


def test_a_daemon_of_another_version_is_restarted_and_removed_all_the_same(machine: Machine) -> None:
    installed(machine)
    old = system(machine, "restart")
    assert old.code == 0, old.err
    (machine.files / "sitecustomize.py").write_text("import carpool.wire.messages as m\nm.PROTOCOL = 1\n")
    other = {"PYTHONPATH": str(machine.files)}
    ana = machine.people["ana"]
    done = ana.carpool("ps", added=other)
    assert done.code == 3 and "an admin restarts it: sudo carpool system restart" in done.err, done.err
    done = machine.root.carpool("system", "uninstall", added=other)
    assert done.code == 1 and "--force stops it anyway" in done.err, done.err
    done = machine.root.carpool("system", "restart", added=other)
    assert done.code == 0 and "in place of" in done.err, done.err
    assert machine.root.carpool("system", "uninstall", added=other).code == 0


def test_as_a_service_account_jobs_of_two_users_take_turns_and_are_parked(machine: Machine, account: str) -> None:
    installed(machine, "--user", account, settings='device = "cpu:2GiB"\nquantum = "50ms"\n')
    ana, ben = machine.people["ana"], machine.people["ben"]
    words = ("plain_loop.py", "--steps", "100000", "--width", "256")
    jobs = {person: person.run(*words, options=("--name", person.name)) for person in (ana, ben)}
    for person in jobs:
        machine.wait_steps(person.name, 20)
    wait_until(lambda: min(machine.turns("ana"), machine.turns("ben")) > 3, "both have had several turns")
    assert ana.carpool("suspend", "ana").code == 0
    assert machine.wait_state("ana", "parked")["parked_bytes"] > 0
    assert ben.carpool("resume", "ana").code == 1, "she is not his"
    assert ana.carpool("resume", "ana").code == 0
    machine.wait_steps("ana", machine.job("ana")["steps"] + 10)
    for person, job in jobs.items():
        assert person.carpool("cancel", person.name).code == 0
        job.wait()
