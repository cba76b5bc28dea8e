"""Orders to park, told to several processes of one job: together they move no more than was reserved (L5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from carpool.core.kernel.ids import JobId
from carpool.core.node.events import JobParked
from carpool.core.node.model import JobSpec, JobState
from carpool.daemon import parking
from carpool.daemon.files import JobFile
from carpool.daemon.jobs import LiveJob
from carpool.daemon.turns import Member
from carpool.wire import messages as m
from carpool.wire import page as pages
from tests.e2e.test_members import Recorder

GIB = 1 << 30


@pytest.fixture
def live(tmp_path: Path) -> LiveJob:
    """A job of three processes, which hold 4, 2 and 2 GiB."""
    spec = JobSpec(name="ranks")
    made = LiveJob(
        id=JobId("ranks-1"),
        directory=tmp_path,
        file=JobFile(job="ranks-1", number=1, spec=spec, argv=["x"], cwd="/"),
    )
    made.job_page.make(made.directory)
    assert made.page is not None
    for pid, held in ((11, 4), (12, 2), (13, 2)):
        slot = made.page.lend_slot(pid) or 0
        made.page.words[pages.slot_base(slot) + pages.S_LIVE] = held * GIB
        made.members[pid] = Member(peer=Recorder(), pid=pid, slot=slot)
    return made


def told(live: LiveJob, pid: int) -> list[int]:
    """What the process was told to move at most, each time."""
    peer = live.members[pid].peer
    assert isinstance(peer, Recorder)
    return [message.limit_bytes for message in peer.sent if isinstance(message, m.Park)]


def parked(live: LiveJob, pid: int, count: int, state: JobState) -> object:
    message = m.Parked(moved_bytes=count, move_ns=1, reason="")
    return parking.answer(live, live.members[pid], message, state)


def test_what_was_reserved_is_divided_by_what_they_hold(live: LiveJob) -> None:
    for member in live.members.values():
        member.is_asking = True
    assert parking.park(live, 10 * GIB) is None
    assert [told(live, pid) for pid in (11, 12, 13)] == [[5 * GIB], [5 * GIB // 2], [5 * GIB // 2]]


def test_those_who_follow_share_what_is_left(live: LiveJob) -> None:
    live.members[11].is_asking = True
    parking.park(live, 10 * GIB)
    assert told(live, 11) == [10 * GIB]
    assert isinstance(parked(live, 11, 4 * GIB, JobState.PARKING), JobParked)
    assert parking.follow(live, live.members[12], JobState.PARKED)
    assert parking.follow(live, live.members[13], JobState.PARKED)
    assert (told(live, 12), told(live, 13)) == ([3 * GIB], [3 * GIB])


def test_one_that_follows_while_another_moves_leaves_it_what_it_was_told(live: LiveJob) -> None:
    live.members[11].is_asking = live.members[12].is_asking = True
    parking.park(live, 9 * GIB)
    assert (told(live, 11), told(live, 12)) == ([6 * GIB], [3 * GIB])
    parked(live, 11, 4 * GIB, JobState.PARKING)
    parking.follow(live, live.members[13], JobState.PARKING)
    assert told(live, 13) == [2 * GIB]


def test_one_that_was_told_and_asks_again_is_told_again(live: LiveJob) -> None:
    live.members[11].is_asking = True
    parking.park(live, 10 * GIB)
    parking.follow(live, live.members[11], JobState.PARKING)
    assert told(live, 11) == [10 * GIB, 5 * GIB]


def test_a_daemon_that_found_the_job_parked_knows_no_limit(live: LiveJob) -> None:
    parking.follow(live, live.members[11], JobState.PARKED)
    assert told(live, 11) == [parking.NO_LIMIT]
