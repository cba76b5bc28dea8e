"""J1 to J5: what a journal holds, what it says of what is missing, and files of other forms."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from carpool.core.kernel.ids import DeviceId
from carpool.core.node.effects import Effect
from carpool.core.node.events import DeviceAdded, Event, Tick
from carpool.core.node.settings import Settings
from carpool.errors import UsageError
from carpool.journal import reader, writer
from carpool.journal.schema import FORM
from carpool.journal.writer import Journal
from carpool.sim import journal
from carpool.sim.node_engine import Machine, NodeEngine
from carpool.units import GIB
from tests.sim.test_journal import DEVICES, record, scripts

Seen = list[tuple[int, Event, list[Effect]]]


def run(seen: Seen) -> None:
    """A life of six jobs, call by call."""
    engine = NodeEngine(
        "fair",
        Machine(devices=DEVICES),
        settings=Settings(),
        watch=lambda at, event, effects: seen.append((at, event, effects)),
    )
    engine.run(scripts())


def test_j1_every_call_is_in_the_log_in_order_also_one_without_consequence(tmp_path: Path) -> None:
    seen: Seen = []
    run(seen)
    kept = Journal(tmp_path / "journal.db", version="0", config="{}")
    for at, event, effects in seen:
        kept.note(at, event, effects)
    kept.close()
    read = reader.read(tmp_path / "journal.db")
    assert [(call.at_ns, call.event, call.effects) for call in read.calls] == seen
    assert any(not effects for _, _, effects in seen)


def test_j2_one_life_replayed_by_a_new_scheduler_gives_every_recorded_effect(tmp_path: Path) -> None:
    record(tmp_path / "journal.db")
    assert journal.replay(reader.read(tmp_path / "journal.db")).difference == ""


def test_j3_rows_that_were_dropped_are_counted_and_a_reader_stops_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Seen = []
    run(seen)
    kept = Journal(tmp_path / "journal.db", version="0", config="{}")
    kept.note(*seen[0])
    kept.flush()
    monkeypatch.setattr(writer, "PENDING_MAX", 20)
    for at in range(30):
        kept.note(seen[0][0] + at, Tick(), [])
    kept.close()
    read = reader.read(tmp_path / "journal.db")
    assert len(read.calls) == 1
    assert read.gap > 0
    with sqlite3.connect(tmp_path / "journal.db") as db:
        (left,) = db.execute("select count(*) from log where kind = 'event'").fetchone()
    assert left + read.gap == 31


def test_j4_a_disk_that_refuses_stops_nobody_and_is_tried_again(tmp_path: Path) -> None:
    kept = Journal(tmp_path / "away" / "journal.db", version="0", config="{}")
    assert "cannot be written" in kept.trouble
    kept.note(1, Tick(), [])
    kept.flush()
    assert kept.is_dirty, "what was collected waits"
    (tmp_path / "away").mkdir()
    kept._retry_at = 0.0  # the pause is over
    kept.flush()
    assert (kept.trouble, kept.is_dirty) == ("", False)


def test_j5_a_file_of_a_newer_form_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    record(path)
    with sqlite3.connect(path) as db:
        db.execute(f"pragma user_version = {FORM + 1}")
    with pytest.raises(UsageError, match="newer carpool"):
        reader.read(path)
    assert "newer carpool" in Journal(path, version="0", config="{}").trouble
    with sqlite3.connect(path) as db:
        assert db.execute("pragma user_version").fetchone() == (FORM + 1,)


def test_j5_a_life_without_its_configuration_is_refused_with_a_sentence(tmp_path: Path) -> None:
    kept = Journal(tmp_path / "journal.db", version="0", config="{}")
    kept.note(1, DeviceAdded(device=DeviceId("cpu"), capacity_bytes=GIB), [])
    kept.close()
    with pytest.raises(UsageError, match="lacks its configuration"):
        reader.read(tmp_path / "journal.db")
