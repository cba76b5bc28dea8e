"""Journals: written by the daemon's own class, read back, replayed exactly; and what is wrong with broken ones."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import fields
from pathlib import Path

import pytest

from carpool.core.kernel.ids import TenantId
from carpool.core.node.effects import Effect
from carpool.core.node.events import Event
from carpool.core.node.model import JobSpec, Needs
from carpool.core.node.settings import Settings
from carpool.errors import UsageError
from carpool.journal import reader
from carpool.journal.writer import Journal
from carpool.sim import journal
from carpool.sim.node_engine import NodeEngine
from carpool.sim.scripts import Machine, Script
from carpool.units import GIB, MIB, MS, SECOND, parse_tenants

SETTINGS = [field.name for field in fields(Settings)]
DEVICES = (("cpu", 4 * GIB),)


def scripts() -> list[Script]:
    """Six jobs of two tenants that come one after the other and learn everything on the way."""
    return [
        Script(
            id=f"job-{number}",
            submit_ns=number * 300 * MS,
            spec=JobSpec(
                name=f"job-{number}", tenant=TenantId("ab"[number % 2]), weight_milli=700, steps=40 + 20 * number
            ),
            needs=Needs(persistent_bytes=100 * MIB, ephemeral_bytes=200 * MIB),
            steps=40 + 20 * number,
            step_ns=30 * MS,
            start_ns=100 * MS,
        )
        for number in range(6)
    ]


def record(path: Path, *, policy: str = "fair", quantum: str = "", tenant_weights: str = "") -> None:
    """What a daemon would have written of these jobs."""
    told = {"policy": policy, "device": "cpu:4GiB", "quantum": quantum, "tenant_weights": tenant_weights}
    config = json.dumps(told)
    written = Journal(path, version="0", config=config)

    def watch(at: int, event: Event, effects: list[Effect]) -> None:
        written.note(at, event, effects)

    weights = parse_tenants(tenant_weights) if tenant_weights else {}
    settings = Settings(quantum_ns=60 * MS if quantum else None, tenant_weights_milli=weights)
    NodeEngine(policy, Machine(devices=DEVICES), settings=settings, watch=watch).run(scripts())
    written.close()


@pytest.mark.parametrize(
    ("policy", "quantum", "weights"),
    [("fair", "", ""), ("fair", "", "a=3"), ("srtf", "60ms", ""), ("pack", "", ""), ("fifo", "", "")],
)
def test_every_recorded_decision_is_reproduced(tmp_path: Path, policy: str, quantum: str, weights: str) -> None:
    record(tmp_path / "journal.db", policy=policy, quantum=quantum, tenant_weights=weights)
    recording = reader.read(tmp_path / "journal.db")
    replayed = journal.replay(recording)
    assert replayed.difference == ""
    assert replayed.end == ""
    assert replayed.events == len(recording.calls) > 50
    assert replayed.effects > 50


@pytest.mark.parametrize(
    "settings",
    [
        Settings(host_bytes_max=150 * MIB),
        Settings(share_policy="equal", share_slots=3),
        Settings(hog_factor=0, hog_floor_ns=10 * MS, watch_ns=10 * MS),
        Settings(lapse_ns=5 * MS, margin_percent=40, open_share_divisor=2, start_floor_divisor=3),
        Settings(move_percent=0, pass_over_ns=MS, start_patience_ns=MS, move_retry_ns=MS, quiet_ns_min=MS),
    ],
    ids=lambda settings: "-".join(name for name in SETTINGS if getattr(settings, name) != getattr(Settings(), name)),
)
def test_j2_a_journal_taken_with_any_settings_replays_exactly(tmp_path: Path, settings: Settings) -> None:
    path = tmp_path / "journal.db"
    written = Journal(path, version="0", config="{}")
    machine = Machine(devices=(("cpu0", 500 * MIB), ("cpu1", 400 * MIB)))
    NodeEngine("fair", machine, settings=settings, watch=written.note).run(scripts())
    written.close()
    recording = reader.read(path)
    assert recording.configured.settings == settings
    replayed = journal.replay(recording)
    assert (replayed.difference, replayed.end) == ("", "")
    assert replayed.effects == sum(len(call.effects) for call in recording.calls) > 50


def test_a_policy_that_is_not_here_is_an_error(tmp_path: Path) -> None:
    record(tmp_path / "journal.db")
    with sqlite3.connect(tmp_path / "journal.db") as db:
        db.execute("update log set body = replace(body, '\"fair\"', '\"best\"') where rowid = 1")
    with pytest.raises(UsageError, match="recorded under the policy 'best', which is not here"):
        journal.replay(reader.read(tmp_path / "journal.db"))


def test_every_life_of_a_journal_is_replayed_and_the_first_difference_is_told(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    for policy in ("fair", "srtf", "fifo"):
        record(path, policy=policy)
    replayed = journal.replay_all(path)
    assert ([each.run for each in replayed.lives], replayed.difference, replayed.refused) == ([1, 2, 3], "", ())
    assert (replayed.chosen.run, replayed.of_chosen.run) == (3, 3)
    with sqlite3.connect(path) as db:
        row = db.execute("select min(rowid) from log where name = 'GrantLease' and run = 2").fetchone()[0]
        db.execute("delete from log where rowid = ?", (row,))
        db.execute("delete from log where run = 1 and rowid < 5")
    replayed = journal.replay_all(path)
    assert f"{path} run 2 row " in replayed.difference
    assert "the beginning of run 1 is not there" in replayed.refused[0]


def test_the_jobs_of_a_journal_are_those_that_ran(tmp_path: Path) -> None:
    record(tmp_path / "journal.db")
    recording = reader.read(tmp_path / "journal.db")
    jobs, without = journal.jobs_of(recording, journal.replay(recording).pictures)
    assert without == []
    for found, script in zip(jobs, scripts(), strict=True):
        assert (found.script.id, found.script.submit_ns, found.script.steps) == (
            script.id,
            script.submit_ns,
            script.steps,
        )
        assert found.script.step_ns == pytest.approx(script.step_ns, rel=0.01)
        assert (found.script.start_ns, found.script.needs) == (script.start_ns, script.needs)


def test_the_recorded_policy_simulated_gives_the_recorded_waits_and_one_more_device_shorter_ones(
    tmp_path: Path,
) -> None:
    record(tmp_path / "journal.db")
    recording = reader.read(tmp_path / "journal.db")
    jobs, _ = journal.jobs_of(recording, journal.replay(recording).pictures)
    waited = sum(job.waited_ns for job in jobs) / len(jobs) / SECOND
    same = journal.suppose(recording, jobs, "fair", recording.devices)
    more = journal.suppose(recording, jobs, "fair", (*recording.devices, ("more0", 4 * GIB)))
    assert same.wait_s == pytest.approx(waited, rel=0.05)
    assert more.wait_s < same.wait_s / 2


def test_a_changed_effect_is_found_and_named_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    record(path)
    with sqlite3.connect(path) as db:
        row = db.execute("select min(rowid) from log where name = 'GrantLease'").fetchone()[0]
        db.execute("update log set body = replace(body, '\"job-0\"', '\"job-9\"') where rowid = ?", (row,))
    difference = journal.replay(reader.read(path)).difference
    assert "the daemon ordered GrantLease(job='job-9'" in difference
    assert f"{path} run 1 row " in difference


def test_a_journal_cut_off_in_the_middle_of_a_call_still_replays(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    record(path)
    with sqlite3.connect(path) as db:
        last = db.execute("select max(rowid) from log where name = 'StartJob'").fetchone()[0]
        db.execute("delete from log where rowid > ?", (last,))
    replayed = journal.replay(reader.read(path))
    assert (replayed.difference, replayed.end) == ("", "cut")


def test_a_file_that_is_no_journal_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no journal"):
        reader.read(tmp_path / "absent.db")
    (tmp_path / "text.db").write_text("hello, I am not a database at all\n" * 50)
    with pytest.raises(UsageError, match=r"text\.db cannot be read as a journal"):
        reader.read(tmp_path / "text.db")
    sqlite3.connect(tmp_path / "other.db").execute("create table x (y)").connection.close()
    with pytest.raises(UsageError, match="no such table"):
        reader.read(tmp_path / "other.db")


def test_a_half_written_file_is_an_error(tmp_path: Path) -> None:
    record(tmp_path / "journal.db")
    whole = (tmp_path / "journal.db").read_bytes()
    (tmp_path / "half.db").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=r"half\.db cannot be read as a journal: database disk image is malformed"):
        reader.read(tmp_path / "half.db")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("delete from log", "row 1: the journal is empty"),
        ("delete from log where rowid <= 3", "the beginning of run 1 is not there|an effect without its event"),
        ("update log set body = '{' where rowid = 2", "row 2: DeviceAdded cannot be read"),
        ("update log set name = 'Magic' where rowid = 2", "row 2: nobody knows the event 'Magic'"),
        ("update log set body = '{' where rowid = 1", "row 1: NodeConfigured cannot be read"),
        ("delete from log where rowid = 1", "run 1 is of an older carpool and lacks its configuration"),
    ],
)
def test_a_damaged_journal_is_an_error_with_its_row(tmp_path: Path, change: str, sentence: str) -> None:
    path = tmp_path / "journal.db"
    record(path)
    with sqlite3.connect(path) as db:
        db.execute(change)
    with pytest.raises(UsageError, match=sentence):
        reader.read(path)


def test_a_run_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    record(tmp_path / "journal.db")
    with pytest.raises(UsageError, match="has no run 7"):
        reader.read(tmp_path / "journal.db", run=7)
