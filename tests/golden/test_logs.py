"""What the golden logs hold together: enough, of everything, in little room."""

from __future__ import annotations

from collections import Counter
from functools import cache

import msgspec
import pytest

from tests.golden import logs
from tests.golden.logs import DIRECTORY, Session
from tests.golden.replay import LINES_MAX, Replay, check
from tests.golden.under_test import CLUSTER, EFFECTS, EVENTS, NODE

EVENTS_MIN = 300_000
BYTES_MAX = 8_000_000
NEWER = {
    "ProgramStarted",
    "StartPutOff",
    "TenantSet",
    "SettingsChanged",
    "CheckpointAsked",
}  # types that came after the logs were recorded


@cache
def counts() -> Counter[tuple[str, str]]:
    """How often each event, effect and policy of each scheduler occurs in all logs."""
    found: Counter[tuple[str, str]] = Counter()
    for name in logs.names():
        _, sessions = logs.read(logs.path_of(name))
        for session in sessions:
            kind = session.said["scheduler"]
            found[kind, session.said["policy"]] += session.events
            for line in session.lines:
                if line.startswith(b"["):
                    record = msgspec.json.decode(line)
                    found[kind, "events"] += 1
                    found[kind, record[1][0]] += 1
                    found.update((kind, effect[0]) for effect in record[2])
    return found


@pytest.mark.parametrize("kind", [NODE, CLUSTER])
def test_every_event_and_every_effect_of_both_schedulers_is_in_a_log(kind: str) -> None:
    wanted = {*EVENTS[kind], *EFFECTS[kind]} - NEWER
    assert {name for name in wanted if not counts()[kind, name]} == set()


def test_the_policies_of_both_schedulers_are_in_a_log() -> None:
    both = {"fair", "fifo", "las", "pack", "priority", "srtf"}  # a newer one is recorded by the next `make golden`
    assert {name for name in both if not counts()[NODE, name]} == set()
    assert {name for name in {*both, "srsf", "tiresias"} if not counts()[CLUSTER, name]} == set()


def test_the_logs_hold_as_many_events_as_they_should_in_as_few_bytes() -> None:
    assert counts()[NODE, "events"] + counts()[CLUSTER, "events"] >= EVENTS_MIN
    assert sum(path.stat().st_size for path in DIRECTORY.iterdir()) <= BYTES_MAX


def test_every_log_has_a_test() -> None:
    tested = {path.stem.removeprefix("test_") for path in DIRECTORY.parent.glob("test_*.py")}
    assert set(logs.names()) <= tested


# --- a difference is found, and said in a few lines --------------------------------------------------------------


def first_session(name: str) -> tuple[logs.Fields, Session]:
    fields, sessions = logs.read(logs.path_of(name))
    return fields, next(each for each in sessions if each.said["scheduler"] == NODE and each.events > 50)


def changed(line: bytes, old: bytes, new: bytes) -> bytes:
    assert old in line
    return line.replace(old, new, 1)


def test_an_effect_that_differs_is_shown_with_its_event_in_at_most_twenty_lines() -> None:
    fields, session = first_session("chaos")
    number = next(number for number, line in enumerate(session.lines) if b'"GrantLease"' in line)
    session.lines[number] = changed(session.lines[number], b'"GrantLease"', b'"RevokeLease"')
    difference = check(session, fields, Replay(log="chaos", sessions=1))
    records = sum(line.startswith(b"[") for line in session.lines[: number + 1])
    assert "chaos, session 1 (node, fair, " in difference
    assert f"record {records}" in difference
    assert any(line.startswith("-RevokeLease(job=") for line in difference.splitlines())
    assert any(line.startswith("+GrantLease(job=") for line in difference.splitlines())
    assert len(difference.splitlines()) <= LINES_MAX


def test_a_wakeup_that_differs_is_a_difference() -> None:
    fields, session = first_session("chaos")
    numbers = [number for number, line in enumerate(session.lines) if line.startswith(b"[")]
    last = next(each for each in numbers if len(msgspec.json.decode(session.lines[each])) > 3)
    record = msgspec.json.decode(session.lines[last])
    session.lines[last] = msgspec.json.encode([*record[:3], 12345])
    assert "+wakeup" in check(session, fields, Replay(log="chaos", sessions=1))


def test_a_sentence_that_differs_is_a_difference() -> None:
    fields, session = first_session("core")
    number = next(number for number, line in enumerate(session.lines) if b'"reasons":{"' in line)
    session.lines[number] = changed(session.lines[number], b'":"', b'":"not ')
    difference = check(session, fields, Replay(log="chaos", sessions=1))
    assert "not " in difference
    assert len(difference.splitlines()) <= LINES_MAX
