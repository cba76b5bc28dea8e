"""Usage and past jobs in the journal's file: rolled up, bounded, asked for, taken over, and saved from damage."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool import calls
from carpool.core.kernel.ids import DeviceId, JobId, LaneId, TenantId
from carpool.core.node.effects import CloseJob, GrantLease, StartJob
from carpool.core.node.events import DeviceAdded, JobExited, JobSubmitted, LeaseReturned, NodeConfigured, Tick
from carpool.core.node.model import JobSpec, JobState
from carpool.core.node.settings import Settings
from carpool.daemon.files import JobFile
from carpool.daemon.start_and_end import End
from carpool.daemon.translate import picture_lost
from carpool.journal import disk, past, questions, schema, usage
from carpool.journal.hours import DAY, HOUR, start_of
from carpool.journal.metering import Cut, Key, Kind
from carpool.journal.questions import Sight
from carpool.journal.writer import Journal
from carpool.units import GIB, MIB, SECOND

NOW_S = 1_790_000_000
ALL = calls.UsageAsked()


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "journal.db")) as opened:
        schema.prepare(opened)
        yield opened


def sums(db: sqlite3.Connection, by: str = "kind, device, tenant") -> dict[tuple[object, ...], tuple[int, ...]]:
    what = "sum(had_ns), sum(waited_ns), sum(memory_mib_ms), sum(lent_ns), sum(borrowed_ns)"
    found = db.execute(f"select {by}, {what} from usage group by {by}").fetchall()
    return {row[:-5]: row[-5:] for row in found}


def tidy(db: sqlite3.Connection, *, now_s: int = NOW_S, most: int = 10**9) -> None:
    for _ in range(100_000):
        if not usage.tidy(db, now_s=now_s, most=most):
            db.commit()
            return
    raise AssertionError("it never ends")


def book(db: sqlite3.Connection, start_s: int, *, user: str, job: str, had: int = 1000, span: int = HOUR) -> None:
    key = Key(start_s, span, Kind.JOB, "gpu0", f"of {user}", user, job)
    usage.write(db, Cut(rows={key: [had, 2 * had, 3, 4, 5]}))


# --- rolled up ---------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), most=st.sampled_from([10**9, 300, 40, 5]))
def test_j14_roll_ups_lose_no_nanosecond(seed: int, most: int) -> None:
    chance = random.Random(seed)
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(usage.TABLES)
        for number in range(400):
            start_s = start_of(NOW_S - chance.randrange(0, 380 * DAY), HOUR)
            kind = chance.choice((Kind.JOB, Kind.JOB, Kind.JOB, Kind.IDLE, Kind.UNKNOWN, Kind.LOAN))
            who = (f"t{chance.randrange(3)}", f"u{chance.randrange(3)}", f"j{number}") if kind == Kind.JOB else ()
            key = Key(start_s, HOUR, kind, chance.choice(("gpu0", "gpu1")), *who)
            usage.write(db, Cut(rows={key: [chance.randrange(1, 10**15) for _ in range(5)]}))
        before = sums(db)
        oldest = db.execute("select min(start_s) from usage").fetchone()[0]
        tidy(db, most=most)
        is_whole = db.execute("select min(start_s) from usage").fetchone()[0] <= oldest
        assert usage.count(db) <= most or most == 5
        if most > 40:
            assert is_whole
            assert sums(db) == before
        else:
            assert all(sums(db).get(key, (0,))[0] <= spent[0] for key, spent in before.items())


def test_j15_rows_are_by_the_job_for_a_month_by_the_hour_for_two_and_by_the_day_for_a_year(
    db: sqlite3.Connection,
) -> None:
    for days in range(1, 450):
        for hour in (3, 4):
            for job in ("a", "b"):
                book(db, start_of(NOW_S - days * DAY, DAY) + hour * HOUR, user="ana", job=f"{job}-{days}-{hour}")
    tidy(db)
    today = start_of(NOW_S, DAY)
    kinds: dict[tuple[int, bool], set[int]] = {}
    for start_s, span_s, job in db.execute("select start_s, span_s, job from usage"):
        kinds.setdefault((span_s, bool(job)), set()).add((today - start_of(start_s, DAY)) // DAY)
    assert kinds == {
        (HOUR, True): set(range(1, usage.JOB_DAYS + 1)),
        (HOUR, False): set(range(usage.JOB_DAYS + 1, usage.HOUR_DAYS + 1)),
        (DAY, False): set(range(usage.HOUR_DAYS + 1, usage.DAYS + 1)),
    }


def test_j15_where_there_is_no_room_whoever_has_most_rows_gives_first(db: sqlite3.Connection) -> None:
    for number in range(50):
        book(db, start_of(NOW_S - number * HOUR, HOUR), user="ana", job=f"a-{number}")
    for number in range(5000):
        book(db, start_of(NOW_S - HOUR, HOUR), user="ben", job=f"b-{number}")
    tidy(db, most=1000)
    of_jobs = dict(db.execute("select user, count(*) from usage where job <> '' group by user").fetchall())
    assert of_jobs["ana"] == 50
    of_ana, of_ben = sums(db, "user")["ana",], sums(db, "user")["ben",]
    assert of_ana == (50_000, 100_000, 150, 200, 250)
    assert of_ben == tuple(100 * each for each in of_ana)


def test_j15_a_flood_of_names_in_an_hour_becomes_one_row_and_costs_others_nothing(db: sqlite3.Connection) -> None:
    for days in range(300):
        book(db, start_of(NOW_S - days * DAY, DAY), user="ana", job="", span=DAY)
    for number in range(5000):
        book(db, start_of(NOW_S, HOUR), user=f"u{number}", job=f"j{number}", had=2000 + number)
    tidy(db, most=1000)
    by_user = sums(db, "user")
    assert by_user["ana",] == (300_000, 600_000, 900, 1200, 1500)
    assert by_user["u4999",][0] == 6999, "who had most has a row of his own"
    assert sum(spent[0] for spent in by_user.values()) == 300_000 + sum(range(2000, 7000))
    assert usage.OTHERS in {user for (user,) in by_user}
    assert usage.count(db) <= 1000


@pytest.mark.slow
def test_a_year_of_a_laboratory_fits_into_its_part_of_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty students on four devices, each hour some of them with two jobs, for a year; and 60 ended jobs a day."""
    path, chance = tmp_path / "journal.db", random.Random(1)
    clock = [float(NOW_S - 365 * DAY)]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    life = (clock[0], 0, "test", "{}")
    file = disk.JournalFile(path, life=life, bytes_max=64 * MIB, remember=disk.Batch)
    file.open()
    number = 0
    for day in range(365):
        rows: dict[Key, list[int]] = {}
        for hour in range(24 * day, 24 * day + 24):
            clock[0] = NOW_S - 365 * DAY + hour * HOUR
            for device in range(4):
                rows |= an_hour(chance, start_of(int(clock[0]), HOUR), f"gpu{device}", hour)
        jobs = {}
        for number in range(60 * day + 1, 60 * day + 61):
            jobs[f"j-{number}"] = ended_job(f"j-{number}", number, user=f"student{number % 20}", wall_s=clock[0])
        file.write(disk.Batch(usage=Cut(rows=rows), jobs=jobs))
        while file.tidy():
            pass
    file.close()
    with closing(sqlite3.connect(path)) as db:
        booked = db.execute("select sum(had_ns) from usage where kind <> ?", (Kind.LOAN,)).fetchone()[0]
        count, kept = usage.count(db), db.execute("select count(*) from past").fetchone()[0]
    assert booked == 365 * 24 * 4 * HOUR * SECOND, "to the nanosecond"
    assert count < usage.rows_max(64 * MIB)
    assert kept == number, "a year of jobs is there"
    size = path.stat().st_size
    print(f"a year is {size} bytes: {count} rows of usage, {kept} past jobs")
    assert size < 32 * MIB
    answer = questions.usage(path, calls.UsageAsked(since_s=NOW_S - 365 * DAY, by="day"))
    assert answer.device_ns == booked
    assert len(answer.rows) in (365, 366)


def an_hour(chance: random.Random, hour_s: int, device: str, hour: int) -> dict[Key, list[int]]:
    """Five students with two jobs each have the device, or nobody has."""
    rows, left = dict[Key, list[int]](), HOUR * SECOND
    for student in chance.sample(range(20), 5):
        for each in range(2):
            had = min(left, chance.randrange(600 * SECOND))
            left -= had
            job = f"train-model-{student}-{hour // 10 * 40 + each}"
            key = Key(hour_s, HOUR, Kind.JOB, device, "student", f"student{student}", job)
            rows[key] = [had, had, had // 10**9, 0, 0]
    return {**rows, Key(hour_s, HOUR, Kind.IDLE, device): [left, 0, 0, 0, 0]}


def ended_job(job: str, number: int, *, user: str, wall_s: float, state: str = "finished") -> disk.EndedJob:
    body = (
        f'{{"id": "{job}", "name": "train", "user": "{user}", "tenant": "t-{user}", "state": "{state}",'
        ' "device": "gpu0", "spent_ns": {"run": 5000000000, "turn": 2000000000}, "served_ns": 5000000000,'
        ' "waited_ns": 2000000000, "needs": {"persistent_bytes": 1000, "ephemeral_bytes": 24}, "steps": 7,'
        ' "reason": "exit code 0"}'
    )
    return disk.EndedJob(job=job, number=number, wall_s=wall_s, state=state, body=body, name="train", owner=user)


# --- jobs that are over ------------------------------------------------------------------------------------------


def test_j16_a_flood_of_one_users_short_jobs_takes_nothing_from_the_others(db: sqlite3.Connection) -> None:
    rows = [past.row_of(f"a-{n}", n, NOW_S, "finished", f'{{"user": "u{n % 5}"}}') for n in range(1, 101)]
    past.write(db, rows)
    past.write(db, [past.row_of(f"f-{n}", n, NOW_S, "failed", '{"user": "eve"}') for n in range(101, 5001)])
    while past.tidy(db, now_s=NOW_S, most=1000):
        pass
    found = dict(db.execute("select user, count(*) from past group by user").fetchall())
    assert {user: found[user] for user in ("u0", "u1", "u2", "u3", "u4")} == dict.fromkeys(
        ("u0", "u1", "u2", "u3", "u4"), 20
    )
    assert 800 <= found["eve"] <= 900
    newest = db.execute("select min(number) from past where user = 'eve'").fetchone()[0]
    assert newest == 5001 - found["eve"], "the oldest went"


def test_j16_of_the_jobs_that_are_remembered_whole_whoever_has_most_gives_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "JOBS_KEPT", 20)
    path = tmp_path / "journal.db"
    journal = Journal(path, version="test", config="{}")
    for number in range(1, 6):
        end(journal, number, user="ana")
    for number in range(6, 200):
        end(journal, number, user="eve")
    kept = {f"j-{number}" for number in (*range(1, 6), *range(185, 200))}
    assert {str(job["id"]) for job in journal.ended_jobs(99)} == kept
    journal.close()
    again = Journal(path, version="test", config="{}")
    assert {str(job["id"]) for job in again.ended_jobs(99)} == kept
    assert again.last_number() == 199
    again.close()


def end(journal: Journal, number: int, *, user: str) -> None:
    spec = JobSpec(name="j", user=user)
    file = JobFile(job=f"j-{number}", number=number, spec=spec, argv=["j"], cwd="/")
    journal.note_job(number, picture_lost(file, End(code=0)), file.argv)


def test_past_jobs_are_found_by_user_tenant_name_state_and_time(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with closing(sqlite3.connect(path)) as db:
        schema.prepare(db)
        for number in range(1, 31):
            user, state = ("ana", "ben", "eve")[number % 3], ("finished", "failed")[number % 2]
            job = ended_job(f"j-{number}", number, user=user, wall_s=NOW_S + number, state=state)
            past.write(
                db, [past.row_of(job.job, number, job.wall_s, state, job.body.replace('"train"', f'"n{number % 4}"'))]
            )
        db.commit()

    def numbers(**asked: object) -> list[int]:
        found = questions.history(path, calls.HistoryAsked(**asked))  # type: ignore[arg-type] # any filter
        return [job.number for job in found.jobs]

    assert numbers() == list(range(30, 0, -1))
    assert numbers(user="ana", limit=3) == [30, 27, 24]
    assert numbers(user="ana", before=24, limit=2) == [21, 18]
    assert numbers(tenant="t-ben", state="failed") == [25, 19, 13, 7, 1]
    assert numbers(name="n1", since_s=NOW_S + 20) == [29, 25, 21]
    assert numbers(name="n*", until_s=NOW_S + 3) == [2, 1]
    assert numbers(name="[n]*") == []
    first = questions.history(path, calls.HistoryAsked(limit=1))
    assert first.has_more
    assert first.jobs[0] == calls.PastJob(
        number=30, job="j-30", ended_s=NOW_S + 30, user="ana", tenant="t-ana", name="n2", state="finished",
        device="gpu0", wall_ns=7 * SECOND, had_ns=5 * SECOND, waited_ns=2 * SECOND, needs_bytes=1024, steps=7,
        reason="exit code 0",
    )  # fmt: skip
    sight = Sight(sees_all=False, user="ben")
    seen = questions.history(path, calls.HistoryAsked(), sight=sight).jobs
    assert {job.user for job in seen} == {"ben"}


# --- asked for ---------------------------------------------------------------------------------------------------


def work(journal: Journal, *, now: int, user: str, seconds: int) -> int:
    """One job from its start to its end; returns when that was."""
    job = JobId(f"{user}-1")
    spec = JobSpec(name=user, user=user, tenant=TenantId("lab"))
    journal.note(now, JobSubmitted(job=job, spec=spec), [StartJob(job=job, device=DeviceId("gpu0"))])
    journal.note(now, Tick(), [GrantLease(job=job, lane=LaneId("l"), lane_bytes=0, is_shared=False)])
    now += seconds * SECOND
    journal.note(now, LeaseReturned(job=job, wants_more=False, steps=1), [])
    journal.note(now, JobExited(job=job, code=0), [CloseJob(job=job, state=JobState.FINISHED, reason="")])
    return now


def test_the_answer_adds_up_and_names_what_is_rolled_up_or_hidden(tmp_path: Path) -> None:
    path, now = tmp_path / "journal.db", time.monotonic_ns()
    journal = Journal(path, version="test", config="{}")
    began = now
    journal.note(now, NodeConfigured(policy="fair", settings=Settings()), [])
    for device in ("gpu0", "gpu1"):
        journal.note(now, DeviceAdded(device=DeviceId(device), capacity_bytes=GIB), [])
    now = work(journal, now=now, user="ana", seconds=30)
    now = work(journal, now=now + 5 * SECOND, user="ben", seconds=10)
    journal.note_accounts({}, now=now)
    journal.close()
    found = questions.usage(path, ALL)
    assert [(row.name, row.had_ns) for row in found.rows] == [("ana", 30 * SECOND), ("ben", 10 * SECOND)]
    assert (found.idle_ns, found.unknown_ns, found.devices) == (50 * SECOND, 0, ["gpu0", "gpu1"])
    assert found.device_ns == 2 * (now - began) == 2 * (found.until_ns - found.since_ns)
    by_job = questions.usage(path, calls.UsageAsked(by="job"))
    assert [(row.name, row.user, row.tenant) for row in by_job.rows] == [
        ("ana-1", "ana", "lab"),
        ("ben-1", "ben", "lab"),
    ]
    assert [row.name for row in questions.usage(path, calls.UsageAsked(by="tenant")).rows] == ["lab"]
    sight = Sight(sees_all=False, user="ben")
    hidden = {row.name: row.had_ns for row in questions.usage(path, ALL, sight=sight).rows}
    assert hidden == {questions.OTHERS: 30 * SECOND, "ben": 10 * SECOND}
    of_jobs = questions.usage(path, calls.UsageAsked(by="job"), sight=sight).rows
    assert [(row.name, row.user) for row in of_jobs] == [(questions.OTHERS, ""), ("ben-1", "ben")]
    later = questions.usage(path, calls.UsageAsked(since_s=found.until_ns // SECOND + DAY))
    assert (later.device_ns, later.rows) == (0, [])


def test_a_time_begins_and_ends_where_the_hours_and_days_do_that_are_kept(tmp_path: Path) -> None:
    path, today = tmp_path / "journal.db", start_of(NOW_S, DAY)
    with closing(sqlite3.connect(path)) as db:
        schema.prepare(db)
        book(db, today - 2 * DAY, user="ana", job="", span=DAY, had=100)
        for hour in range(12):
            book(db, today + hour * HOUR, user="ana", job="a-1", had=1)
        db.commit()

    def had(since_s: int, until_s: int | None = None) -> tuple[int, int, int]:
        found = questions.usage(path, calls.UsageAsked(since_s=since_s, until_s=until_s))
        return (found.since_ns // SECOND - today) // HOUR, (found.until_ns // SECOND - today) // HOUR, found.device_ns

    assert had(0) == (-48, 12, 112)
    assert had(today - DAY - HOUR) == (-48, 12, 112), "half a day is not known: the whole one is shown"
    assert had(today + 2 * HOUR + 900) == (2, 12, 10)
    assert had(today + 2 * HOUR, today + 4 * HOUR) == (2, 4, 2)
    assert had(today + 2 * HOUR, today + 4 * HOUR + 1) == (2, 5, 3)
    assert had(today - 3 * DAY, today - DAY - HOUR) == (-48, -24, 100)
    assert had(today - 3 * DAY, today - 3 * DAY + 5)[2] == 0


# --- the file ----------------------------------------------------------------------------------------------------


def test_an_older_journal_is_taken_over_with_its_ended_jobs(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path, version="test", config="{}")
    for number in range(1, 4):
        end(journal, number, user="ana")
    journal.close()
    with closing(sqlite3.connect(path)) as db:  # as form 2 was
        for table in ("usage", "booked", "waits", "past"):
            db.execute(f"drop table {table}")
        db.execute("pragma user_version = 2")
        db.commit()
    assert questions.history(path, calls.HistoryAsked()).jobs == [], "also read before a daemon took it over"
    assert questions.usage(path, ALL).rows == []
    again = Journal(path, version="test", config="{}")
    assert (again.trouble, len(again.ended_jobs(9))) == ("", 3)
    again.close()
    assert [job.job for job in questions.history(path, calls.HistoryAsked()).jobs] == ["j-3", "j-2", "j-1"]


def test_j6_usage_and_past_jobs_of_a_damaged_file_are_in_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path, version="test", config="{}")
    end(journal, 1, user="ana")
    journal.close()
    with closing(sqlite3.connect(path)) as db:
        key = Key(NOW_S, HOUR, Kind.JOB, "gpu0", "lab", "ana", "a-1")
        usage.write(db, Cut(rows={key: [7, 1, 1, 0, 0]}, until_ns={"gpu0": 5}, since_ns={"gpu0": 1}))
        db.execute("insert into usage values ('x', 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)")
        db.execute("pragma writable_schema = on")
        db.execute("update sqlite_schema set rootpage = 2 where name = 'log'")  # its rows are elsewhere
        db.commit()
    again = Journal(path, version="test", config="{}")
    assert "was damaged" in again.trouble
    again.close()
    assert [(row.name, row.had_ns) for row in questions.usage(path, ALL).rows] == [("ana", 7)]
    assert [job.job for job in questions.history(path, calls.HistoryAsked()).jobs] == ["j-1"]
    with closing(sqlite3.connect(path)) as db:
        assert usage.load(db).until_ns == {"gpu0": 5}


def test_usage_that_the_disk_did_not_take_is_written_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now = tmp_path / "journal.db", time.monotonic_ns()
    journal = Journal(path, version="test", config="{}")
    journal.note(now, DeviceAdded(device=DeviceId("gpu0"), capacity_bytes=GIB), [])
    really, refusals = journal._file._write, [sqlite3.OperationalError("disk I/O error")]

    def write(batch: disk.Batch) -> None:
        if refusals:
            raise refusals.pop()
        really(batch)

    monkeypatch.setattr(journal._file, "_write", write)
    journal.note_accounts({}, now=now + 3 * SECOND)
    assert not journal.write_out()
    monkeypatch.setattr(journal._file, "_write", really)
    journal.note_accounts({}, now=now + 5 * SECOND)
    assert journal.write_out()
    journal.close()
    assert questions.usage(path, ALL).idle_ns == 5 * SECOND


def test_a_bug_of_the_meter_costs_the_usage_and_not_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    journal = Journal(tmp_path / "journal.db", version="test", config="{}", report=said.append)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(journal._meter, "note", broken)
    for _ in range(3):
        journal.note(1, Tick(), [])
    journal.note_accounts({}, now=2)
    assert said == ["usage is not counted any more since a bug in carpool: ZeroDivisionError: by zero"]
    assert said[0] in journal.trouble
    assert journal.waiting_rows == 3
    journal.close()


@pytest.mark.slow
def test_a_file_of_a_hostile_size_stays_within_the_bound_of_the_journal(tmp_path: Path) -> None:
    """Ten thousand users with long names in an hour, and as many ended jobs."""
    path, most = tmp_path / "journal.db", 4 * MIB
    file = disk.JournalFile(path, life=(0.0, 0, "test", "{}"), bytes_max=most, remember=disk.Batch)
    file.open()
    for start in range(0, 20_000, 500):
        names = [os.urandom(20).hex() for _ in range(500)]
        hour_s = start_of(int(time.time()), HOUR)
        rows = {Key(hour_s, HOUR, Kind.JOB, "gpu0", name, name, f"{name}-1"): [1, 1, 1, 0, 0] for name in names}
        jobs = {
            f"{name}-1": ended_job(f"{name}-1", start + place, user=name, wall_s=time.time())
            for place, name in enumerate(names, 1)
        }
        file.write(disk.Batch(usage=Cut(rows=rows), jobs=jobs))
        while file.tidy():
            pass
    file.write(disk.Batch())
    while file.tidy():
        pass
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("select sum(had_ns) from usage").fetchone()[0] == 20_000
        assert usage.count(db) <= usage.rows_max(most) + disk.BOOKED_ROWS
        assert db.execute("select count(*) from past").fetchone()[0] <= past.rows_max(most) + disk.BOOKED_ROWS
    print(file.used_bytes)
    assert file.used_bytes <= most
    file.close()
