"""The file of a log: lines of JSON under xz.

The first line of a file names the fields of every type in it: {"fields": {"node": {"LeaseAsked": ["job", ...]}}}.
A session begins with a line that says how its scheduler is made: {"scheduler": "node", "policy": "fair", ...}.
A record is one call of a scheduler: [after, event, effects, wakeup].
  after    nanoseconds since the record before
  event    [name, field, ...]
  effects  [[name, field, ...], ...]
  wakeup   when the scheduler wants a Tick, from now on; null: never; left out: when it wanted it before
A look is what was to be seen after the record above it: {"sum": ..., "reasons": {job: sentence}}; a sentence that was
the same at the look before is left out, and one that is no longer there is empty.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.golden.under_test import EFFECTS, EVENTS, Plain, fields_of

DIRECTORY = Path(__file__).parent / "logs"
SUFFIX = ".jsonl.xz"
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]
Fields = dict[str, dict[str, tuple[str, ...]]]


@dataclass(kw_only=True)
class Session:
    """One scheduler's life."""

    said: dict[str, Plain]  # how it is made, and where it was recorded
    lines: list[bytes] = field(default_factory=list)  # its records and looks
    events: int = 0
    features: set[tuple[str, ...]] = field(default_factory=set)  # what is special about it; not written


def known_fields() -> Fields:
    """The fields of every type as they are now."""
    found = {kind: {name: fields_of(each) for name, each in types.items()} for kind, types in EVENTS.items()}
    for kind, types in EFFECTS.items():
        found[kind] |= {name: fields_of(each) for name, each in types.items()}
    return found


def write(name: str, sessions: Iterable[Session]) -> Path:
    path = DIRECTORY / f"{name}{SUFFIX}"
    text = [msgspec.json.encode({"fields": known_fields()})]
    for session in sessions:
        text.append(msgspec.json.encode(session.said))
        text += session.lines
    packed = lzma.compress(b"\n".join(text), format=lzma.FORMAT_XZ, filters=_FILTERS)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(packed)
    return path


def read(path: Path) -> tuple[Fields, Iterator[Session]]:
    lines = iter(lzma.decompress(path.read_bytes()).split(b"\n"))
    fields: Fields = msgspec.json.decode(next(lines))["fields"]
    return fields, _sessions(lines)


def _sessions(lines: Iterator[bytes]) -> Iterator[Session]:
    session: Session | None = None
    for line in lines:
        if line.startswith(b'{"scheduler"'):
            if session is not None:
                yield session
            session = Session(said=msgspec.json.decode(line))
        else:
            assert session is not None, "a log begins with a session"
            session.lines.append(line)
            session.events += line.startswith(b"[")
    if session is not None:
        yield session


def names() -> list[str]:
    """All logs there are."""
    return sorted(path.name.removesuffix(SUFFIX) for path in DIRECTORY.glob(f"*{SUFFIX}"))


def path_of(name: str) -> Path:
    return DIRECTORY / f"{name}{SUFFIX}"
