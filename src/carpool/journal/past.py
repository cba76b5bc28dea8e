"""Jobs that are over, a short row for each: for `carpool history`. Kept for a year, within a bound.

Rules
  J16  A job that is over has one row, and it is kept for DAYS. Where there are more rows than fit into this table's
       part of the journal's bound, whoever has most gives the oldest: thousands of short jobs of one user take
       nothing from the others. The same goes for the ended jobs that the daemon remembers whole.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import msgspec

from carpool.journal.hours import DAY

TABLES = """
create table if not exists past (number integer primary key, job text, ended_s real, user text, tenant text,
    name text, state text, device text, wall_ns integer, had_ns integer, waited_ns integer, needs_bytes integer,
    steps integer, reason text);
"""
COLUMNS = (
    "number", "job", "ended_s", "user", "tenant", "name", "state", "device", "wall_ns", "had_ns", "waited_ns",
    "needs_bytes", "steps", "reason",
)  # fmt: skip
DAYS = 400
PART = 4  # of the journal's bound, divided by this, are these rows
ROW_BYTES = 256  # what one is, more or less
WORD_MAX, REASON_MAX = 64, 160  # characters of what a user chose, and of a sentence
FEW = 50  # whoever has no more than the bound divided by this is not the one who has too many
STEP = 20  # one step forgets a part of all rows, divided by this, at most
_PUT = f"insert or replace into past values ({', '.join('?' * len(COLUMNS))})"


class _Needs(msgspec.Struct):
    persistent_bytes: int = 0
    ephemeral_bytes: int = 0
    overhead_bytes: int = 0


class _Said(msgspec.Struct):
    """What a row takes of the picture of a job that is over."""

    name: str = ""
    user: str = ""
    tenant: str = ""
    device: str | None = None
    spent_ns: dict[str, int] = {}
    served_ns: int = 0
    waited_ns: int = 0
    needs: _Needs | None = None
    steps: int = 0
    reason: str = ""


def rows_max(bytes_max: int) -> int:
    return bytes_max // PART // ROW_BYTES


def row_of(job: str, number: int, ended_s: float, state: str, body: str) -> tuple[object, ...] | None:
    """The row of a job from its picture; None if that cannot be read."""
    try:
        said = msgspec.json.decode(body, type=_Said)
    except (ValueError, TypeError):  # msgspec's errors are ValueErrors too
        return None
    needs = said.needs
    needs_bytes = needs.persistent_bytes + needs.ephemeral_bytes + needs.overhead_bytes if needs is not None else None
    words = [word[:WORD_MAX] for word in (said.user, said.tenant, said.name, state, said.device or "")]
    spans = sum(said.spent_ns.values()), said.served_ns, said.waited_ns
    return (number, job, ended_s, *words, *spans, needs_bytes, said.steps, said.reason[:REASON_MAX])


def write(db: sqlite3.Connection, rows: Iterable[tuple[object, ...] | None]) -> None:
    """The caller commits."""
    db.executemany(_PUT, (row for row in rows if row is not None))


def take_over(db: sqlite3.Connection) -> None:
    """Of a journal that had no such table: what its ended jobs say."""
    write(db, [row_of(*row) for row in db.execute("select job, number, wall_s, state, body from jobs").fetchall()])


def load_rows(db: sqlite3.Connection) -> list[tuple[object, ...]]:
    """All rows that can be read of a damaged file."""
    return [tuple(row) for row in db.execute(f"select {', '.join(COLUMNS)} from past order by number")]


def tidy(db: sqlite3.Connection, *, now_s: int, most: int) -> bool:
    """One step that forgets what is old or too much; whether there may be more to do (J16). The caller commits."""
    if db.execute("delete from past where ended_s < ?", (now_s - DAYS * DAY,)).rowcount > 0:
        return True
    count = int(db.execute("select count(*) from past").fetchone()[0])
    if count <= most:
        return False
    heavy = db.execute("select user, tenant, count(*) from past group by 1, 2 order by 3 desc limit 2").fetchall()
    user, tenant, rows = heavy[0]
    if rows <= most // FEW:  # nobody in particular: there are so many
        oldest_of_all = "select number from past order by number limit ?"
        db.execute(f"delete from past where number in ({oldest_of_all})", (count - most + most // STEP,))
        return True
    beyond_next = rows - (heavy[1][2] if len(heavy) > 1 else 0)
    gives = max(1, min(count - most + most // STEP, max(beyond_next, most // STEP // 4), rows))
    oldest = "select number from past where user = ? and tenant = ? order by number limit ?"
    db.execute(f"delete from past where number in ({oldest})", (user, tenant, gives))
    return True


class EndedJobs:
    """The ended jobs that a daemon remembers whole, so many of all; whoever has most gives the oldest (J16)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._owners: dict[str, str] = {}
        self._of: dict[str, dict[str, None]] = {}  # the jobs of each owner, oldest first

    def add(self, job: str, owner: str) -> str | None:
        """Take in a job; returns the one that has to go for it."""
        before = self._owners.get(job)
        if before is not None:
            del self._of[before][job]
        self._owners[job] = owner
        self._of.setdefault(owner, {})[job] = None
        if len(self._owners) <= self._most:
            return None
        heaviest = max(self._of, key=lambda each: len(self._of[each]))
        oldest = next(iter(self._of[heaviest]))
        del self._of[heaviest][oldest], self._owners[oldest]
        if not self._of[heaviest]:
            del self._of[heaviest]
        return oldest
