"""The side of the journal that touches its file: opened, written, kept small, set aside if it is damaged.

It may wait for the disk as long as the disk likes: once the daemon serves, only the journal's own thread is in here.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from carpool.core.node.lifecycle import carry_on
from carpool.core.node.model import Account
from carpool.journal import blocks, past, usage
from carpool.journal.blocks import Row
from carpool.journal.metering import Cut
from carpool.journal.schema import LOG_ROW, lenient_text, prepare
from carpool.units import SECOND

BLOCK_ROWS = 2_000  # so many of the oldest rows become one block
JOBS_KEPT = 2_000  # ended jobs, whole
HISTORIES_KEPT = 10_000  # programs whose needs are remembered
RUNS_KEPT = 1_000  # lives of daemons
ACCOUNT_KEPT_NS = 7 * 24 * 3600 * SECOND  # of a job that no daemon has seen again
DAMAGED_KEPT = 3  # files that were set aside
SPARE_BYTES = 8 << 20  # pages without contents that the file may keep for what comes next
BOOKED_ROWS = 1_000  # after so many rows of usage and of past jobs it is looked whether they are too many …
LOOK_SECONDS = 3600  # … or after so long whether some are old
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class _Known(msgspec.Struct):
    name: str = ""
    user: str = ""
    tenant: str = ""
    uid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """A job that is over, as its row has it."""

    job: str
    number: int
    wall_s: float
    state: str
    body: str  # JSON
    name: str
    owner: str = ""  # on whose account it counts among those that are kept (J16)
    uid: int | None = None  # whose it was; None if nobody noted that

    @classmethod
    def of_row(cls, row: tuple[object, ...]) -> EndedJob | None:
        """None for a row that cannot be read."""
        job, number, wall_s, state, body = row
        try:
            known = msgspec.json.decode(str(body), type=_Known)
            found = cls(
                job=str(job),
                number=int(str(number)),
                wall_s=float(str(wall_s)),
                state=str(state),
                body=str(body),
                name=known.name,
                owner=known.user or known.tenant,
                uid=known.uid,
            )
        except (ValueError, TypeError):  # msgspec's errors are ValueErrors too
            return None
        return found


@dataclass(slots=True, kw_only=True)
class Batch:
    """What is to be written: collected, or all that a daemon remembers."""

    rows: list[Row] = field(default_factory=list)
    jobs: dict[str, EndedJob] = field(default_factory=dict)
    histories: dict[str, bytes] = field(default_factory=dict)
    accounts: dict[str, bytes] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)  # ended jobs that had to go for others
    usage: Cut = field(default_factory=Cut)
    past: list[tuple[object, ...]] = field(default_factory=list)  # what a damaged file had of jobs that are over
    noted_ns: int = 0  # when every account was the newest there was

    @property
    def is_empty(self) -> bool:
        parts = (self.rows, self.jobs, self.histories, self.accounts, self.noted_ns, self.forgotten, self.past)
        return not any(parts) and self.usage.is_empty

    def followed_by(self, newer: Batch) -> Batch:
        accounts = {job: body for job, body in (self.accounts | newer.accounts).items() if job not in newer.jobs}
        return Batch(
            forgotten=(self.forgotten - newer.jobs.keys()) | newer.forgotten,
            usage=self.usage.followed_by(newer.usage),
            past=self.past + newer.past,
            rows=self.rows + newer.rows,
            jobs=self.jobs | newer.jobs,
            histories=self.histories | newer.histories,
            accounts=accounts,
            noted_ns=max(self.noted_ns, newer.noted_ns),
        )


@dataclass(slots=True, kw_only=True)
class Loaded:
    """What a file tells the next daemon."""

    jobs: list[EndedJob] = field(default_factory=list)  # oldest first
    histories: dict[str, bytes] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    usage: Cut = field(default_factory=Cut)  # until when it is booked; of a damaged file also all that was
    past: list[tuple[object, ...]] = field(default_factory=list)  # of a damaged file
    last_number: int = 0

    def as_batch(self) -> Batch:
        accounts = {job: msgspec.json.encode(account) for job, account in self.accounts.items()}
        jobs = {job.job: job for job in self.jobs}
        return Batch(jobs=jobs, histories=self.histories, accounts=accounts, usage=self.usage, past=self.past)


Life = tuple[float, int, str, str]  # when it began, on both clocks; the version, and what it was told


class JournalFile:
    def __init__(self, path: Path, *, life: Life, bytes_max: int, remember: Callable[[], Batch]) -> None:
        self._path = path
        self._life = life
        self._bytes_max = bytes_max
        self._remember = remember
        self._db: sqlite3.Connection | None = None
        self._inode = (0, 0)  # of the file that is open
        self._next_row = 1
        self._loose_rows = 0  # rows of the log that are in no block
        self._booked_rows = 0  # of usage and past jobs, written since it was looked whether they are too many …
        self._looked_s = 0.0  # … or old
        self.run = 0
        self.damage = ""  # that a file was set aside, as a sentence
        self.used_bytes = 0

    @property
    def is_open(self) -> bool:
        return self._db is not None

    def open(self) -> Loaded:
        """Open it, or begin it; sqlite3.Error or OSError if the disk refuses. A damaged one is set aside (J6)."""
        try:
            return self._open()
        except (sqlite3.Error, OSError) as error:
            if not self._is_damaged(error) and _code(error) != sqlite3.SQLITE_ERROR:  # other tables than ours
                raise
            saved = self._set_aside(error)
        found = self._open()
        known = saved.as_batch().followed_by(self._remember())
        if not known.is_empty:
            self.write(known)
        found.jobs = sorted(known.jobs.values(), key=lambda job: job.number)
        found.histories, found.accounts, found.usage = known.histories, saved.accounts, saved.usage
        found.last_number = max([saved.last_number, *(job.number for job in found.jobs)])
        return found

    def _open(self) -> Loaded:
        db = sqlite3.connect(self._path, timeout=1.0, check_same_thread=False)
        try:
            db.text_factory = lenient_text
            prepare(db)
            self._path.chmod(0o600)
            self._check(db)
            found = load(db)
            begin = "insert or ignore into runs (run, wall_s, mono_ns, version, config) values (?, ?, ?, ?, ?)"
            row = db.execute(begin, (self.run or None, *self._life))
            self.run = self.run or int(row.lastrowid or 0)
            last = "select max(coalesce((select max(rowid) from log), 0), coalesce((select max(row) from blocks), 0))"
            self._next_row = int(db.execute(last).fetchone()[0]) + 1
            self._loose_rows = int(db.execute("select count(*) from log").fetchone()[0])
            lost = [(job,) for (job,) in db.execute("select job from accounts") if job not in found.accounts]
            db.executemany("delete from accounts where job = ?", lost)
            _forget(db)
            db.commit()
        except BaseException:
            db.close()
            raise
        self._db = db
        facts = self._path.stat()
        self._inode = facts.st_dev, facts.st_ino
        return found

    def _check(self, db: sqlite3.Connection) -> None:
        """Look for damage, unless an older carpool let it grow so large that the look would take seconds."""
        if self._path.stat().st_size <= 4 * self._bytes_max:
            (said,) = db.execute("pragma quick_check(1)").fetchone()
            if said != "ok":
                error = sqlite3.DatabaseError(str(said).strip().replace("\n", "; "))
                error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                raise error

    # --- damage --------------------------------------------------------------------------------------------

    def _is_damaged(self, error: Exception) -> bool:
        return self._path.is_dir() or _code(error) in _DAMAGE

    def _set_aside(self, error: Exception) -> Loaded:
        """Give the file another name; returns what could be read of it."""
        self.close()
        saved = self.load_readable()
        stem = f"{self._path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}"
        target, count = self._path.with_name(stem), 1
        while target.exists():
            count += 1
            target = self._path.with_name(f"{stem}-{count}")
        for suffix in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                self._path.with_name(self._path.name + suffix).rename(target.with_name(target.name + suffix))
        why = "a directory is in its place" if target.is_dir() else str(error)
        self.damage = (
            f"the journal {self._path} was damaged ({why}): it is kept as {target.name}, and a new one was begun;"
            f" {len(saved.jobs)} ended jobs of it are in the new one"
        )
        self._forget_damaged()
        return saved

    def load_readable(self) -> Loaded:
        """What can be read of a file that is damaged or cannot be written, table by table."""
        found = Loaded()
        for how in ("mode=ro", "immutable=1"):  # the second where no lock can be taken
            with contextlib.suppress(sqlite3.Error):
                db = sqlite3.connect(f"{self._path.absolute().as_uri()}?{how}", uri=True, timeout=1.0)
                with contextlib.closing(db):
                    db.text_factory = lenient_text
                    found = load(db, is_damaged=True)
            if found.last_number:
                break
        return found

    def _forget_damaged(self) -> None:
        """Only the newest are kept, and no directory is removed."""
        found = [
            each
            for each in self._path.parent.glob(f"{self._path.name}.damaged-*")
            if each.is_file() and not each.name.endswith(("-wal", "-shm"))
        ]
        for old in sorted(found, key=lambda each: each.stat().st_mtime)[:-DAMAGED_KEPT]:
            for suffix in ("", "-wal", "-shm"):
                old.with_name(old.name + suffix).unlink(missing_ok=True)

    # --- writing -------------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """Write it whole or not at all; sqlite3.Error or OSError if the disk refuses."""
        if self._db is not None and not self._is_own():
            self._begin_anew()
        if self._db is None:
            self.open()
        try:
            self._write(batch)
        except sqlite3.Error as error:
            if not self._is_damaged(error):
                self.close()
                raise
            saved = self._set_aside(error)
            self._open()
            known = saved.as_batch().followed_by(self._remember())
            self._write(known.followed_by(batch))

    def _is_own(self) -> bool:
        """Whether what others find under its name is the file that is written."""
        try:
            facts = self._path.stat()
        except FileNotFoundError:
            return False
        return (facts.st_dev, facts.st_ino) == self._inode

    def _begin_anew(self) -> None:
        """Somebody removed the file, or put another in its place: write all that is remembered where it belongs."""
        self.close()
        self.open()
        known = self._remember()
        self._write(known)
        self.damage = self.damage or (
            f"the journal {self._path} was removed or replaced while the daemon ran: a new one was begun, with the"
            f" {len(known.jobs)} ended jobs that the daemon remembers; what it did before is lost"
        )

    def _write(self, batch: Batch) -> None:
        assert self._db is not None
        db, first = self._db, self._next_row
        db.executemany(LOG_ROW, ((first + index, self.run, *row) for index, row in enumerate(batch.rows)))
        db.executemany("insert or replace into accounts values (?, ?)", batch.accounts.items())
        if batch.jobs or batch.histories:  # seldom
            rows = [(job.job, job.number, job.wall_s, job.state, job.body) for job in batch.jobs.values()]
            db.executemany("insert or replace into jobs values (?, ?, ?, ?, ?)", rows)
            db.executemany("insert or replace into histories values (?, ?)", batch.histories.items())
            db.executemany("delete from accounts where job = ?", [(job,) for job in batch.jobs])
            db.executemany("delete from jobs where job = ?", [(job,) for job in batch.forgotten])
            short = [past.row_of(job.job, job.number, job.wall_s, job.state, job.body) for job in batch.jobs.values()]
            past.write(db, [*batch.past, *short])
            self._booked_rows += len(short)
        usage.write(db, batch.usage, ended=batch.jobs)
        if batch.noted_ns:
            db.execute("insert or replace into noted values (?, ?)", (self.run, batch.noted_ns))
        db.commit()
        self._next_row += len(batch.rows)
        self._loose_rows += len(batch.rows)
        self._booked_rows += len(batch.usage.rows)

    def tidy(self) -> bool:
        """One small step that keeps the file small; whether there is more to do (J7). The next write sees damage."""
        if self._db is None:
            return False
        try:
            return self._tidy(self._db)
        except sqlite3.Error:
            self.close()
            return False

    def _tidy(self, db: sqlite3.Connection) -> bool:
        if self._loose_rows >= BLOCK_ROWS:
            self._pack(db)
            return True
        if self._tidy_booked(db):
            return True
        (page,) = db.execute("pragma page_size").fetchone()
        (pages,) = db.execute("pragma page_count").fetchone()
        (spare,) = db.execute("pragma freelist_count").fetchone()
        self.used_bytes = (pages - spare) * page
        if self.used_bytes > self._bytes_max and self._prune(db):
            return True
        if spare * page > SPARE_BYTES and pages * page > self._bytes_max:
            db.execute("vacuum")
        return False

    def _tidy_booked(self, db: sqlite3.Connection) -> bool:
        """One step that keeps usage and past jobs within their parts of the bound (J15, J16)."""
        now_s = time.time()
        if self._booked_rows < BOOKED_ROWS and abs(now_s - self._looked_s) < LOOK_SECONDS:
            return False
        is_busy = usage.tidy(db, now_s=int(now_s), most=usage.rows_max(self._bytes_max))
        is_busy = is_busy or past.tidy(db, now_s=int(now_s), most=past.rows_max(self._bytes_max))
        db.commit()
        if not is_busy:
            self._booked_rows, self._looked_s = 0, now_s
        return is_busy

    def _pack(self, db: sqlite3.Connection) -> None:
        """Make one block of the oldest rows of one life."""
        asked = "select rowid, run, at_ns, kind, name, body from log order by rowid limit ?"
        found = db.execute(asked, (BLOCK_ROWS,)).fetchall()
        same = [row for row in found if row[1] == found[0][1]]
        rows = [_as_row(*row[2:]) for row in same]
        last = same[-1][0]
        db.execute("insert into blocks values (?, ?, ?)", (last, same[0][1], blocks.pack(rows)))
        db.execute("delete from log where rowid <= ? and run = ?", (last, same[0][1]))
        db.commit()
        self._loose_rows -= len(same)

    def _prune(self, db: sqlite3.Connection) -> bool:
        """Forget the oldest block, or where there is none, of ended jobs the oldest; False if nothing is left."""
        oldest = "delete from blocks where row = (select min(row) from blocks)"
        is_pruned = db.execute(oldest).rowcount > 0
        if not is_pruned:
            oldest = "delete from jobs where job in (select job from jobs order by number limit 50)"
            is_pruned = db.execute(oldest).rowcount > 0
        _forget(db)
        db.commit()
        return is_pruned

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def _as_row(at_ns: object, kind: object, name: object, body: object) -> Row:
    """A row of the log as it is packed; one that was damaged is for the reader to refuse."""
    said = body if isinstance(body, bytes) else str(body).encode()
    return at_ns if isinstance(at_ns, int) else 0, str(kind), str(name), said


def _code(error: Exception) -> int | None:
    """SQLite's own number for what went wrong; None if it was not SQLite."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else int(code) & 0xFF


def _forget(db: sqlite3.Connection) -> None:
    """Forget what is beyond the numbers that are kept of each table; the log and its blocks have their bytes."""
    beyond = "select job from jobs order by number desc limit -1 offset ?"
    db.execute(f"delete from jobs where job in ({beyond})", (JOBS_KEPT,))  # of a daemon that forgot the oldest first
    db.execute("delete from histories where rowid <= (select max(rowid) from histories) - ?", (HISTORIES_KEPT,))
    for table in ("runs", "noted"):
        db.execute(f"delete from {table} where run <= (select max(run) from runs) - ?", (RUNS_KEPT,))


def load(db: sqlite3.Connection, *, is_damaged: bool = False) -> Loaded:
    """What the next daemon must know; rows that cannot be read are left out, of a damaged file also whole tables."""
    found = Loaded()
    unread = contextlib.suppress(sqlite3.Error) if is_damaged else contextlib.nullcontext()
    with unread:
        for (number,) in db.execute("select number from jobs order by number desc limit 1"):
            found.last_number = number if isinstance(number, int) else 0
    with unread:
        newest = "select job, number, wall_s, state, body from jobs order by number desc limit ?"
        for row in db.execute(newest, (JOBS_KEPT,)):
            job = EndedJob.of_row(row)
            if job is not None:
                found.jobs.append(job)
    found.jobs.reverse()
    with unread:
        for fingerprint, body in db.execute("select fingerprint, body from histories order by rowid"):
            found.histories[str(fingerprint)] = body
    with unread:
        found.accounts = _load_accounts(db)
    with unread:
        found.usage = usage.load(db)
    if is_damaged:
        with unread:
            found.usage = found.usage.followed_by(usage.load_rows(db))
        with unread:
            found.past = past.load_rows(db)
    return found


def _load_accounts(db: sqlite3.Connection) -> dict[str, Account]:
    """Where the time of live jobs went, up to when the daemon that knew them last noted anything."""
    runs = db.execute("select mono_ns, at_ns from runs left join noted using (run) order by run desc").fetchall()
    found: dict[str, Account] = {}
    for job, body in db.execute("select job, body from accounts").fetchall():
        try:
            account = msgspec.json.decode(body, type=Account)
            # The newest life that began before: of this boot, for a live job's account is no older.
            noted = next((at_ns for mono_ns, at_ns in runs if mono_ns <= account.at_ns), None)
            account = carry_on(account, noted) if noted is not None else account
        except (msgspec.MsgspecError, TypeError):
            continue
        if abs(time.monotonic_ns() - account.at_ns) < ACCOUNT_KEPT_NS:  # else of another boot, or lost for long
            found[str(job)] = account
    return found
