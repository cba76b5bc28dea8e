"""A journal, read back: the lives of a daemon, and what its core was told and ordered in each."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from carpool.core.node.effects import Effect
from carpool.core.node.events import DeviceAdded, Event, NodeConfigured
from carpool.errors import UsageError
from carpool.journal import facts
from carpool.journal.schema import EVENT, GAP, open_to_read

JOBS_COME = ("JobSubmitted", "JobAdopted")


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
        try:
            first = db.execute("select run, min(rowid) from log group by run order by run").fetchall()
            with_jobs = {run for (run,) in db.execute("select distinct run from log where name in (?, ?)", JOBS_COME)}
            return [
                Life(run=run, has_jobs=run in with_jobs, trouble=_trouble(db, path, run, row)) for run, row in first
            ]
        except sqlite3.Error as error:
            raise UsageError(f"{path} cannot be read as a journal: {error}") from error


def _trouble(db: sqlite3.Connection, path: Path, run: int, row: int) -> str:
    kind, name = db.execute("select kind, name from log where rowid = ?", (row,)).fetchone()
    if name == NodeConfigured.__name__:
        return ""
    if (kind, name) == (EVENT, DeviceAdded.__name__):
        return f"{path}: run {run} is of an older carpool and lacks its configuration: it cannot be replayed"
    return f"{path} row {row}: the beginning of run {run} is not there"


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
        try:
            version = db.execute("select version from runs where run = ?", (life.run,)).fetchone()
            asked = "select rowid, at_ns, kind, name, body from log where run = ? order by rowid"
            calls, gap = _calls(path, db.execute(asked, (life.run,)))
        except sqlite3.Error as error:
            raise UsageError(f"{path} cannot be read as a journal: {error}") from error
    configured = calls[0].event
    assert isinstance(configured, NodeConfigured)  # or the life had had trouble
    said = str(version[0]) if version is not None else ""
    return Recording(source=str(path), run=life.run, version=said, configured=configured, calls=calls, gap=gap)


def _calls(path: Path, rows: Iterator[tuple[int, int, str, str, bytes]]) -> tuple[list[Call], int]:
    """The calls up to the first gap, and how many rows are missing there."""
    calls: list[Call] = []
    for row, at_ns, kind, name, body in rows:
        try:
            if kind == GAP:
                return calls, int(body)
            if kind == EVENT:
                calls.append(Call(row=row, at_ns=at_ns, event=facts.event_from(name, body), effects=[]))
            elif not calls:
                raise UsageError("an effect without its event")
            else:
                calls[-1].effects.append(facts.effect_from(name, body))
        except (UsageError, ValueError, TypeError) as error:
            raise UsageError(f"{path} row {row}: {error}") from error
    return calls, 0


def read_facts(path: Path, *names: str, all_runs: bool = False) -> list[tuple[int, int, Event | Effect]]:
    """The events and effects of these names, each with its run and time; of the newest life, or of all."""
    marks = ", ".join("?" * len(names))
    runs = "" if all_runs else "run = (select max(run) from runs) and"
    asked = f"select rowid, run, at_ns, kind, name, body from log where {runs} name in ({marks}) order by rowid"
    with open_to_read(path) as db:
        try:
            rows = db.execute(asked, names).fetchall()
        except sqlite3.Error as error:
            raise UsageError(f"{path} cannot be read as a journal: {error}") from error
    found: list[tuple[int, int, Event | Effect]] = []
    for row, run, at_ns, kind, name, body in rows:
        try:
            read_one = facts.event_from if kind == EVENT else facts.effect_from
            found.append((run, at_ns, read_one(name, body)))
        except UsageError as error:
            raise UsageError(f"{path} row {row}: {error}") from error
    return found
