"""A journal, read back: the lives of a daemon, and what its core was told and ordered in each."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from carpool.core.node.effects import Effect
from carpool.core.node.events import DeviceAdded, Event, NodeConfigured
from carpool.errors import UsageError
from carpool.journal import blocks, facts
from carpool.journal.schema import EVENT, GAP, form_of, open_to_read

NumberedRow = tuple[int, int, int, str, str, bytes]  # its number, the life, when, kind, name, body
JOBS_COME = ("JobSubmitted", "JobAdopted")
BLOCKS_FORM = 2  # from this form on old rows are packed


@dataclass(slots=True, kw_only=True)
class Call:
    """One call of the core: what it was told, when, and what it ordered."""

    row: int
    at_ns: int
    event: Event
    effects: list[Effect]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One life of a daemon."""

    source: str
    run: int
    version: str  # of the carpool that wrote it
    configured: NodeConfigured
    calls: list[Call]
    gap: int = 0  # so many rows are missing after the last of these calls (J3)

    @property
    def policy(self) -> str:
        return self.configured.policy

    @property
    def devices(self) -> tuple[tuple[str, int], ...]:
        found = [call.event for call in self.calls if isinstance(call.event, DeviceAdded)]
        return tuple((str(event.device), event.capacity_bytes) for event in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What is known of a daemon's life before its calls are read."""

    run: int
    has_jobs: bool
    trouble: str = ""  # why it cannot be replayed, as a sentence


def lives(path: Path) -> list[Life]:
    """All lives that have rows, oldest first."""
    with open_to_read(path) as db:
        return _lives(db, path)


def _lives(db: sqlite3.Connection, path: Path) -> list[Life]:
    with_jobs: set[int] = set()
    first: dict[int, NumberedRow] = {}
    for row in _rows(db, path):
        first.setdefault(row[1], row)
        if row[4] in JOBS_COME:
            with_jobs.add(row[1])
    return [
        Life(run=run, has_jobs=run in with_jobs, trouble=_trouble(path, row)) for run, row in sorted(first.items())
    ]


def _trouble(path: Path, first: NumberedRow) -> str:
    number, run, _, kind, name, _ = first
    if name == NodeConfigured.__name__:
        return ""
    if (kind, name) == (EVENT, DeviceAdded.__name__):
        return f"{path}: run {run} is of an older carpool and lacks its configuration: it cannot be replayed"
    return f"{path} row {number}: the beginning of run {run} is not there"


def _rows(db: sqlite3.Connection, path: Path, *, run: int | None = None) -> Iterator[NumberedRow]:
    """The rows of all lives or of one, oldest first."""
    where, values = ("where run = ?", (run,)) if run is not None else ("", ())
    try:
        if form_of(db) >= BLOCKS_FORM:
            for last, of_run, body in db.execute(f"select row, run, body from blocks {where} order by row", values):
                yield from _unpacked(path, last, of_run, body)
        asked = f"select rowid, run, at_ns, kind, name, body from log {where} order by rowid"
        yield from iter(db.execute(asked, values).fetchone, None)  # a cursor would be closed after its file
    except sqlite3.Error as error:
        raise UsageError(f"{path} cannot be read as a journal: {error}") from error


def _unpacked(path: Path, last: int, run: int, body: bytes) -> Iterator[NumberedRow]:
    """The rows of a block, which is numbered as the last of them."""
    try:
        rows = list(blocks.unpack(body))
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} row {last}: {error}") from error
    for number, row in enumerate(rows, last - len(rows) + 1):
        yield (number, run, *row)


def choose(found: Sequence[Life], path: Path) -> Life:
    """The newest life that had a job, else the newest."""
    if not found:
        raise UsageError(f"{path} row 1: the journal is empty")
    return max(found, key=lambda life: (life.has_jobs, life.run))


def read(path: Path, *, run: int | None = None) -> Recording:
    """One life: the newest that had a job, or the one asked for; UsageError if it is not whole from its beginning."""
    found = lives(path)
    life = choose(found, path) if run is None else next((each for each in found if each.run == run), None)
    if life is None:
        raise UsageError(f"{path} has no run {run}")
    if life.trouble:
        raise UsageError(life.trouble)
    with open_to_read(path) as db:
        calls, gap = _calls(path, _rows(db, path, run=life.run))
        try:
            version = db.execute("select version from runs where run = ?", (life.run,)).fetchone()
        except sqlite3.Error as error:
            raise UsageError(f"{path} cannot be read as a journal: {error}") from error
    if not calls or not isinstance(calls[0].event, NodeConfigured):
        raise UsageError(f"{path}: the beginning of run {life.run} was forgotten while it was read; read it again")
    configured = calls[0].event
    said = str(version[0]) if version is not None else ""
    return Recording(source=str(path), run=life.run, version=said, configured=configured, calls=calls, gap=gap)


def _calls(path: Path, rows: Iterator[NumberedRow]) -> tuple[list[Call], int]:
    """The calls up to the first gap, and how many rows are missing there."""
    calls: list[Call] = []
    for row, _, at_ns, kind, name, body in rows:
        try:
            if kind == GAP:
                return calls, int(body)
            if kind == EVENT:
                calls.append(Call(row=row, at_ns=_time(at_ns), event=facts.event_from(name, body), effects=[]))
            elif not calls:
                raise UsageError("an effect without its event")
            else:
                calls[-1].effects.append(facts.effect_from(name, body))
        except (UsageError, ValueError, TypeError) as error:
            raise UsageError(f"{path} row {row}: {error}") from error
    return calls, 0


def _time(at_ns: object) -> int:
    if not isinstance(at_ns, int):
        raise UsageError("its time cannot be read")
    return at_ns


def read_facts(path: Path, *names: str, all_runs: bool = False) -> list[tuple[int, int, Event | Effect]]:
    """The events and effects of these names, each with its run and time; of the newest life, or of all."""
    found: list[tuple[int, int, Event | Effect]] = []
    with open_to_read(path) as db:
        try:
            (newest,) = db.execute("select max(run) from runs").fetchone()
        except sqlite3.Error as error:
            raise UsageError(f"{path} cannot be read as a journal: {error}") from error
        for row, of_run, at_ns, kind, name, body in _rows(db, path, run=None if all_runs else newest or 0):
            if name not in names:
                continue
            try:
                read_one = facts.event_from if kind == EVENT else facts.effect_from
                found.append((of_run, _time(at_ns), read_one(name, body)))
            except (UsageError, ValueError, TypeError) as error:
                raise UsageError(f"{path} row {row}: {error}") from error
    return found
