"""The machine's daemon: who finds it, who may reach it, and who is believed to be it; with real users."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from carpool.errors import AnsweredError
from carpool.wire.lock import read_sign
from tests.e2e.machine import Machine, Person
from tests.e2e.node import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_every_user_finds_the_machines_daemon_by_himself(machine: Machine) -> None:
    machine.start_machine('policy = "srtf"\ndevice = "cpu:2GiB"\n')
    for person in machine.people.values():
        status = person.ask("daemon", "status")
        assert (status["pid"], status["policy"]) == (machine.status()["pid"], "srtf")
        assert person.ask("ps")["devices"][0]["id"] == "cpu"
    places = machine.places
    assert [mode(path) for path in (places.run, places.jobs, places.bells, places.state)] == [
        0o755,
        0o711,
        0o711,
        0o711,
    ]
    assert [mode(path) for path in (places.kept_jobs, places.journal, places.lock)] == [0o700, 0o600, 0o600]
    assert mode(places.socket) == mode(places.knock) == 0o666


def test_carpool_dir_names_a_daemon_of_ones_own_i20(machine: Machine) -> None:
    machine.start_machine()
    ana = machine.people["ana"]
    own = {"CARPOOL_DIR": str(ana.home / "own")}
    done = ana.carpool("daemon", "status", added=own)
    assert done.code == 3 and str(ana.home / "own") in done.err
    done = ana.carpool("daemon", "start", "--device", "stub:1GiB", added=own)
    assert done.code == 0, done.err
    assert ana.carpool("daemon", "stop", added=own).code == 0


def test_a_daemon_of_ones_own_is_refused_what_the_machines_has_i26(machine: Machine) -> None:
    machine.start_machine()
    ana = machine.people["ana"]
    own = {"CARPOOL_DIR": str(ana.home / "own")}
    for words in (("daemon", "start"), ("run", "--", "true")):
        done = ana.carpool(*words, added=own)
        assert done.code == 1 and "the machine's daemon has cpu" in done.err, done.err
    assert ana.carpool("daemon", "status", added=own).code == 3


def test_a_group_keeps_others_out_and_they_are_told(machine: Machine) -> None:
    ana, ben = machine.people["ana"], machine.people["ben"]
    machine.start_machine(f'device = "cpu:2GiB"\n[access]\ngroup = "{ana.login}"\n')
    assert ana.ask("daemon", "status")["pid"] == machine.status()["pid"]
    assert (mode(machine.places.run), mode(machine.places.socket)) == (0o750, 0o660)
    done = ben.carpool("ps")
    assert done.code == 3 and f"is for members of group {ana.login} only" in done.err, done.err


def test_a_daemon_that_died_is_not_replaced_by_a_users_own(machine: Machine) -> None:
    machine.start_machine()
    machine.kill_daemon()
    done = machine.people["ana"].carpool("run", "--", "true")
    assert done.code == 3 and "sudo carpool daemon start" in done.err, done.err
    assert not machine.processes()
    assert machine.root.carpool("daemon", "start").code == 0
    assert machine.people["ana"].carpool("ps").code == 0
    assert machine.root.carpool("daemon", "stop").code == 0
    done = machine.people["ana"].carpool("ps")
    assert done.code == 3 and "the machine's daemon does not run" in done.err, done.err


@pytest.mark.parametrize("squats", ["socket", "directory"])
def test_nobody_else_is_taken_for_the_machines_daemon_i21(machine: Machine, squats: str) -> None:
    eve = machine.people["eve"]
    machine.write_settings()
    machine.places.run.mkdir(parents=True)
    if squats == "directory":
        os.chown(machine.places.run, eve.uid, eve.gid)
        machine.places.run.parent.chmod(0o1777)  # as if anybody might have made it
    with socket.socket(socket.AF_UNIX) as hers:
        hers.bind(str(machine.places.socket))
        hers.listen()
        os.chown(machine.places.socket, eve.uid, eve.gid)
        machine.places.socket.chmod(0o666)
        done = machine.people["ana"].carpool("ps")
    assert done.code == 1 and f"belongs to user {eve.uid}" in done.err, done.err


def test_a_process_of_another_user_that_answers_is_not_spoken_to_i21(machine: Machine) -> None:
    """The socket is root's, but a process of eve got it: the kernel names her."""
    eve = machine.people["eve"]
    machine.start_machine()
    machine.kill_daemon()
    program = f"""
import os, socket
hers = socket.socket(socket.AF_UNIX)
os.unlink({str(machine.places.socket)!r})
hers.bind({str(machine.places.socket)!r})
os.chmod({str(machine.places.socket)!r}, 0o666)
os.setresuid({eve.uid}, {eve.uid}, {eve.uid})
hers.listen()
print("listens", flush=True)
peer, _ = hers.accept()
print(peer.recv(100), flush=True)
"""
    squatter = machine.root.start("python", "-c", program)
    squatter.wait_line("listens")
    done = machine.people["ana"].carpool("ps")
    assert done.code == 1 and f"a process of user {eve.uid} answers" in done.err, done.err
    assert squatter.wait().out == b"listens\nb''\n", "nothing was said to her"


def test_its_sign_is_read_by_all_and_its_locks_by_nobody(machine: Machine) -> None:
    machine.start_machine()
    ana, places = machine.people["ana"], machine.places
    sign = read_sign(places.sign)
    assert sign is not None and sign.pid == machine.status()["pid"]
    for lock in (places.lock, places.journal_lock):
        done = ana.start("sh", "-c", f"exec 9<{lock}").wait()
        assert done.code != 0 and "Permission denied" in done.err


RELOADED = 'policy = "fair"\ndevice = "cpu:2GiB"\nlatency = "700ms"\nwarm = true\n[access]\nprivate = true\n'


def test_settings_are_read_again_and_no_job_is_lost_i23(machine: Machine) -> None:
    machine.start_machine('device = "cpu:2GiB"\n')
    submitted = machine.root.submit("sleep", "100", options=("--name", "stays"))
    machine.wait_state(submitted["id"], "starting", "waiting", "running", "idle")
    machine.write_settings(RELOADED)
    reloaded = machine.client.reload()
    assert reloaded.changed["latency"] == "nothing → 700ms" and reloaded.changed["access.private"] == "false → true"
    assert reloaded.waits == []
    status = machine.status()
    assert (status["latency_ns"], status["warm"], status["jobs"]) == (700_000_000, True, 1)
    machine.write_settings(RELOADED.replace("fair", "srtf").replace("700ms", "300ms"))
    reloaded = machine.client.reload()
    assert (set(reloaded.changed), reloaded.waits) == ({"policy", "latency"}, ["policy"])
    status = machine.status()
    assert (status["latency_ns"], status["policy"]) == (300_000_000, "fair")
    (event,) = [each for each in machine.journal("SettingsChanged") if each["settings"]["latency_ns"] == 300_000_000]
    assert event["by"] == "root"
    machine.client.cancel(submitted["id"])


def test_a_file_that_is_refused_changes_nothing_i23(machine: Machine) -> None:
    machine.start_machine('device = "cpu:2GiB"\nlatency = "900ms"\n')
    machine.write_settings('device = "cpu:2GiB"\nlatency = "100ms"\n[access]\nadmin = ["ana"]\n')
    with pytest.raises(AnsweredError, match="admin is no setting; do you mean admins"):
        machine.client.reload()
    assert machine.status()["latency_ns"] == 900_000_000
    machine.write_settings('device = "cpu:2GiB"\nlatency = "100ms"\n')
    os.kill(machine.status()["pid"], signal.SIGHUP)
    wait_until(lambda: machine.status()["latency_ns"] == 100_000_000, "SIGHUP had it read again")


def found(person: Person, what: str) -> list[str]:
    done = person.carpool("doctor", "--json")
    return [each["text"] for each in json.loads(done.out)["findings"] if each["what"] == what]


def test_the_doctor_says_which_daemon_and_why(machine: Machine) -> None:
    ana = machine.people["ana"]
    assert "no daemon for all users is installed: the place of user" in found(ana, "place")[0]
    machine.start_machine()
    (place,) = found(ana, "place")
    assert f"a daemon for all users is installed: {machine.places.settings}" in place
    assert found(ana, "daemon")[0].startswith(f"the machine's, for all users: pid {machine.status()['pid']}")
    machine.kill_daemon()
    assert "an admin starts it: sudo carpool daemon start" in found(ana, "daemon")[0]


def test_tenants_are_told_anew_and_what_they_cannot_have_changes_nothing_i23(machine: Machine) -> None:
    machine.start_machine('device = "cpu:2GiB"\n[tenant.lab]\nweight = 2\n')
    machine.write_settings(
        'device = "cpu:2x1GiB"\n[tenant.lab]\nweight = 3\njobs = 2\n[tenant.new]\nmemory = "1GiB"\n'
    )
    reloaded = machine.client.reload()
    assert reloaded.changed["tenant.lab.weight"] == "2.0 → 3.0" and reloaded.waits == ["device"]
    told = {each["tenant"]: each for each in machine.journal("TenantSet")}
    assert told["lab"]["terms"]["weight_milli"] == 3000 and told["new"]["by"] == "root"
    machine.write_settings('device = "cpu:2x1GiB"\n[tenant.lab]\ndevices = ["cpu1"]\n')
    with pytest.raises(AnsweredError, match="there is no device cpu1; there are cpu"):
        machine.client.reload()
    assert len(machine.journal("TenantSet")) == len(told)


def test_only_admins_stop_it_or_have_it_read_its_settings_again(machine: Machine) -> None:
    machine.start_machine()
    ana = machine.people["ana"]
    for words in (("daemon", "stop"), ("daemon", "stop", "--force"), ("system", "reload")):
        done = ana.carpool(*words)
        assert done.code == 1 and "admin" in done.err, done.err
    machine.write_settings(f'device = "cpu:4GiB"\n[access]\nadmins = ["root", "{ana.login}"]\n')
    assert machine.root.carpool("system", "reload").code == 0
    done = ana.carpool("system", "reload")
    assert done.code == 0 and "says nothing new" in done.err, done.err
    assert ana.carpool("daemon", "stop").code == 0
