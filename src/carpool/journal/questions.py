"""What people ask of the journal's file: usage and ended jobs. Read in a thread of the daemon, never in its loop."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass, field
from pathlib import Path

from carpool import calls
from carpool.errors import UsageError
from carpool.journal import past
from carpool.journal.hours import DAY, HOUR, MONTH, end_of, start_of
from carpool.journal.metering import Kind
from carpool.journal.schema import PAST_FORM, form_of, open_to_read
from carpool.units import SECOND

OTHERS = "(other users)"  # whose names are not shown
EARLIER = "(earlier jobs)"  # kept by the user only
UNNAMED = "(no name)"
_BY = {"user": "user", "tenant": "tenant", "job": "job", "day": "start_s"}
_SUMS = "sum(had_ns), sum(waited_ns), sum(memory_mib_ms), sum(lent_ns), sum(borrowed_ns)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Whose names somebody sees: everybody's, or his own and those of his tenants."""

    sees_all: bool = True
    user: str = ""
    tenants: frozenset[str] = field(default_factory=frozenset)

    def sees(self, user: str, tenant: str) -> bool:
        return self.sees_all or (user == self.user if user else tenant in self.tenants)


EVERYTHING = Sight()


def usage(path: Path, asked: calls.UsageAsked, *, sight: Sight = EVERYTHING) -> calls.Usage:
    """Who had what in this time. It begins and ends where hours do, or days where only those are kept."""
    with open_to_read(path) as db:
        try:
            return _usage(db, asked, sight) if form_of(db) >= PAST_FORM else calls.Usage(by=asked.by)
        except sqlite3.Error as error:
            raise UsageError(f"{path} cannot be read as a journal: {error}") from error


def _usage(db: sqlite3.Connection, asked: calls.UsageAsked, sight: Sight) -> calls.Usage:
    since_s, until_s = _aligned(db, asked.since_s, asked.until_s)
    span = (since_s, until_s)
    sums: dict[str, list[int]] = {}
    whose: dict[str, tuple[str, str]] = {}
    column = _BY[asked.by]
    kinds = f"{Kind.JOB}" if asked.by == "job" else f"{Kind.JOB}, {Kind.LOAN}"
    wanted = f"""select {column}, max(user), max(tenant), {_SUMS} from usage
        where start_s >= ? and start_s < ? and kind in ({kinds}) group by 1{_split(asked.by)}"""
    for what, user, tenant, *found in db.execute(wanted, span):
        name = _name(asked.by, what, user, tenant, sight)
        whose[name] = (user, tenant) if asked.by == "job" and name not in (OTHERS, EARLIER) else ("", "")
        sums[name] = [old + new for old, new in zip(sums.get(name, [0] * 5), found, strict=True)]
    ended = _ended(db, asked.by, since_s, until_s, sight)
    for name in ended if asked.by != "job" else ():  # whose jobs ended before they had a turn
        sums.setdefault(name, [0] * 5)
    rows = [
        calls.UsageRow(
            name=name,
            user=whose.get(name, ("", ""))[0],
            tenant=whose.get(name, ("", ""))[1],
            jobs=ended.get(name, 0),
            had_ns=had,
            waited_ns=waited,
            memory_mib_s=memory // 1000,
            lent_ns=lent,
            borrowed_ns=borrowed,
        )
        for name, (had, waited, memory, lent, borrowed) in sums.items()
    ]
    rows.sort(key=lambda row: row.name if asked.by == "day" else (-row.had_ns, -row.waited_ns, row.name))
    idle_ns, unknown_ns = (_whole(db, kind, span) for kind in (Kind.IDLE, Kind.UNKNOWN))
    known = "select distinct device from usage where start_s >= ? and start_s < ? and device <> '' order by 1"
    since_ns, until_ns = _booked(db, since_s, until_s)
    return calls.Usage(
        by=asked.by,
        since_ns=since_ns,
        until_ns=until_ns,
        devices=[str(device) for (device,) in db.execute(known, span)],
        device_ns=sum(row.had_ns for row in rows) + idle_ns + unknown_ns,
        idle_ns=idle_ns,
        unknown_ns=unknown_ns,
        rows=rows,
    )


def _split(by: str) -> str:
    """Where names may be hidden, rows are told apart by whose they are as well."""
    return {"user": ", tenant", "tenant": ", user", "job": ", user, tenant"}.get(by, "")


def _name(by: str, what: object, user: str, tenant: str, sight: Sight) -> str:
    if by == "day":
        return time.strftime("%Y-%m-%d", time.localtime(int(str(what))))
    if not sight.sees(user, tenant):
        return OTHERS
    if by == "job":
        return str(what) or EARLIER
    return str(what) or (f"({tenant})" if tenant else UNNAMED)


def _whole(db: sqlite3.Connection, kind: int, span: tuple[int, int]) -> int:
    asked = "select coalesce(sum(had_ns), 0) from usage where kind = ? and start_s >= ? and start_s < ?"
    return int(db.execute(asked, (kind, *span)).fetchone()[0])


def _aligned(db: sqlite3.Connection, since_s: int, until_s: int | None) -> tuple[int, int]:
    """The time from where the first hour, day or month that is kept of it begins to where the last one ends."""
    (first_s,) = db.execute("select min(start_s) from usage").fetchone()
    (last_s,) = db.execute("select max(start_s) from usage").fetchone()
    if first_s is None:
        return since_s, since_s
    since_s = max(start_of(max(since_s, first_s), HOUR), first_s)
    until_s = min(last_s + 1, until_s if until_s is not None else last_s + 1)
    for span in (DAY, MONTH):
        since_s = min(since_s, _around(db, since_s, span) or since_s)
        last = _around(db, until_s - 1, span)
        until_s = max(until_s, end_of(last, span) if last is not None else 0)
    return since_s, end_of(start_of(until_s - 1, HOUR), HOUR) if until_s > since_s else since_s


def _around(db: sqlite3.Connection, at_s: int, span: int) -> int | None:
    """The start of the day or month around this moment, if there are rows for it as a whole."""
    start_s = start_of(at_s, span)
    found = db.execute("select 1 from usage where start_s = ? and span_s = ? limit 1", (start_s, span)).fetchone()
    return start_s if found is not None else None


def _booked(db: sqlite3.Connection, since_s: int, until_s: int) -> tuple[int, int]:
    """The very moments between which all is booked, within these."""
    since_ns, until_ns = since_s * SECOND, until_s * SECOND
    began_ns, booked_ns = db.execute("select min(since_ns), max(until_ns) from booked").fetchone()
    if began_ns is None:
        return since_ns, until_ns
    is_first = db.execute("select 1 from usage where start_s < ? limit 1", (start_of(began_ns // SECOND, HOUR),))
    if is_first.fetchone() is None:
        since_ns = max(since_ns, began_ns)
    return since_ns, max(since_ns, min(until_ns, booked_ns))


def _ended(db: sqlite3.Connection, by: str, since_s: int, until_s: int, sight: Sight) -> dict[str, int]:
    """How many jobs ended in this time."""
    column = {"day": "ended_s"}.get(by, _BY[by])
    found: dict[str, int] = {}
    wanted = f"select {column}, user, tenant, count(*) from past where ended_s >= ? and ended_s < ? group by 1, 2, 3"
    for what, user, tenant, count in db.execute(wanted, (since_s, until_s)):
        name = _name(by, int(what) if by == "day" else what, user, tenant, sight)
        found[name] = found.get(name, 0) + count
    return found


# --- jobs that are over ---------------------------------------------------------------------------------------


def history(path: Path, asked: calls.HistoryAsked, *, sight: Sight = EVERYTHING) -> calls.History:
    """Jobs that are over and fit, newest first; others than one sees are left out."""
    with open_to_read(path) as db:
        if form_of(db) < PAST_FORM:
            return calls.History()
        try:
            found = db.execute(*_wanted(asked, sight)).fetchall()
        except sqlite3.Error as error:
            raise UsageError(f"{path} cannot be read as a journal: {error}") from error
    jobs = [calls.PastJob(**dict(zip(past.COLUMNS, row, strict=True))) for row in found[: asked.limit]]
    return calls.History(jobs=jobs, has_more=len(found) > asked.limit)


def _wanted(asked: calls.HistoryAsked, sight: Sight) -> tuple[str, list[object]]:
    tests: dict[str, object | None] = {
        "user = ?": asked.user,
        "tenant = ?": asked.tenant,
        "name glob ?": asked.name.replace("[", "[[]") if asked.name is not None else None,
        "state = ?": asked.state,
        "ended_s >= ?": asked.since_s or None,
        "ended_s < ?": asked.until_s,
        "number < ?": asked.before,
    }
    texts = [test for test, value in tests.items() if value is not None]
    values = [value for value in tests.values() if value is not None]
    if not sight.sees_all:
        marks = ", ".join("?" * len(sight.tenants))
        texts.append(f"(user = ? or (user = '' and tenant in ({marks})))")
        values += [sight.user, *sorted(sight.tenants)]
    condition = f"where {' and '.join(texts)}" if texts else ""
    wanted = f"select {', '.join(past.COLUMNS)} from past {condition} order by number desc limit ?"
    return wanted, [*values, asked.limit + 1]
