"""Keeps the journal of one daemon's life, and what it learnt of programs and jobs that are over.

Rows are collected in memory and written together, so a hand-over never waits for the disk; a daemon killed with -9
loses at most the last FLUSH_SECONDS. If the disk refuses, scheduling goes on, the trouble is shown in
`carpool daemon status`, and writing is tried again later (J4).
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import msgspec

from carpool.core.node.effects import Effect
from carpool.core.node.events import Event
from carpool.core.node.lifecycle import UNNOTED_NS, carry_on
from carpool.core.node.model import Account, History
from carpool.core.node.words.views import JobPicture
from carpool.journal import facts
from carpool.journal.schema import EFFECT, EVENT, GAP, LOG_ROW, prepare
from carpool.units import SECOND

FLUSH_SECONDS = UNNOTED_NS / SECOND
PENDING_MAX = 100_000  # rows kept while the disk refuses; older ones are dropped first
ROWS_MAX = 5_000_000
PRUNE_EVERY = 10_000  # rows written between two looks for old ones
KEPT_MAX = 10_000  # ended jobs, and programs whose needs are remembered
RETRY_SECONDS = 30.0
_IS_NUMBER = re.compile(r"[0-9]{1,15}")


class Journal:
    def __init__(self, path: Path, *, version: str, config: str) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._pending: list[tuple[int, str, str, bytes]] = []  # rows of the log, without the run's number
        self._jobs: dict[str, tuple[object, ...]] = {}
        self._histories: dict[str, bytes] = {}
        self._accounts: dict[str, bytes] = {}
        self._noted_ns = 0  # when every account was the newest there was
        self._retry_at = 0.0
        self._flushed = 0  # rows since old ones were last forgotten
        self.trouble = ""
        self.run = 0
        self._begin = (time.time(), time.monotonic_ns(), version, config)
        self._open()

    def _open(self) -> None:
        try:
            db = sqlite3.connect(self._path, timeout=1.0, check_same_thread=False)
            prepare(db)
            self._path.chmod(0o600)
            if not self.run:
                row = db.execute(
                    "insert into runs (wall_s, mono_ns, version, config) values (?, ?, ?, ?)", self._begin
                )
                self.run = int(row.lastrowid or 0)
            self._prune(db)
            db.commit()
            self._db = db
            self.trouble = ""
        except (sqlite3.Error, OSError) as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.trouble = f"the journal {self._path} cannot be written: {error}"
        self._retry_at = time.monotonic() + RETRY_SECONDS
        if self._db is not None:
            self._db.close()
            self._db = None

    @property
    def is_dirty(self) -> bool:
        return bool(self._pending or self._jobs or self._histories)

    def note(self, now: int, event: Event, effects: list[Effect]) -> None:
        """Remember one call of the core (J1)."""
        encode = facts.to_bytes
        self._pending.append((now, EVENT, type(event).__name__, encode(event)))
        for effect in effects:
            self._pending.append((now, EFFECT, type(effect).__name__, encode(effect)))
        if len(self._pending) > PENDING_MAX:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Let rows go that the disk would not take, and say in their place how many they were (J3)."""
        dropped = self._pending[: PENDING_MAX // 10]
        missing = sum(int(body) if kind == GAP else 1 for _, kind, _, body in dropped)
        self._pending[: len(dropped)] = [(dropped[0][0], GAP, "", b"%d" % missing)]

    def note_job(self, number: int, picture: JobPicture, argv: list[str], *, refusals: str = "") -> None:
        body = json.dumps({**msgspec.to_builtins(picture), "argv": argv, "refusals": refusals})
        self._jobs[picture.id] = (picture.id, number, time.time(), picture.state, body)
        self._accounts.pop(picture.id, None)

    def fill_in(self, job: str, unknown: str, how: str, *, is_finished: bool) -> None:
        """Write how a job ended over the words that stood for it while nobody knew."""
        self.flush(rows_max=0)
        rows = [self._jobs[job][1:]] if job in self._jobs else None  # while the disk takes nothing
        rows = rows or self._read("select number, wall_s, state, body from jobs where job = ?", job)
        for number, wall_s, state, text in rows:
            body, ended = json.loads(str(text)), "finished" if is_finished else state
            reason = body["reason"].replace(unknown, how, 1).removeprefix(state)
            self._jobs[job] = (
                job,
                number,
                wall_s,
                ended,
                json.dumps({**body, "state": ended, "reason": ended + reason}),
            )
        self.flush(rows_max=0)

    def note_history(self, fingerprint: str, history: History) -> None:
        self._histories[fingerprint] = msgspec.json.encode(history)

    def note_accounts(self, changed: dict[str, Account], *, now: int) -> None:
        """Keep where the time of live jobs went, until they end; all others do what they did when last noted."""
        self._accounts |= {job: msgspec.json.encode(account) for job, account in changed.items()}
        self._noted_ns = now

    def flush(self, *, rows_max: int | None = None) -> None:
        """Write what was collected, at most so many rows of the log; called by the daemon's timer and at its end."""
        if self._db is None:
            if time.monotonic() < self._retry_at:
                return
            self._open()
        if self._db is None:
            return
        rows = self._pending[:rows_max]
        try:
            self._db.executemany(LOG_ROW, [(self.run, *row) for row in rows])
            self._db.executemany("insert or replace into accounts values (?, ?)", self._accounts.items())
            if self._jobs or self._histories:  # seldom
                self._db.executemany("insert or replace into jobs values (?, ?, ?, ?, ?)", self._jobs.values())
                self._db.executemany("insert or replace into histories values (?, ?)", self._histories.items())
                self._db.executemany("delete from accounts where job = ?", [(job,) for job in self._jobs])
            self._db.execute("insert or replace into noted values (?, ?)", (self.run, self._noted_ns))
            self._flushed += len(rows)
            if self._flushed >= PRUNE_EVERY:
                self._flushed = 0
                self._prune(self._db)
            self._db.commit()
        except sqlite3.Error as error:
            self._failed(error)
            return
        del self._pending[: len(rows)]
        self._jobs.clear()
        self._histories.clear()
        self._accounts.clear()

    def _prune(self, db: sqlite3.Connection) -> None:
        """Forget the oldest rows, more than came since the last time but few enough that no hand-over waits long."""
        db.execute(
            "delete from log where rowid <= (select max(rowid) from log) - ?"
            " and rowid < (select min(rowid) from log) + ?",
            (ROWS_MAX, 2 * PRUNE_EVERY),
        )
        db.execute("delete from jobs where number <= (select max(number) from jobs) - ?", (KEPT_MAX,))
        db.execute("delete from histories where rowid <= (select max(rowid) from histories) - ?", (KEPT_MAX,))

    def histories(self) -> dict[str, History]:
        """What earlier programs were measured to need."""
        found = {}
        for fingerprint, body in self._read("select fingerprint, body from histories"):
            try:
                found[fingerprint] = msgspec.json.decode(body, type=History)
            except msgspec.MsgspecError:
                continue
        return found

    def account_of(self, job: str) -> Account | None:
        """Where the time of a job went that an earlier daemon knew, up to when that daemon last noted anything."""
        rows = self._read("select body from accounts where job = ?", job)
        try:
            account = msgspec.json.decode(rows[0][0], type=Account) if rows else None
        except msgspec.MsgspecError:
            account = None
        if account is None:
            return None
        its_run = "select max(run) from runs where mono_ns <= ?"  # of this boot: a live job's account is no older
        noted = self._read(f"select at_ns from noted where run = ({its_run})", account.at_ns)
        return carry_on(account, noted[0][0]) if noted else account

    def last_number(self) -> int:
        """The highest job number ever given out."""
        rows = self._read("select coalesce(max(number), 0) from jobs")
        return int(rows[0][0]) if rows else 0

    def ended_jobs(self, limit: int) -> list[dict[str, object]]:
        """The newest jobs that are over, newest last."""
        rows = self._read("select body from jobs order by number desc limit ?", limit)
        return [json.loads(body) for (body,) in reversed(rows)]

    def find_ended(self, wanted: str) -> dict[str, object] | None:
        """The job of this id, the newest of this name, or the one whose id ends in this number, if it is over."""
        found: dict[str, object] | None = None
        for (body,) in self._read(
            "select body from jobs where job = ?1 or json_extract(body, '$.name') = ?1 or job like ?2"
            " order by job = ?1 desc, job like ?2, number desc limit 1",
            wanted,
            f"%-{wanted}" if _IS_NUMBER.fullmatch(wanted) else None,
        ):
            found = json.loads(body)
        return found

    def _read(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of an answer; none while the file cannot be read."""
        if self._db is None:
            return []
        try:
            return self._db.execute(question, values).fetchall()
        except sqlite3.Error as error:
            self._failed(error)
            return []

    def close(self) -> None:
        self.flush()
        if self._db is not None:
            self._db.close()
            self._db = None
