"""The journal's file: damaged, refused, hanging, and kept small."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from carpool.core.kernel.ids import DeviceId, JobId
from carpool.core.node.effects import Effect
from carpool.core.node.events import DeviceAdded, Event, HistoryLoaded, NodeConfigured, Tick
from carpool.core.node.model import Account, History, JobSpec
from carpool.core.node.settings import Settings
from carpool.daemon.files import JobFile
from carpool.daemon.translate import picture_lost
from carpool.journal import disk, reader, writer
from carpool.journal.writer import Journal
from carpool.units import GIB, MIB

CONFIGURED = NodeConfigured(policy="fair", settings=Settings())
DEVICE = DeviceAdded(device=DeviceId("gpu0"), capacity_bytes=GIB)
SMALL = 4 * MIB
HISTORY = History(needs=None, steps=1, step_ns=None, served_ns=1)


def open_journal(path: Path, *, bytes_max: int = 64 * MIB, said: list[str] | None = None) -> Journal:
    report = said.append if said is not None else lambda _: None
    return Journal(path, version="test", config="{}", bytes_max=bytes_max, report=report)


def end_job(journal: Journal, number: int, *, argv: list[str] | None = None) -> None:
    file = JobFile(job=f"j-{number}", number=number, spec=JobSpec(name="j"), argv=argv or ["j"], cwd="/")
    journal.note_job(number, picture_lost(file, None), file.argv)


def fill(path: Path, *, jobs: int = 30, rows: int = 300) -> None:
    """One life of a daemon, with jobs that ended and a program whose needs are known."""
    journal = open_journal(path)
    journal.note(0, CONFIGURED, [])
    journal.note(1, DEVICE, [])
    for now in range(rows):
        journal.note(2 + now, Tick(), [])
    for number in range(1, jobs + 1):
        end_job(journal, number)
    journal.note_history("program", HISTORY)
    journal.close()
    assert journal.trouble == ""


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir())


# --- damage ------------------------------------------------------------------------------------------------------


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(50_000))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    """Bytes of every page but the first."""
    whole = bytearray(path.read_bytes())
    for at in range(4096, len(whole), 4096):
        whole[at : at + 8] = bytes(byte ^ 0xFF for byte in whole[at : at + 8])
    path.write_bytes(whole)


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_other_tables(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as db:
        db.execute("create table jobs (what text)")
        db.commit()


DAMAGES = [garbage, truncate, flip, replace_by_directory, replace_by_other_tables]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_j6_a_damaged_file_is_set_aside_and_a_new_one_begun(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path, said = tmp_path / "journal.db", list[str]()
    fill(path)
    damage(path)
    journal = open_journal(path, said=said)
    assert "was damaged" in journal.trouble
    assert "a new one was begun" in journal.trouble
    assert said == [journal.trouble], "it is in the log, once"
    end_job(journal, 77)
    journal.note(1, CONFIGURED, [])
    journal.note(2, DEVICE, [])
    journal.close()
    aside = [name for name in names(path) if name.startswith("journal.db.damaged-") and name[-1].isdecimal()]
    assert len(aside) == 1
    assert reader.read(path).calls[-1].event == DEVICE
    again = open_journal(path)
    assert (again.trouble, again.last_number()) == ("", 77)
    again.close()


def test_j6_what_can_be_read_of_a_damaged_file_is_in_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    fill(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("pragma writable_schema = on")
        db.execute("update sqlite_schema set rootpage = 2 where name = 'log'")  # its rows are elsewhere
        db.commit()
    journal = open_journal(path)
    assert "30 ended jobs of it are in the new one" in journal.trouble
    assert (len(journal.ended_jobs(99)), list(journal.histories())) == (30, ["program"])
    journal.close()
    again = open_journal(path)
    assert (again.trouble, len(again.ended_jobs(99)), list(again.histories())) == ("", 30, ["program"])
    again.close()


def test_j6_a_file_that_is_damaged_under_a_daemon_costs_only_the_log(tmp_path: Path) -> None:
    path, said = tmp_path / "journal.db", list[str]()
    fill(path)
    journal = open_journal(path, said=said)
    assert journal._busy_since is None, "its thread has nothing to do yet"
    journal._file.close()
    garbage(path)
    journal.note(5, Tick(), [])
    assert journal.write_out()
    assert ["was damaged" in each for each in said] == [True]
    journal.close()
    again = open_journal(path)
    assert (again.trouble, len(again.ended_jobs(99)), list(again.histories())) == ("", 30, ["program"])
    again.close()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_j6_a_file_that_is_removed_or_replaced_under_a_daemon_is_begun_anew_and_said(
    tmp_path: Path, is_replaced: bool
) -> None:
    path, said = tmp_path / "journal.db", list[str]()
    fill(path)
    journal = open_journal(path, said=said)
    path.unlink()
    if is_replaced:
        path.write_bytes(b"")
    journal.note(5, Tick(), [])
    assert journal.write_out()
    assert ["was removed or replaced" in each for each in said] == [True]
    assert "was removed or replaced" in journal.trouble
    assert journal.last_number() == 30, "no id is used twice"
    journal.note(6, Tick(), [])
    assert journal.write_out()
    assert len(said) == 1, "it is said once"
    journal.close()
    again = open_journal(path)
    assert (again.trouble, len(again.ended_jobs(99)), list(again.histories())) == ("", 30, ["program"])
    assert again.last_number() == 30
    again.close()


def test_of_damaged_files_only_the_newest_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    for _ in range(disk.DAMAGED_KEPT + 2):
        garbage(path)
        open_journal(path).close()
    kept = [name for name in names(path) if "damaged" in name and not name.endswith(("-wal", "-shm"))]
    assert len(kept) == disk.DAMAGED_KEPT


def test_rows_that_cannot_be_read_are_left_out_and_the_others_are_there(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    fill(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("update jobs set body = '{' where number = 3")
        db.execute("update jobs set body = x'ff00ff' where number = 4")
        db.execute("update jobs set wall_s = 'never' where number = 5")
        db.execute("insert into histories values ('bad', 'no')")
        db.execute("insert into accounts values ('bad', 7)")
    journal = open_journal(path)
    found = journal.ended_jobs(99)
    assert (journal.trouble, len(found), journal.last_number()) == ("", 27, 30)
    assert (list(journal.histories()), journal.account_of("bad")) == (["program"], None)
    journal.close()


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: a read-only and a full disk; only root may mount one")
def test_j4_a_journal_that_may_only_be_read_is_read_and_said_to_be_so(tmp_path: Path) -> None:
    place = tmp_path / "state"
    place.mkdir()
    fill(place / "journal.db")
    subprocess.run(["mount", "--bind", str(place), str(place)], check=True, timeout=60)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(place)], check=True, timeout=60)
        journal = open_journal(place / "journal.db")
        assert "journal.db cannot be opened for writing: " in journal.trouble
        assert (journal.last_number(), len(journal.ended_jobs(99))) == (30, 30)
        journal.note(5, Tick(), [])
        journal.close()
        assert names(place / "journal.db") == ["journal.db"], "it is not damaged"
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=60)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: a read-only and a full disk; only root may mount one")
def test_j4_a_full_disk_loses_nothing_once_there_is_room(tmp_path: Path) -> None:
    place = tmp_path / "state"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=True, timeout=60)
    try:
        journal = open_journal(place / "journal.db")
        journal.note(1, CONFIGURED, [])
        assert journal.write_out()
        for number in range(400):
            end_job(journal, number, argv=["x" * 2000])
        assert not journal.write_out()
        assert "full" in journal.trouble
        assert "damaged" not in journal.trouble
        subprocess.run(["mount", "-o", "remount,size=20m", str(place)], check=True, timeout=60)
        assert journal.write_out()
        journal.close()
        with closing(open_journal(place / "journal.db")) as again:
            assert (journal.trouble, len(again.ended_jobs(999))) == ("", 400)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=60)


# --- a disk that hangs -------------------------------------------------------------------------------------------


def test_j4_nobody_waits_for_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PENDING_MAX", 1000)
    monkeypatch.setattr(writer, "HANG_SECONDS", 0.05)
    path, goes_on, hangs = tmp_path / "journal.db", threading.Event(), threading.Event()
    journal = open_journal(path)
    really = journal._file._write

    def write(batch: Any) -> None:
        hangs.set()
        assert goes_on.wait(60)
        really(batch)

    monkeypatch.setattr(journal._file, "_write", write)
    journal.note(1, CONFIGURED, [])
    journal.flush()
    assert hangs.wait(60)
    for now in range(3000):
        journal.note(now, Tick(), [])
        journal.flush()
    assert 900 <= journal.waiting_rows <= 1001
    time.sleep(0.1)
    assert "hangs: its disk has not answered" in journal.trouble
    dropped = journal.dropped_rows
    assert f"lacks {dropped} rows" in journal.trouble
    end_job(journal, 4)
    assert [job["id"] for job in journal.ended_jobs(9)] == ["j-4"], "questions are answered meanwhile"
    goes_on.set()
    journal.close()
    found = reader.read(path)
    assert (len(found.calls), found.gap) == (1, dropped)
    assert dropped + len(reader.read_facts(path, "Tick")) == 3000


# --- size --------------------------------------------------------------------------------------------------------


def work(journal: Journal, count: int) -> None:
    """So many calls, as different from each other as those of busy jobs."""
    for now in range(count):
        event = HistoryLoaded(fingerprint=os.urandom(200).hex(), history=HISTORY)
        journal.note(now, event, [])
        if now % 1000 == 0:
            journal.flush()


def wait_tidy(journal: Journal) -> None:
    for _ in range(1000):
        assert journal.write_out(seconds=60)
        if journal._file._loose_rows < disk.BLOCK_ROWS and 0 < journal.used_bytes <= journal.bytes_max:
            return
        time.sleep(0.01)
    raise AssertionError(f"{journal.used_bytes} bytes after 10 s")


def test_j7_the_file_keeps_its_bound_and_the_newest_rows(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = open_journal(path, bytes_max=SMALL)
    journal.note(0, CONFIGURED, [])
    work(journal, 40_000)
    wait_tidy(journal)
    journal.note(99_999, Tick(), [])
    journal.close()
    assert path.stat().st_size <= SMALL + disk.SPARE_BYTES
    facts = reader.read_facts(path, "HistoryLoaded", "Tick")
    assert (len(facts) > 2000, facts[-1][1]) == (True, 99_999)
    times = [at for _, at, _ in facts[:-1]]
    assert times == list(range(times[0], 40_000)), "no row between is missing"
    with pytest.raises(Exception, match="the beginning of run 1 is not there"):
        reader.read(path)


def test_j7_packed_rows_are_read_back_as_they_were_across_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "BLOCK_ROWS", 7)
    path = tmp_path / "journal.db"
    told: list[tuple[int, Event, list[Effect]]] = [(1, CONFIGURED, []), (2, DEVICE, [])]
    told += [(3 + now, Tick(), []) for now in range(20)]
    for _ in range(3):
        journal = open_journal(path)
        for now, event, effects in told:
            journal.note(now, event, effects)
        wait_tidy(journal)
        journal.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("select count(*) from blocks").fetchone()[0] >= 6
        assert db.execute("select count(*) from log").fetchone()[0] < 7
    for run in (1, 2, 3):
        found = reader.read(path, run=run)
        assert [(call.at_ns, call.event, call.effects) for call in found.calls] == told
        assert [call.row for call in found.calls] == list(range(22 * (run - 1) + 1, 22 * run + 1))
    assert [life.trouble for life in reader.lives(path)] == ["", "", ""]


def test_j7_every_table_is_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNS_KEPT", "JOBS_KEPT", "HISTORIES_KEPT"):
        monkeypatch.setattr(disk, name, 5)
    path, now = tmp_path / "journal.db", time.monotonic_ns()
    lost = Account(
        arrived_ns=0, at_ns=now - 2 * disk.ACCOUNT_KEPT_NS, row="run", row_since_ns=0, spent_ns={}, waited_for_ns={},
        served_ns=0,
    )  # fmt: skip
    for number in range(1, 12):
        journal = open_journal(path)
        end_job(journal, number)
        journal.note_history(f"program-{number}", HISTORY)
        journal.note_accounts({f"lost-{number}": lost}, now=now - 2 * disk.ACCOUNT_KEPT_NS)
        journal.close()
    open_journal(path).close()
    with closing(sqlite3.connect(path)) as db:
        for table in ("runs", "noted", "jobs", "histories"):
            assert db.execute(f"select count(*) from {table}").fetchone()[0] <= 6, table
        assert db.execute("select count(*) from accounts").fetchone()[0] == 0


def test_arguments_of_jobs_that_are_over_are_kept_as_far_as_somebody_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = open_journal(path)
    end_job(journal, 1, argv=["train.py", *["data/x.csv"] * 100_000])
    journal.close()
    with closing(open_journal(path)) as again:
        argv = again.ended_jobs(1)[0]["argv"]
    assert isinstance(argv, list)
    assert (argv[:2], len(str(argv)) < 8000) == (["train.py", "data/x.csv"], True)
    assert argv[-1].startswith(f"… {100_001 - len(argv) + 1} more, ")
    assert path.stat().st_size < 100_000


def test_the_file_is_safe_at_a_power_failure(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "journal.db")
    assert journal._file._db is not None
    found = [journal._file._db.execute(f"pragma {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert found == ["wal", 1]
    journal.close()


def test_a_job_that_is_over_is_written_at_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = open_journal(path)
    end_job(journal, 1)  # nobody calls flush
    with closing(sqlite3.connect(path)) as db:
        for _ in range(1000):
            if db.execute("select count(*) from jobs").fetchone()[0]:
                break
            time.sleep(0.01)
        assert db.execute("select job from jobs").fetchall() == [(JobId("j-1"),)]
    journal.close()
