"""The tables of a journal, and their form's number."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from carpool.errors import UsageError
from carpool.journal import past, usage

FORM = 3  # 0: before lives began with their configuration; 1: before old rows were packed; 2: before usage was kept
_TABLES = """
create table if not exists runs (run integer primary key, wall_s real, mono_ns integer, version text, config text);
create table if not exists log (run integer, at_ns integer, kind text, name text, body blob);
create table if not exists blocks (row integer primary key, run integer, body blob);
create table if not exists jobs (job text primary key, number integer, wall_s real, state text, body text);
create table if not exists histories (fingerprint text primary key, body blob);
create table if not exists accounts (job text primary key, body blob);
create table if not exists noted (run integer primary key, at_ns integer);
"""
PAST_FORM = 3  # from this form on ended jobs have a short row that is kept for long, and usage is booked
EVENT, EFFECT, GAP = "event", "effect", "gap"  # kinds of rows in the log
LOG_ROW = "insert into log (rowid, run, at_ns, kind, name, body) values (?, ?, ?, ?, ?, ?)"
WAL_BYTES_MAX = 4 << 20  # what the file beside it keeps once it was copied over


def form_of(db: sqlite3.Connection) -> int:
    return int(db.execute("pragma user_version").fetchone()[0])


def prepare(db: sqlite3.Connection) -> None:
    """Make the tables where there are none yet; a file of a newer form is left alone, and that is an error (J5)."""
    form = form_of(db)
    if form > FORM:
        raise sqlite3.DatabaseError(f"a newer carpool wrote it (form {form}, not {FORM}); move it away, or upgrade")
    db.execute("pragma journal_mode=wal")
    db.execute("pragma synchronous=normal")  # with a WAL the file is whole after a power failure
    db.execute(f"pragma journal_size_limit={WAL_BYTES_MAX}")
    db.executescript(_TABLES + usage.TABLES + past.TABLES)
    if form < PAST_FORM:
        past.take_over(db)
        db.commit()
    db.execute(f"pragma user_version = {FORM}")


def lenient_text(found: bytes) -> str:
    """Text as far as it is text: a flipped bit must not hide a whole table."""
    return found.decode(errors="replace")


def open_to_read(path: Path) -> closing[sqlite3.Connection]:
    """The file as it is now, whatever its daemon does meanwhile; UsageError if this carpool cannot read it."""
    if not path.is_file():
        raise UsageError(f"there is no journal {path}; a daemon writes one when it runs")
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0, isolation_level=None)
        try:
            db.text_factory = lenient_text
            db.execute("begin")  # until it is closed, all that is read is of one moment
            form = form_of(db)
        except sqlite3.Error:
            db.close()
            raise
    except sqlite3.Error as error:
        raise UsageError(f"{path} cannot be read as a journal: {error}") from error
    if form > FORM:
        db.close()
        raise UsageError(f"{path} was written by a newer carpool (form {form}, this one knows {FORM}); upgrade first")
    return closing(db)
