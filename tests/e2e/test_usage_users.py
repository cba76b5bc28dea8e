"""Usage and history on a machine with several users: who sees what of whom."""

from __future__ import annotations

import pytest

from tests.e2e.machine import Machine
from tests.e2e.node import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SETTINGS = 'device = "cpu:4GiB"\nquantum = "50ms"\n'


def test_everyone_sees_the_usage_of_all_and_in_private_mode_nobody_is_named(machine: Machine) -> None:
    machine.start_machine(SETTINGS)
    ana, ben = machine.people["ana"], machine.people["ben"]
    for person in (ana, ben):
        done = person.run("explicit_turn.py", "--steps", "30", options=["--name", f"of-{person.name}"]).wait()
        assert done.code == 0, done.err
    wait_until(lambda: len(ben.ask("history")["jobs"]) == 2, "both are in the history")
    found = ben.ask("usage")
    assert {row["name"]: row["jobs"] for row in found["rows"]} == {ana.login: 1, ben.login: 1}
    assert all(row["had_ns"] > 0 for row in found["rows"])
    booked = sum(row["had_ns"] for row in found["rows"]) + found["idle_ns"] + found["unknown_ns"]
    assert booked == found["device_ns"] == found["until_ns"] - found["since_ns"]
    by_job = ben.ask("usage", "--by", "job")
    assert {(row["user"], row["name"].rpartition("-")[0]) for row in by_job["rows"]} == {
        (ana.login, "of-ana"),
        (ben.login, "of-ben"),
    }
    assert "explicit_turn" not in str(ben.ask("history")), "no command line is in it"
    assert not machine.places.journal.stat().st_mode & 0o077, "and nobody but the daemon may read the file"

    machine.write_settings(SETTINGS + "[access]\nprivate = true\n")
    assert machine.root.carpool("system", "reload").code == 0
    hidden = ben.ask("usage")
    assert {row["name"] for row in hidden["rows"]} == {"(other users)", ben.login}
    assert hidden["device_ns"] >= booked
    names = {row["name"].rpartition("-")[0] for row in ben.ask("usage", "--by", "job")["rows"]}
    assert names == {"of-ben", ""}
    assert [job["name"] for job in ben.ask("history")["jobs"]] == ["of-ben"]
    for words in (("usage",), ("usage", "--by", "job"), ("usage", "--by", "tenant"), ("history",)):
        said = ben.carpool(*words).out.decode()
        assert ana.login not in said and "of-ana" not in said, words
    assert len(machine.root.ask("history")["jobs"]) == 2, "admins see all"
