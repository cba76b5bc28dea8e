"""Usage as it is kept: who had which device for how long, by the hour, then by the day, within a bound.

Rules
  J14  A roll-up loses nothing: what it takes together adds up to what it was, to the nanosecond, in one transaction.
       A daemon that is killed in the middle leaves the rows as they were.
  J15  Rows by the job are kept for JOB_DAYS, by the hour for HOUR_DAYS, by the day for DAYS. All of them have a part
       of the journal's bound. Beyond it whoever has most rows by the job gives first, oldest first; then hours become
       days, days become months, and those who had least in one become one row. Only then the oldest is forgotten.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from carpool.journal.hours import DAY, HOUR, MONTH, end_of, start_of
from carpool.journal.metering import Cut, Key, Kind

TABLES = """
create table if not exists usage (start_s integer, span_s integer, kind integer, device text, tenant text, user text,
    job text, had_ns integer, waited_ns integer, memory_mib_ms integer, lent_ns integer, borrowed_ns integer,
    primary key (start_s, span_s, kind, device, tenant, user, job)) without rowid;
create table if not exists booked (device text primary key, since_ns integer, until_ns integer);
create table if not exists waits (job text primary key, waited_ns integer);
"""
JOB_DAYS, HOUR_DAYS, DAYS = 31, 62, 400
PART = 4  # of the journal's bound, divided by this, are the rows of usage
ROW_BYTES = 128  # one row is that at most, but for long names; measured: 60 to 110
OTHERS = "(others)"  # those who had least, as one row
FEW = 50  # whoever has no more than the bound divided by this is not the one who has too many
NAMED = 200  # so many keep rows of their own in an hour or a day, once there is no room
_SUMS = "sum(had_ns), sum(waited_ns), sum(memory_mib_ms), sum(lent_ns), sum(borrowed_ns)"
_ADD = """insert into usage values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    on conflict do update set had_ns = had_ns + excluded.had_ns, waited_ns = waited_ns + excluded.waited_ns,
    memory_mib_ms = memory_mib_ms + excluded.memory_mib_ms, lent_ns = lent_ns + excluded.lent_ns,
    borrowed_ns = borrowed_ns + excluded.borrowed_ns"""

Row = tuple[object, ...]


def rows_max(bytes_max: int) -> int:
    """How many rows there may be in a journal of this bound."""
    return bytes_max // PART // ROW_BYTES


def write(db: sqlite3.Connection, cut: Cut, *, ended: Iterable[str] = ()) -> None:
    """Write what was booked, and until when (J11); the caller commits."""
    db.executemany(_ADD, ((*key, *spent) for key, spent in cut.rows.items()))
    if cut.until_ns:
        db.execute("delete from booked")  # a device that is here no more begins anew if it comes back
        booked = [(device, cut.since_ns.get(device, until_ns), until_ns) for device, until_ns in cut.until_ns.items()]
        db.executemany("insert into booked values (?, ?, ?)", booked)
    db.executemany("insert or replace into waits values (?, ?)", cut.waited_ns.items())
    db.executemany("delete from waits where job = ?", [(job,) for job in ended])


def load(db: sqlite3.Connection) -> Cut:
    """Until when what is booked: for the next daemon."""
    cut = Cut()
    for device, since_ns, until_ns in db.execute("select device, since_ns, until_ns from booked"):
        if isinstance(since_ns, int) and isinstance(until_ns, int):
            cut.since_ns[str(device)], cut.until_ns[str(device)] = since_ns, until_ns
    for job, waited_ns in db.execute("select job, waited_ns from waits"):
        if isinstance(waited_ns, int):
            cut.waited_ns[str(job)] = waited_ns
    return cut


def load_rows(db: sqlite3.Connection) -> Cut:
    """All rows that can be read of a damaged file."""
    cut = Cut()
    for row in db.execute("select * from usage"):
        texts, numbers = row[3:7], (*row[:3], *row[7:])
        if all(isinstance(each, int) for each in numbers) and all(isinstance(each, str) for each in texts):
            cut.rows[Key(*row[:7])] = list(row[7:])
    return cut


# --- kept small -----------------------------------------------------------------------------------------------


def count(db: sqlite3.Connection) -> int:
    return int(db.execute("select count(*) from usage").fetchone()[0])


def tidy(db: sqlite3.Connection, *, now_s: int, most: int) -> bool:
    """One step that rolls up what is old or too much; whether there may be more to do (J15). The caller commits."""
    return _roll_old(db, now_s) or (count(db) > most and _make_room(db, now_s, most))


def _roll_old(db: sqlite3.Connection, now_s: int) -> bool:
    today = start_of(now_s, DAY)
    month_ago_s = today - JOB_DAYS * DAY
    old = db.execute("select min(start_s) from usage where job <> '' and start_s < ?", (month_ago_s,))
    if (start_s := old.fetchone()[0]) is not None:
        until_s = min(month_ago_s, end_of(start_of(start_s, DAY), DAY))
        return _roll(db, "job <> '' and start_s >= ? and start_s < ?", (start_s, until_s))
    if _roll_hours(db, today - HOUR_DAYS * DAY):
        return True
    return db.execute("delete from usage where start_s < ?", (today - DAYS * DAY,)).rowcount > 0


def _roll_hours(db: sqlite3.Connection, before_s: int) -> bool:
    """Make one day of the hours of the oldest day before."""
    return _roll_spans(db, HOUR, DAY, before_s)


def _roll_spans(db: sqlite3.Connection, span: int, into: int, before_s: int) -> bool:
    asked = "select min(start_s) from usage where span_s = ? and start_s < ?"
    first_s = db.execute(asked, (span, before_s)).fetchone()[0]
    if first_s is None:
        return False
    start_s = start_of(first_s, into)
    until_s = min(before_s, end_of(start_s, into))
    return _roll(
        db, "span_s = ? and start_s >= ? and start_s < ?", (span, first_s, until_s), start_s=start_s, span_s=into
    )


def _roll(
    db: sqlite3.Connection, where: str, values: Row, *, start_s: int | None = None, span_s: int | None = None
) -> bool:
    """Take these rows together: of jobs into their users', and into another span if one is said (J14)."""
    start = "start_s" if start_s is None else str(start_s)
    span = "span_s" if span_s is None else str(span_s)
    group = "kind, device, tenant, user" + ("" if start_s is not None else ", start_s, span_s")
    asked = (
        f"select {start}, {span}, kind, device, tenant, user, '', {_SUMS} from usage where {where} group by {group}"
    )
    found = db.execute(asked, values).fetchall()
    db.execute(f"delete from usage where {where}", values)
    db.executemany(_ADD, found)
    return bool(found)


def _make_room(db: sqlite3.Connection, now_s: int, most: int) -> bool:
    """There are too many rows: one step that makes them fewer (J15)."""
    most_rows = (
        "select tenant, user, count(*) from usage where job <> '' group by tenant, user order by 3 desc limit 1"
    )
    heaviest = db.execute(most_rows).fetchone()
    if heaviest is not None:
        tenant, user, rows = heaviest
        if rows <= most // FEW:  # nobody in particular: there are so many
            return _roll(db, "job <> ''", ())
        whose = "job <> '' and tenant = ? and user = ?"
        middle = f"select start_s from usage where {whose} order by start_s limit 1 offset ?"
        (start_s,) = db.execute(middle, (tenant, user, min(rows - 1, max(rows // 2, most // 10)))).fetchone()
        return _roll(db, f"{whose} and start_s <= ?", (tenant, user, start_s))
    today, month = start_of(now_s, DAY), start_of(now_s, MONTH)
    return (
        _roll_hours(db, today)
        or _fold(db)
        or _roll_spans(db, DAY, MONTH, month)
        or db.execute("delete from usage where start_s = (select min(start_s) from usage)").rowcount > 0
    )


def _fold(db: sqlite3.Connection) -> bool:
    """Of the time with most rows, take those together who had and waited least."""
    fullest = f"""select start_s, span_s, device, count(*) from usage where kind in ({Kind.JOB}, {Kind.LOAN})
        group by 1, 2, 3 order by 4 desc limit 1"""
    found = db.execute(fullest).fetchone()
    if found is None or found[3] <= 2 * NAMED:
        return False
    where = f"start_s = ? and span_s = ? and device = ? and kind in ({Kind.JOB}, {Kind.LOAN})"
    least = (
        f"select kind, tenant, user, job from usage where {where} order by had_ns + waited_ns desc limit -1 offset ?"
    )
    rows = db.execute(least, (*found[:3], NAMED)).fetchall()
    one = "start_s = ? and span_s = ? and device = ? and kind = ? and tenant = ? and user = ? and job = ?"
    for row in rows:
        db.execute(f"update usage set job = '(fold)' where {one}", (*found[:3], *row))
    return _roll_folded(db)


def _roll_folded(db: sqlite3.Connection) -> bool:
    asked = f"""select start_s, span_s, kind, device, '{OTHERS}', '{OTHERS}', '', {_SUMS} from usage
        where job = '(fold)' group by start_s, span_s, kind, device"""
    found = db.execute(asked).fetchall()
    db.execute("delete from usage where job = '(fold)'")
    db.executemany(_ADD, found)
    return bool(found)
