"""What the driver does when carpool itself has a bug, how soon it notes what happened, and what wakes it."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from carpool.core.kernel.ids import DeviceId, JobId
from carpool.core.node.events import DeviceAdded, LeaseAsked, Tick
from carpool.core.node.model import HOLDING, Account, JobSpec, JobState
from carpool.core.node.scheduler import Scheduler
from carpool.core.node.settings import Settings
from carpool.daemon import driver as drivers
from carpool.daemon.driver import Driver
from carpool.daemon.files import JobFile
from carpool.daemon.jobs import LiveJob
from carpool.daemon.knocks import KnockSocket
from carpool.daemon.starter import Starter
from carpool.daemon.turns import Member
from carpool.errors import InternalError
from carpool.journal.writer import Journal
from carpool.policies import POLICIES
from carpool.wire import page as pages
from carpool.wire.places import Places
from tests.daemon.node import Node, in_node


def test_an_event_that_breaks_the_core_is_kept_in_the_journal_and_ends_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path, version="test", config="{}")
    given_up: list[str] = []
    places = Places(run=tmp_path, state=tmp_path)
    scheduler = Scheduler(POLICIES["fair"], Settings())

    async def live() -> None:
        driver = Driver(scheduler, journal, Starter(places, []), lambda: given_up.append("now"))
        driver.tell(DeviceAdded(device=DeviceId("cpu"), capacity_bytes=1))
        assert given_up == []
        with pytest.raises(InternalError, match="here already"):
            driver.tell(DeviceAdded(device=DeviceId("cpu"), capacity_bytes=2))
        assert given_up == ["now"]

    asyncio.run(live())
    journal.close()
    with closing(sqlite3.connect(path)) as db:
        bodies = [body.decode() for (body,) in db.execute("select body from log where name = 'DeviceAdded'")]
    assert ['"capacity_bytes":1' in bodies[0], '"capacity_bytes":2' in bodies[1]] == [True, True]


@pytest.mark.slow
def test_what_happens_while_the_journal_is_written_is_noted_in_the_accounts_too(tmp_path: Path) -> None:
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
        driver = Driver(Scheduler(POLICIES["fair"], Settings()), journal, Starter(places, []), lambda: None)
        began_ns = time.monotonic_ns()
        for _ in range(2000):
            driver.tell(Tick())
        await wait_noted(began_ns)
        happened_ns = time.monotonic_ns()
        driver.tell(Tick())  # between two times
        await wait_noted(happened_ns)

    asyncio.run(live())
    journal.close()


def job_that_waits(directory: Path, pending_bytes: int) -> LiveJob:
    """One process of it, this one, is inside an allocation that waits."""
    file = JobFile(job="a-1", number=1, spec=JobSpec(name="a"), argv=["a"], cwd="/", device="cpu", kind="cpu")
    live = LiveJob(id=JobId("a-1"), directory=directory, file=file)
    live.job_page.make(live.directory)
    assert live.page is not None
    live.page.header.cap_bytes, live.page.header.slots_used = 1, 2
    live.page.words[pages.slot_base(1) + pages.S_PID] = os.getpid()
    set_pending(live, pending_bytes)
    return live


def driver_with(live: LiveJob, journal: Journal, places: Places) -> Driver:
    """A driver that has this job, of which the core has heard nothing but its account."""
    driver = Driver(Scheduler(POLICIES["fair"], Settings()), journal, Starter(places, []), lambda: None)
    account = Account(
        arrived_ns=0, at_ns=0, row="run", row_since_ns=0, spent_ns={}, waited_for_ns={}, served_ns=0, steps=0
    )
    driver.scheduler.account_of = lambda job, *, now: account  # type: ignore[method-assign]  # of this object only
    driver.scheduler.standing_of = lambda job, *, now: (account.row, 0, ())  # type: ignore[method-assign]  # and this
    driver.jobs[live.id] = live
    return driver


def set_pending(live: LiveJob, pending_bytes: int) -> None:
    assert live.page is not None
    for word in (pages.S_LIVE, pages.S_PENDING):
        live.page.words[pages.slot_base(1) + word] = pending_bytes


@pytest.mark.slow
@pytest.mark.parametrize("knocks", [True, False], ids=["it knocks", "its knocks do not come through"])
def test_an_allocation_that_waits_is_looked_at_until_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knocks: bool
) -> None:
    monkeypatch.setattr(drivers, "NOTE_SECONDS", 60.0 if knocks else 0.05)
    journal = Journal(tmp_path / "journal.db", version="test", config="{}")
    live = job_that_waits(tmp_path, pending_bytes=4096)

    def seen() -> list[int]:
        assert journal.write_out()
        with closing(sqlite3.connect(tmp_path / "journal.db")) as db:
            return [
                sizes
                for (sizes,) in db.execute("select body ->> 'pending_bytes' from log where name = 'ProgressSeen'")
            ]

    async def wait_seen(expected: list[int]) -> None:
        for _ in range(1000):
            if seen() == expected:
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"{seen()}, not {expected}")

    async def run() -> None:
        places = Places(run=tmp_path, state=tmp_path)
        driver = driver_with(live, journal, places)
        opened = KnockSocket(places, driver.listen)
        driver.tell(Tick())
        assert driver._listener is None, "nobody is looked at who did not knock"
        if knocks:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
                peer.sendto(b"x", str(places.knock))
        await wait_seen([4096])
        assert driver._listener is not None
        set_pending(live, 0)
        await wait_seen([4096, 0])
        for _ in range(1000):  # the timer that was set before rings once more
            if driver._listener is None:
                break
            await asyncio.sleep(0.005)
        assert driver._listener is None
        opened.close()
        assert not places.knock.exists()

    asyncio.run(run())
    journal.close()
    assert live.page is not None
    live.page.close()


@pytest.mark.slow
def test_the_accounts_are_noted_now_and_then_while_jobs_live_and_not_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "NOTE_SECONDS", 0.05)
    journal = Journal(tmp_path / "journal.db", version="test", config="{}")
    live, noted = job_that_waits(tmp_path, pending_bytes=0), list[int]()
    note = journal.note_accounts

    def note_accounts(changed: dict[str, Account], *, now: int, lent_ns: object = None) -> None:
        noted.append(now)
        note(changed, now=now)

    monkeypatch.setattr(journal, "note_accounts", note_accounts)

    async def run() -> None:
        places = Places(run=tmp_path, state=tmp_path)
        driver = driver_with(live, journal, places)
        driver.tell(Tick())
        for _ in range(100):
            await asyncio.sleep(0.05)
            if len(noted) >= 3:
                break
        assert len(noted) >= 3
        del driver.jobs[live.id]
        await asyncio.sleep(0.8)  # what happened last is written
        noted.clear()
        await asyncio.sleep(0.3)
        assert noted == []

    asyncio.run(run())
    journal.close()
    assert live.page is not None
    live.page.close()


@pytest.mark.parametrize("holding", [False, True])
def test_what_cannot_be_done_for_a_job_costs_that_job_only(tmp_path: Path, *, holding: bool) -> None:
    """Its words are unusable, as if a program of it had that power: an effect fails, or the note of who waits."""

    def act(node: Node) -> None:
        broken = node.adopt("broken", live_bytes=0, needs=None, holding=holding)
        whole = node.adopt("whole", live_bytes=0, needs=None)
        assert broken.page is not None
        broken.members[7] = Member(peer=None, pid=7, slot=1, is_asking=True)
        broken.page.words.release()
        node.driver.tell(Tick() if holding else LeaseAsked(job=broken.id))
        assert node.driver.scheduler.state_of(broken.id) is JobState.UNMANAGED
        reason = node.queries.job("broken").job.reason
        assert reason.startswith("runs outside carpool's turns: carpool could not "), reason
        assert ("write into the page" if holding else "carry out GrantLease") in reason
        assert broken.refusal in reason and not broken.members
        node.driver.tell(LeaseAsked(job=whole.id))
        assert node.driver.scheduler.state_of(whole.id) in HOLDING
        assert not node.given_up

    in_node(tmp_path, act)
