"""The daemon's side of its journal: it collects what is to be written, and remembers what may be asked.

What is collected is handed to a thread of its own, so no hand-over waits for the disk (J4). A daemon killed with -9
loses at most the last FLUSH_SECONDS. What was handed over and could not be written waits in memory, PENDING_MAX rows
at most. Beyond that the oldest rows are dropped and counted: a row says so in their place (J3), and so does
`carpool daemon status`. All questions are answered from memory: the file is read when it is opened, never later.
"""

from __future__ import annotations

import heapq
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from carpool.calls import cut_arguments
from carpool.core.kernel.ids import TenantId
from carpool.core.node.effects import Effect
from carpool.core.node.events import Event
from carpool.core.node.lifecycle import UNNOTED_NS
from carpool.core.node.model import Account, History
from carpool.core.node.words.views import JobPicture
from carpool.journal import BYTES_MAX, disk, facts
from carpool.journal.disk import HISTORIES_KEPT, Batch, EndedJob, JournalFile, Loaded
from carpool.journal.metering import Cut, Meter
from carpool.journal.past import EndedJobs
from carpool.journal.schema import EFFECT, EVENT, GAP
from carpool.units import SECOND

FLUSH_SECONDS = UNNOTED_NS / SECOND
PENDING_MAX = 100_000  # rows that wait for the disk; two busy jobs need 40 minutes for them
BOOKED_MAX = 20_000  # rows of usage that wait for the disk; beyond that they are kept by the user only
RETRY_SECONDS = 30.0
HANG_SECONDS = 5.0  # a write that takes longer is shown
CLOSE_SECONDS = 5.0  # a daemon that ends waits so long for the disk


class Journal:
    def __init__(
        self,
        path: Path,
        *,
        version: str,
        config: str,
        bytes_max: int = BYTES_MAX,
        report: Callable[[str], object] = lambda said: None,
    ) -> None:
        self._path = path
        self._report = report
        self._changed = threading.Condition()  # guards all that follows; nobody touches the disk under it
        self._collected = Batch()
        self._asked = self._tried = 0  # how often writing was asked for, and up to which of these it was tried
        self._then: list[tuple[int, Callable[[str], object]]] = []  # who wants to know when that was tried
        self._busy_since: float | None = None
        self._busy_rows = 0
        self._retry_at: float | None = None
        self._is_closing = False
        self._trouble = self._reported = self._meter_trouble = ""
        self._meter = Meter()
        self.dropped_rows = 0
        self.bytes_max = bytes_max
        life = (time.time(), time.monotonic_ns(), version, config)
        self._file = JournalFile(path, life=life, bytes_max=bytes_max, remember=self._all_remembered)
        self._jobs: dict[str, EndedJob] = {}
        self._histories: dict[str, bytes] = {}
        self._accounts: dict[str, bytes] = {}  # of jobs that this daemon knows
        loaded = self._open()
        self._ended = EndedJobs(disk.JOBS_KEPT)
        for job in loaded.jobs:
            self._remember(job)
        self._meter.take_up(loaded.usage)
        self._histories |= loaded.histories
        self._inherited, self._last_number = loaded.accounts, loaded.last_number
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    def _open(self) -> Loaded:
        """The only time that the daemon itself waits for the disk: it serves nobody yet."""
        try:
            loaded = self._file.open()
            self._say()
        except (sqlite3.Error, OSError) as error:
            self._failed(error, to="opened for writing")
            loaded = self._file.load_readable()
        return loaded

    # --- what is collected -------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        return self._path

    @property
    def is_dirty(self) -> bool:
        """Whether something was collected that nobody asked to be written yet."""
        return self._asked == self._tried and not self._collected.is_empty

    def note(self, now: int, event: Event, effects: list[Effect]) -> None:
        """Remember one call of the core (J1)."""
        encode = facts.to_bytes
        rows = [(now, EVENT, type(event).__name__, encode(event))]
        rows += [(now, EFFECT, type(effect).__name__, encode(effect)) for effect in effects]
        with self._changed:
            self._collected.rows += rows
            if len(self._collected.rows) > PENDING_MAX:
                self._drop_oldest()
        if not self._meter_trouble:
            try:
                self._meter.note(now, event, effects)
            except Exception as error:  # noqa: BLE001 - a bug in what only counts must not cost the journal
                self._stop_metering(error)

    def _stop_metering(self, error: Exception) -> None:
        self._meter_trouble = f"usage is not counted any more since a bug in carpool: {type(error).__name__}: {error}"
        self._report(self._meter_trouble)

    def _drop_oldest(self) -> None:
        """Let rows go that the disk would not take, and say in their place how many they were (J3)."""
        rows = self._collected.rows
        dropped = rows[: len(rows) - PENDING_MAX + PENDING_MAX // 10]
        new = sum(kind != GAP for _, kind, _, _ in dropped)
        missing = new + sum(int(body) for _, kind, _, body in dropped if kind == GAP)
        rows[: len(dropped)] = [(dropped[0][0], GAP, "", b"%d" % missing)]
        self.dropped_rows += new

    def note_job(
        self,
        number: int,
        picture: JobPicture,
        argv: list[str],
        *,
        uid: int | None = None,
        name: str = "",
        refusals: str = "",
        start: str = "",
        container: str = "",
    ) -> None:
        """Keep a job that is over, and write it at once: its runner was told that it ended."""
        said = {**msgspec.to_builtins(picture), "argv": cut_arguments(argv), "uid": uid}
        said |= {"refusals": refusals, "start": start, "name": name or picture.name, "container": container}
        self._meter.end_account(picture, now=time.monotonic_ns())
        self._keep(
            EndedJob(
                job=picture.id,
                number=number,
                wall_s=time.time(),
                state=picture.state,
                body=json.dumps(said),
                name=name or picture.name,
                owner=picture.user or picture.tenant,
                uid=uid,
            )
        )
        self.flush()

    def _remember(self, job: EndedJob) -> None:
        self._jobs[job.job] = job
        gone = self._ended.add(job.job, job.owner)
        if gone is not None:
            del self._jobs[gone]
            self._collected.forgotten.add(gone)

    def _keep(self, job: EndedJob) -> None:
        with self._changed:
            self._collected.jobs[job.job] = job
            self._remember(job)
            self._last_number = max(self._last_number, job.number)
            self._accounts.pop(job.job, None)
            self._collected.accounts.pop(job.job, None)

    def fill_in(self, job: str, unknown: str, how: str, *, is_finished: bool) -> None:
        """Write how a job ended over the words that stood for it while nobody knew."""
        known = self._jobs.get(job)
        if known is None:
            return
        body, ended = json.loads(known.body), "finished" if is_finished else known.state
        reason = body["reason"].replace(unknown, how, 1).removeprefix(known.state)
        text = json.dumps({**body, "state": ended, "reason": ended + reason})
        self._keep(replace(known, state=ended, body=text))
        self.flush()

    def note_history(self, fingerprint: str, history: History) -> None:
        body = msgspec.json.encode(history)
        with self._changed:
            self._histories[fingerprint] = self._collected.histories[fingerprint] = body
            if len(self._histories) > HISTORIES_KEPT:
                del self._histories[next(iter(self._histories))]

    def note_accounts(
        self, changed: Mapping[str, Account], *, now: int, lent_ns: Mapping[TenantId, int] | None = None
    ) -> None:
        """Keep where the time of live jobs went, until they end; all others do what they did when last noted."""
        bodies = {job: msgspec.json.encode(account) for job, account in changed.items()}
        cut = self._cut(changed, lent_ns or {}, now=now)
        with self._changed:
            self._accounts |= bodies
            self._collected.accounts |= bodies
            self._collected.usage = self._collected.usage.followed_by(cut)
            self._collected.noted_ns = now

    def _cut(self, changed: Mapping[str, Account], lent_ns: Mapping[TenantId, int], *, now: int) -> Cut:
        """What was booked since the last note (J11)."""
        if self._meter_trouble:
            return Cut()
        try:
            self._meter.note_lent(lent_ns)
            return self._meter.cut(now, changed)
        except Exception as error:  # noqa: BLE001 - as in note()
            self._stop_metering(error)
            return Cut()

    def _all_remembered(self) -> Batch:
        with self._changed:
            return Batch(jobs=dict(self._jobs), histories=dict(self._histories), accounts=dict(self._accounts))

    # --- writing -----------------------------------------------------------------------------------------

    def flush(self, then: Callable[[str], object] | None = None) -> None:
        """Have what was collected written, soon and elsewhere. `then` is called by the thread when that was tried,
        with the trouble there was."""
        with self._changed:
            self._asked += 1
            if then is not None:
                self._then.append((self._asked, then))
                self._retry_at = None  # somebody waits for it
            self._changed.notify_all()

    def write_out(self, *, seconds: float = CLOSE_SECONDS) -> bool:
        """Wait until all of it is in the file; False if it is not, after so long or because the disk refused."""
        return self._wait_tried(seconds) and not self._trouble

    def _wait_tried(self, seconds: float) -> bool:
        tried = threading.Event()
        self.flush(lambda _: tried.set())
        return tried.wait(seconds)

    def _work(self) -> None:
        """The thread: the only one that touches the file from now on."""
        while (batch := self._next_batch()) is not None:
            try:
                self._file.write(batch)
                self._trouble, self._retry_at = "", None
            except (sqlite3.Error, OSError) as error:
                self._failed(error, to="written")
                self._put_back(batch)
            self._say()
            self._tell_those_who_wait()
            while not self._trouble and not self._is_closing and self._file.tidy():
                time.sleep(0)  # whoever waits for the interpreter goes first
        self._file.close()

    def _next_batch(self) -> Batch | None:
        """What is to be written next, once somebody asks for it or it is to be tried again; None at the end."""
        with self._changed:
            self._busy_since = None
            while not self._is_due():
                if self._is_closing:
                    return None
                again_in = None if self._retry_at is None else max(0.0, self._retry_at - time.monotonic())
                self._changed.wait(again_in)
            self._tried = self._asked
            self._busy_since, self._busy_rows = time.monotonic(), len(self._collected.rows)
            batch, self._collected = self._collected, Batch()
            return batch

    def _is_due(self) -> bool:
        if self._retry_at is not None:
            return time.monotonic() >= self._retry_at
        return self._asked > self._tried

    def _put_back(self, batch: Batch) -> None:
        with self._changed:
            self._collected = batch.followed_by(self._collected)
            if len(self._collected.usage.rows) > BOOKED_MAX:
                self._collected.usage = self._collected.usage.without_jobs()
            if len(self._collected.rows) > PENDING_MAX:
                self._drop_oldest()

    def _tell_those_who_wait(self) -> None:
        with self._changed:
            told = [then for asked, then in self._then if asked <= self._tried]
            self._then = [(asked, then) for asked, then in self._then if asked > self._tried]
        for then in told:
            then(self._trouble)

    def close(self) -> None:
        """Write what is left, if the disk takes it in time, and end the thread."""
        with self._changed:
            if self._is_closing:
                return
        was_tried = self._wait_tried(CLOSE_SECONDS)
        with self._changed:
            self._is_closing = True
            self._retry_at = None
            self._changed.notify_all()
        if was_tried:  # else the disk hangs, and the thread with it
            self._thread.join(CLOSE_SECONDS)

    # --- trouble -----------------------------------------------------------------------------------------

    def _failed(self, error: Exception, *, to: str) -> None:
        self._trouble = f"the journal {self._path} cannot be {to}: {error}"
        self._retry_at = time.monotonic() + RETRY_SECONDS

    def _say(self) -> None:
        """Report trouble that is new."""
        said = self._trouble or self._file.damage
        if said and said != self._reported:
            self._report(said)
        self._reported = said

    @property
    def trouble(self) -> str:
        """What is wrong with the file, in sentences; empty if nothing is."""
        found = [self._trouble or self._hang(), self._file.damage, self._meter_trouble]
        if self.dropped_rows:
            found.append(f"the journal lacks {self.dropped_rows} rows that waited for the disk for too long")
        return "; ".join(said for said in found if said)

    def _hang(self) -> str:
        since = self._busy_since
        hangs_s = time.monotonic() - since if since is not None else 0.0
        if hangs_s < HANG_SECONDS:
            return ""
        return (
            f"the journal {self._path} hangs: its disk has not answered for {hangs_s:.0f} s; turns go on, and"
            f" {self.waiting_rows} rows wait (at most {PENDING_MAX}, then the oldest are dropped)"
        )

    @property
    def waiting_rows(self) -> int:
        """Rows that are not in the file yet."""
        return len(self._collected.rows) + (self._busy_rows if self._busy_since is not None else 0)

    @property
    def used_bytes(self) -> int:
        return self._file.used_bytes

    # --- what is remembered ------------------------------------------------------------------------------

    def histories(self) -> dict[str, History]:
        """What earlier programs were measured to need."""
        found = {}
        for fingerprint, body in self._histories.items():
            try:
                found[fingerprint] = msgspec.json.decode(body, type=History)
            except (msgspec.MsgspecError, TypeError):
                continue
        return found

    def account_of(self, job: str) -> Account | None:
        """Where the time of a job went that an earlier daemon knew, up to when that daemon last noted anything."""
        return self._inherited.get(job)

    def last_number(self) -> int:
        """The highest number of a job that is over."""
        return self._last_number

    def ended_jobs(self, limit: int) -> list[dict[str, object]]:
        """The newest jobs that are over, newest last."""
        newest = heapq.nlargest(limit, self._jobs.values(), key=lambda job: job.number)
        return [json.loads(job.body) for job in reversed(newest)]

    def find_ended(
        self, wanted: str, *, uid: int | None = None, knows_names: bool = True
    ) -> dict[str, object] | None:
        """The job of this id, the newest of this name, or the one whose id ends in this number, if it is over. Of a
        name this user's own come first, or alone."""
        known = self._jobs.get(wanted)
        found = [known] if known is not None else [job for job in self._jobs.values() if job.name == wanted]
        if known is None and uid is not None:
            own = [job for job in found if job.uid == uid]
            found = own if own or not knows_names else found
        if not found and wanted.isdecimal():
            found = [job for job in self._jobs.values() if job.job.endswith(f"-{wanted}")]
        if not found:
            return None
        shown: dict[str, object] = json.loads(max(found, key=lambda job: job.number).body)
        return shown
