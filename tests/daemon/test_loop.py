"""What the loop does when carpool itself has a bug, and how soon it notes what happened."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from carpool.core.events import DeviceAdded, Tick
from carpool.core.model import DeviceId
from carpool.core.node import Settings
from carpool.core.policies.base import POLICIES
from carpool.core.scheduler import Scheduler
from carpool.daemon.journal import Journal
from carpool.daemon.loop import FLUSH_ROWS, Loop
from carpool.daemon.starter import Starter
from carpool.errors import InternalError
from carpool.wire.places import Places


def test_an_event_that_breaks_the_core_is_kept_in_the_journal_and_ends_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path, version="test", config="{}")
    given_up: list[str] = []
    places = Places(run=tmp_path, state=tmp_path)
    scheduler = Scheduler(POLICIES["fair"], Settings())

    async def live() -> None:
        loop = Loop(scheduler, journal, Starter(places, []), lambda: given_up.append("now"))
        loop.tell(DeviceAdded(device=DeviceId("cpu"), capacity_bytes=1))
        assert given_up == []
        with pytest.raises(InternalError, match="here already"):
            loop.tell(DeviceAdded(device=DeviceId("cpu"), capacity_bytes=2))
        assert given_up == ["now"]

    asyncio.run(live())
    journal.close()
    with closing(sqlite3.connect(path)) as db:
        bodies = [body.decode() for (body,) in db.execute("select body from log where name = 'DeviceAdded'")]
    assert ['"capacity_bytes":1' in bodies[0], '"capacity_bytes":2' in bodies[1]] == [True, True]


@pytest.mark.slow
def test_what_happens_while_the_journal_is_written_in_pieces_is_noted_in_the_accounts_too(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path, version="test", config="{}")

    async def wait_noted(since_ns: int) -> None:
        with closing(sqlite3.connect(path)) as db:
            for _ in range(1000):
                if db.execute("select 1 from noted where at_ns >= ?", (since_ns,)).fetchone():
                    return
                await asyncio.sleep(0.005)
        raise AssertionError("its time is not accounted for")

    async def live() -> None:
        places = Places(run=tmp_path, state=tmp_path)
        loop = Loop(Scheduler(POLICIES["fair"], Settings()), journal, Starter(places, []), lambda: None)
        began_ns = time.monotonic_ns()
        for _ in range(40 * FLUSH_ROWS):
            loop.tell(Tick())
        await wait_noted(began_ns)
        happened_ns = time.monotonic_ns()
        loop.tell(Tick())  # between two pieces
        await wait_noted(happened_ns)

    asyncio.run(live())
    journal.close()
