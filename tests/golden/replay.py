"""Replays golden logs: the same events to new schedulers, and every answer compared with the one in the log.

    python -m tests.golden.replay [LOG ...] [--all]

says of each log how many records were compared and shows the first difference; with --all the first of each session.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from difflib import unified_diff
from typing import Any

import msgspec

from carpool.errors import CarpoolError
from tests.golden import logs, under_test
from tests.golden.changes import Answers, as_in_log, meant, meant_picture, meant_words
from tests.golden.under_test import RAISED, Plain, fact_as_plain

LINES_MAX = 20
WIDTH_MAX = 400


@dataclass(kw_only=True)
class Replay:
    """How a replay went so far."""

    log: str
    sessions: int = 0
    records: int = 0
    looks: int = 0
    meant: Counter[str] = field(default_factory=Counter)  # differences that are meant, by the name of the change
    differences: list[str] = field(default_factory=list)  # texts of at most LINES_MAX lines

    def __str__(self) -> str:
        equal = "equal" if not self.differences else f"{len(self.differences)} sessions differ"
        said = "".join(f"; {count} times {name}" for name, count in self.meant.items())
        return (
            f"{self.log}: {self.sessions:,} sessions, {self.records:,} records, {self.looks:,} looks: {equal}{said}"
        )


def replay(name: str, *, is_first_only: bool = True) -> Replay:
    """Replay one log; stops at the first difference unless told otherwise."""
    done = Replay(log=name)
    fields, sessions = logs.read(logs.path_of(name))
    for session in sessions:
        done.sessions += 1
        difference = check(session, fields, done)
        if difference:
            done.differences.append(difference)
            if is_first_only:
                break
    return done


def check(session: logs.Session, fields: logs.Fields, done: Replay) -> str:
    """The first difference of a session, as a text; empty if there is none."""
    walk = _Walk(session.said, fields)
    for line in session.lines:
        if line.startswith(b"["):
            done.records += 1
            wanted, got = walk.take_record(msgspec.json.decode(line))
        else:
            done.looks += 1
            wanted, got = walk.take_look(msgspec.json.decode(line))
        if wanted == got:
            continue
        is_record = line.startswith(b"[")
        if is_record:
            change = meant(walk.answers) if walk.answers is not None else None
        else:
            change = meant_words(walk.kind, walk.said["policy"], wanted, got) or meant_picture(walk.has_idled)
        if change is None:
            return _describe(done.log, done.sessions, walk, wanted, got)
        done.meant[change.name] += 1
        if change.ends_session and (is_record or change.is_said is None):
            break
    return ""


class _Walk:
    """One session as it is replayed. Both methods return what the log has and what came now."""

    def __init__(self, said: dict[str, Plain], fields: logs.Fields) -> None:
        self.said = said
        self.kind: str = said["scheduler"]
        self.fields = fields[self.kind]
        self.scheduler = under_test.make(said)
        self.now = 0
        self.number = 0
        self.event: list[Plain] = []
        self.answers: Answers | None = None  # of the last record that differs
        self.has_idled = self.has_early = False  # what `Answers` says of the session so far
        self._wakeup: int | None = None
        self._reasons: dict[str, str] = {}

    def take_record(self, record: list[Plain]) -> tuple[Plain, Plain]:
        after, self.event, effects = record[:3]
        self.number += 1
        self.now += after
        if len(record) > 3:
            self._wakeup = record[3] + self.now if record[3] is not None else None
        name = self.event[0]
        values = dict(zip(self.fields[name], self.event[1:], strict=True))
        got = self._tell(name, values)
        self.has_idled |= bool(values.get("stall_held_ns"))
        self.has_early |= values.get("wants_more") is False or any(each[0] == "RevokeLease" for each in effects)
        effects = under_test.with_names(self.scheduler, effects)
        wakeup = self.scheduler.next_wakeup()
        if effects == got and wakeup == self._wakeup:
            return None, None
        self.answers = Answers(
            scheduler=self.kind,
            policy=self.said["policy"],
            event=self.event,
            before=effects,
            now=got,
            wakeups=(self._wakeup, wakeup),
            has_idled=self.has_idled,
            has_early=self.has_early,
        )
        return [*self._named(effects), f"wakeup {self._wakeup}"], [*self._named(got), f"wakeup {wakeup}"]

    def _tell(self, name: str, values: dict[str, Plain]) -> list[Plain]:
        try:
            made = under_test.tell(self.scheduler, self.kind, name, values, self.now)
        except CarpoolError as error:
            return [[RAISED, type(error).__name__, str(error)]]
        return [fact_as_plain(effect, self.fields.get(under_test.name_of(type(effect)))) for effect in made]

    def _named(self, effects: list[list[Plain]]) -> list[str]:
        return [self.show(effect) for effect in effects]

    def show(self, fact: list[Plain]) -> str:
        names = self.fields.get(fact[0], tuple("?" for _ in fact[1:]))
        said = ", ".join(f"{name}={value!r}" for name, value in zip(names, fact[1:], strict=False))
        return f"{fact[0]}({said})"

    def take_look(self, seen: dict[str, Plain]) -> tuple[Plain, Plain]:
        for job, reason in seen["reasons"].items():
            self._reasons[job] = as_in_log(reason)  # a log that was recorded since then has what was added
            if not reason:
                del self._reasons[job]
        checksum, reasons = under_test.look(self.scheduler, self.now)
        reasons = {job: as_in_log(reason) for job, reason in reasons.items()}
        if checksum == seen["sum"] and reasons == self._reasons:
            return None, None
        return _seen(seen["sum"], self._reasons), _seen(checksum, reasons)


def _seen(checksum: int, reasons: dict[str, str]) -> list[str]:
    """What a look shows, a line each; the checksum is of what jobs and devices had (under_test.look)."""
    return [f"picture, checksum {checksum}", *(f"{job}: {said}" for job, said in sorted(reasons.items()))]


def _describe(log: str, session: int, walk: _Walk, wanted: Any, got: Any) -> str:
    said, name = walk.said, walk.said["policy"]
    where = f"{log}, session {session} ({walk.kind}, {name}, {said['settings']}), record {walk.number}"
    head = [where, f"from {said.get('where', '')}", f"at {walk.now} ns after {walk.show(walk.event)}"]
    changes = [
        line for line in unified_diff(wanted, got, lineterm="", n=2) if not line.startswith(("---", "+++", "@@"))
    ]
    lines = [*head, "  (-: in the log, +: now)", *changes]
    if len(lines) > LINES_MAX:
        lines = [*lines[: LINES_MAX - 1], f"… {len(lines) - LINES_MAX + 1} lines more"]
    return "\n".join(line[:WIDTH_MAX] for line in lines)


def assert_equal(name: str) -> None:
    """For tests: every answer is as it was, and there were some."""
    done = replay(name)
    assert not done.differences, done.differences[0]
    assert done.records > 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.replay", description=__doc__)
    parser.add_argument("logs", nargs="*", help="their names; all if none is given")
    parser.add_argument("--all", action="store_true", help="the first difference of every session")
    chosen = parser.parse_args()
    is_equal = True
    for name in chosen.logs or logs.names():
        began = time.thread_time()
        done = replay(name, is_first_only=not chosen.all)
        print(f"{done} ({time.thread_time() - began:.1f} s)")
        for difference in done.differences:
            print(f"\n{difference}")
        is_equal = is_equal and not done.differences
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
