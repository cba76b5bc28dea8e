"""What a journal promises: everything is there in its order, and what is not there is said."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from carpool.core.kernel.ids import DeviceId, JobId
from carpool.core.node.effects import Effect, StartJob
from carpool.core.node.events import DeviceAdded, Event, JobSubmitted, NodeConfigured, Tick
from carpool.core.node.model import JobSpec
from carpool.core.node.settings import Settings
from carpool.errors import UsageError
from carpool.journal import reader, schema, writer
from carpool.journal.writer import Journal
from carpool.sim.journal import replay
from carpool.units import GIB

CONFIGURED = NodeConfigured(policy="fair", settings=Settings(tenant_weights_milli={"ana": 2000}, host_bytes_max=GIB))
DEVICE = DeviceAdded(device=DeviceId("gpu0"), capacity_bytes=GIB)
CALLS: list[tuple[int, Event, list[Effect]]] = [
    (1, CONFIGURED, []),
    (2, DEVICE, []),
    (3, Tick(), []),
    (3, JobSubmitted(job=JobId("a"), spec=JobSpec(name="a")), [StartJob(job=JobId("a"), device=DeviceId("gpu0"))]),
    (9, Tick(), []),
]


def open_journal(path: Path) -> Journal:
    return Journal(path, version="test", config="{}")


def record(path: Path, calls: list[tuple[int, Event, list[Effect]]] | None = None) -> None:
    """One life of a daemon."""
    journal = open_journal(path)
    for now, event, effects in CALLS if calls is None else calls:
        journal.note(now, event, effects)
    journal.close()
    assert journal.trouble == ""


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement)


# --- what is there -----------------------------------------------------------------------------------------------


def test_j1_every_call_is_read_back_in_its_order_also_those_without_consequence(tmp_path: Path) -> None:
    record(tmp_path / "journal.db")
    found = reader.read(tmp_path / "journal.db")
    assert [(call.at_ns, call.event, call.effects) for call in found.calls] == CALLS
    assert (found.version, found.gap, found.configured) == ("test", 0, CONFIGURED)
    assert found.devices == (("gpu0", GIB),)


def test_j1_what_is_written_piece_by_piece_is_read_back_whole(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "journal.db")
    for now, event, effects in CALLS:
        journal.note(now, event, effects)
        assert journal.write_out()
    found = reader.read(tmp_path / "journal.db")
    assert [(call.at_ns, call.event, call.effects) for call in found.calls] == CALLS
    journal.close()


def test_the_newest_life_with_a_job_is_read_unless_another_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    record(path)
    record(path)
    record(path, CALLS[:2])
    assert [(life.run, life.has_jobs) for life in reader.lives(path)] == [(1, True), (2, True), (3, False)]
    assert (reader.read(path).run, reader.read(path, run=1).run) == (2, 1)
    assert [run for run, _, _ in reader.read_facts(path, "StartJob", all_runs=True)] == [1, 2]
    assert reader.read_facts(path, "StartJob") == [], "the newest life started none"


def test_lives_are_of_one_moment_while_the_daemon_forgets_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is changed between any two rows that the reader gets."""
    path = tmp_path / "journal.db"
    record(path)
    record(path)
    real, count = reader._rows, 0

    def rows(*args: Any, **options: Any) -> Iterator[Any]:
        nonlocal count
        for row in real(*args, **options):
            if not count:
                change(path, "delete from log where run = 1")
            count += 1
            yield row

    monkeypatch.setattr(reader, "_rows", rows)
    assert [(life.run, life.trouble) for life in reader.lives(path)] == [(1, ""), (2, "")]
    assert [(life.run, life.trouble) for life in reader.lives(path)] == [(2, "")]


def test_a_life_that_is_forgotten_between_two_looks_is_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.db"
    record(path)
    found = reader.lives(path)
    monkeypatch.setattr(reader, "lives", lambda _: found)
    change(path, "delete from log where rowid <= 3")
    with pytest.raises(UsageError, match="the beginning of run 1 was forgotten while it was read"):
        reader.read(path)


def test_rows_of_the_log_that_are_damaged_are_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    for statement in (
        "update log set at_ns = 'noon' where rowid = 3",
        "update log set body = x'ff' where rowid = 3",
        "update log set body = null where rowid = 3",
        "update log set kind = 'gap', body = 'x' where rowid = 3",
    ):
        path.unlink(missing_ok=True)
        record(path)
        change(path, statement)
        with pytest.raises(UsageError, match="row 3: "):
            reader.read(path)


# --- what is missing ---------------------------------------------------------------------------------------------


def refuse(path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """A journal whose disk takes nothing for now, and which keeps little."""
    monkeypatch.setattr(writer, "PENDING_MAX", 20)
    journal = open_journal(path)
    for now, event, effects in CALLS:
        journal.note(now, event, effects)
    assert journal.write_out()
    wait_idle(journal)
    journal._file.close()  # as after an error of the disk
    path.parent.rename(path.parent.with_suffix(".away"))
    return journal


def wait_idle(journal: Journal) -> None:
    """Until its thread waits for something to do."""
    for _ in range(1000):
        if journal._busy_since is None:
            return
        time.sleep(0.01)
    raise AssertionError("its thread is busy after 10 s")


def take_again(path: Path, journal: Journal) -> None:
    path.parent.with_suffix(".away").rename(path.parent)
    journal.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """In a directory that can be taken away."""
    (tmp_path / "state").mkdir()
    return tmp_path / "state" / "journal.db"


def test_j3_rows_that_the_disk_did_not_take_are_counted_in_their_place(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = refuse(path, monkeypatch)
    for now in range(100, 150):
        journal.note(now, Tick(), [])
    dropped = journal.dropped_rows
    assert f"the journal lacks {dropped} rows" in journal.trouble
    take_again(path, journal)
    found = reader.read(path)
    kept = reader.read_facts(path, "Tick")[-1][1]
    assert kept == 149, "the newest are kept"
    assert len(found.calls) == len(CALLS), "nothing is read beyond the gap"
    later = [at for _, at, _ in reader.read_facts(path, "Tick") if at >= 100]
    assert found.gap == dropped == 50 - len(later) > 20
    assert "rows that the disk did not take" in replay(found).end_note


def test_j3_a_life_without_its_beginning_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    record(path)
    record(path)
    change(path, "delete from log where rowid <= 2")
    (old, new) = reader.lives(path)
    assert "the beginning of run 1 is not there" in old.trouble
    assert new.trouble == ""
    with pytest.raises(UsageError, match="the beginning of run 1 is not there"):
        reader.read(path, run=1)


def test_j3_a_life_that_ends_in_the_middle_of_a_call_is_said_to(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    started = CALLS[3]
    record(path, [*CALLS[:2], (started[0], started[1], [])])
    replayed = replay(reader.read(path))
    assert (replayed.difference, replayed.end) == ("", "cut")
    assert "ends in the middle of a call" in replayed.end_note


# --- a disk that refuses -----------------------------------------------------------------------------------------


def test_j4_a_disk_that_refuses_stops_nobody_and_gets_everything_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = refuse(path, monkeypatch)
    journal.note(100, Tick(), [])
    assert not journal.write_out()
    assert "journal.db cannot be written: unable to open" in journal.trouble
    assert journal.ended_jobs(5) == []
    take_again(path, journal)
    assert reader.read(path).calls[-1].at_ns == 100
    assert journal.trouble == ""


def test_j4_a_journal_that_could_not_be_opened_at_first_has_its_beginning_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.05)
    path.parent.rmdir()
    journal = open_journal(path)
    assert "cannot be opened for writing" in journal.trouble
    for now, event, effects in CALLS:
        journal.note(now, event, effects)
    path.parent.mkdir()
    journal.close()
    assert [call.event for call in reader.read(path).calls] == [event for _, event, _ in CALLS]


# --- other forms -------------------------------------------------------------------------------------------------


def test_j5_a_file_of_a_newer_form_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    record(path)
    change(path, f"pragma user_version = {schema.FORM + 1}")
    change(path, "pragma journal_mode = delete")
    before = path.read_bytes()
    with pytest.raises(UsageError, match=f"newer carpool .form {schema.FORM + 1}, this one knows {schema.FORM}"):
        reader.read(path)
    journal = open_journal(path)
    journal.note(1, CONFIGURED, [])
    journal.close()
    assert "a newer carpool wrote it" in journal.trouble
    assert path.read_bytes() == before


def test_j5_a_file_of_an_older_form_is_written_on_and_its_old_lives_cannot_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    record(path, CALLS[1:])
    change(path, "pragma user_version = 0")
    with pytest.raises(UsageError, match="run 1 is of an older carpool and lacks its configuration"):
        reader.read(path)
    record(path)
    assert reader.read(path).run == 2
    with pytest.raises(UsageError, match="run 1 is of an older carpool"):
        reader.read(path, run=1)
