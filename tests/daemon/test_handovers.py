"""Turns that went from job to job before the daemon heard of it: the core is told first, and of nothing twice."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from carpool.core.kernel.ids import DeviceId, JobId
from carpool.core.node.events import DeviceAdded, JobAdopted, JobExited, JobResized, LeaseAsked, Tick
from carpool.core.node.model import JobSpec, JobState, Needs
from carpool.core.node.scheduler import Scheduler
from carpool.core.node.settings import Settings
from carpool.daemon.driver import Driver
from carpool.daemon.files import JobFile
from carpool.daemon.jobs import LiveJob
from carpool.daemon.starter import Starter
from carpool.daemon.turns import Member
from carpool.journal.writer import Journal
from carpool.policies import POLICIES
from carpool.wire import messages as m
from carpool.wire import page as pages
from carpool.wire.places import Places
from tests.e2e.test_members import Recorder

pytestmark = pytest.mark.skipif(not pages.HAS_SWAP, reason="the C points are not built: install gcc, 'make native'")
A, B = JobId("a-1"), JobId("b-2")
MIB = 1 << 20


class Node:
    """A driver with a job that holds the turn and one that waits, each of one process with a bell."""

    def __init__(self, directory: Path, quantum_ns: int = 1, watch_ns: int = 250_000_000) -> None:
        self.given_up: list[str] = []
        self.journal = Journal(directory / "journal.db", version="test", config="{}")
        scheduler = Scheduler(POLICIES["fair"], Settings(quantum_ns=quantum_ns, watch_ns=watch_ns))
        places = Places(run=directory, state=directory)
        self.driver = Driver(scheduler, self.journal, Starter(places, []), lambda: self.given_up.append("now"))
        self.driver.tell(DeviceAdded(device=DeviceId("cpu"), capacity_bytes=1000 * MIB))
        self.a = self._add(directory, A, pid=11, is_holding=True)
        self.b = self._add(directory, B, pid=12, is_holding=False)

    def _add(self, directory: Path, job: JobId, *, pid: int, is_holding: bool) -> Member:
        (directory / job).mkdir()
        spec = JobSpec(name=job)
        file = JobFile(job=job, number=pid, spec=spec, argv=["x"], cwd="/")
        live = LiveJob(id=job, directory=directory / job, file=file)
        live.turn.take_up(is_granted=is_holding)
        live.job_page.make(live.directory)
        assert live.page is not None
        slot = live.page.lend_slot(pid) or 0
        live.page.slot(slot).flags = pages.FLAG_BELL
        member = live.members[pid] = Member(peer=Recorder(), pid=pid, slot=slot, is_holding=is_holding)
        self.driver.jobs[job] = live
        needs = Needs(persistent_bytes=MIB, ephemeral_bytes=MIB)
        self.driver.tell(
            JobAdopted(
                job=job, spec=spec, device=DeviceId("cpu"), holding=is_holding, steps=1, live_bytes=MIB, needs=needs
            )
        )
        return member

    def word(self, job: JobId, word: int) -> int:
        live = self.driver.jobs[job]
        assert live.page is not None
        return live.page.words[pages.slot_base(next(iter(live.members.values())).slot) + word]

    def recall_a(self) -> int:
        """B asks and A's quantum is over; the pass that stands in A's slot then."""
        self.b.is_asking = True
        self.driver.tell(LeaseAsked(job=B))
        self.driver.tell(Tick())
        assert self.word(A, pages.S_RECALL) == 1
        return self.word(A, pages.S_PASS)

    def use_pass(self, word: int) -> None:
        """What A does at its boundary."""
        live = self.driver.jobs[A]
        assert live.page is not None
        assert pages.swap(live.page.words, pages.slot_base(self.a.slot) + pages.S_PASS, word, word | pages.PASSED)

    def sent_to(self, member: Member) -> list[m.Message]:
        assert isinstance(member.peer, Recorder)
        return member.peer.sent


def with_node(tmp_path: Path, act: Callable[[Node], None]) -> None:
    async def live() -> None:
        node = Node(tmp_path)
        act(node)
        assert node.given_up == []
        node.journal.close()

    asyncio.run(live())


def test_a_recalled_holder_is_told_whom_to_ring_and_the_other_by_which_word(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        word = node.recall_a()
        assert pages.pass_pid(word) == node.b.pid
        assert node.word(B, pages.S_OFFER) == word
        assert node.word(B, pages.S_RECALL) == 0
        assert node.sent_to(node.b) == []

    with_node(tmp_path, act)


def test_a_used_pass_is_told_before_what_happens_next_and_the_grant_follows(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        word = node.recall_a()
        node.use_pass(word)
        node.driver.tell(Tick())
        assert node.driver.scheduler.holders() == [B]
        assert node.driver.scheduler.state_of(A) is JobState.WAITING
        assert (node.a.is_holding, node.a.is_asking, node.b.is_holding, node.b.is_asking) == (
            False,
            True,
            True,
            False,
        )
        grant = node.sent_to(node.b)[0]
        assert isinstance(grant, m.Grant)
        assert grant.serial == pages.pass_serial(word)
        assert node.word(A, pages.S_PASS) == 0

    with_node(tmp_path, act)


def test_an_unused_pass_is_taken_back_and_armed_anew_after_the_next_decision(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        word = node.recall_a()
        node.driver.tell(Tick())
        again = node.word(A, pages.S_PASS)
        assert again not in (0, word)
        assert node.word(B, pages.S_OFFER) == again

    with_node(tmp_path, act)


def test_a_holder_that_dies_right_after_it_passed_its_turn_on_takes_nothing_with_it(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        node.use_pass(node.recall_a())
        node.driver.tell(JobExited(job=A, code=-9))
        assert node.driver.scheduler.holders() == [B]
        assert [type(message) for message in node.sent_to(node.b)] == [m.Grant]

    with_node(tmp_path, act)


def test_b6_a_used_pass_is_told_as_of_the_boundary_where_it_was(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        word = node.recall_a()
        assert word & pages.PASS_QUIET
        waiters = node.driver.jobs[B].page
        assert waiters is not None
        assert waiters.words[pages.H_WAITERS] == 1  # A will wait for it
        live = node.driver.jobs[A]
        assert live.page is not None
        passed_ns = time.monotonic_ns()
        live.page.slot(node.a.slot).boundary_ns = passed_ns
        node.use_pass(word)
        time.sleep(0.05)
        node.driver.tell(LeaseAsked(job=A))
        assert node.driver.scheduler.holders() == [B]
        account = node.driver.scheduler.account_of(A, now=time.monotonic_ns())
        assert account.row_since_ns == passed_ns

    with_node(tmp_path, act)


def test_b6_nobody_wakes_the_daemon_but_it_looks_when_the_next_job_has_had_its_quantum(tmp_path: Path) -> None:
    async def live() -> None:
        node = Node(tmp_path, quantum_ns=20_000_000, watch_ns=3_600_000_000_000)
        await asyncio.sleep(0.05)
        node.use_pass(node.recall_a())
        for _ in range(1000):
            if node.driver.scheduler.holders() == [B]:
                break
            await asyncio.sleep(0.005)
        assert node.driver.scheduler.holders() == [B]
        assert node.given_up == []
        node.journal.close()

    asyncio.run(live())


def test_b6_where_limits_count_the_time_of_turns_the_daemon_is_told_of_each_at_once(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        node.driver.tell(JobResized(job=A, share_milli=(0, 900)))
        assert not node.recall_a() & pages.PASS_QUIET

    with_node(tmp_path, act)


def test_b6_a_holder_that_takes_its_time_is_not_looked_at_without_a_pause(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        node.recall_a()
        pauses: list[int] = []
        for _ in range(3):  # its quantum and usual step are over
            time.sleep(0.01)
            node.driver.tell(Tick())
            now, until = time.monotonic_ns(), node.driver.scheduler.unheard_until(A)
            assert until is not None
            pauses.append(until - now)
        assert pauses[0] > 5_000_000
        assert pauses == sorted(pauses)  # ever longer

    with_node(tmp_path, act)


def test_a_pass_that_was_wiped_is_not_one_that_was_used(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        node.recall_a()
        live = node.driver.jobs[A]
        assert live.page is not None
        live.page.words[pages.slot_base(node.a.slot) + pages.S_PASS] = 0
        node.driver.tell(Tick())
        assert node.driver.scheduler.holders() == [A]

    with_node(tmp_path, act)


def test_b6_on_a_node_of_several_devices_the_daemon_is_told_of_each_at_once(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        node.driver.tell(DeviceAdded(device=DeviceId("cpu1"), capacity_bytes=1000 * MIB))
        assert not node.recall_a() & pages.PASS_QUIET

    with_node(tmp_path, act)


def test_no_pass_names_a_job_that_left(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        node.recall_a()
        node.driver.tell(JobExited(job=B, code=0))
        assert node.word(A, pages.S_PASS) == 0
        assert node.driver.scheduler.holders() == [A]

    with_node(tmp_path, act)


@pytest.mark.parametrize("lacks", ["a bell", "a connection", "being the only process"])
def test_where_a_bell_would_not_do_the_daemon_does_it_all(tmp_path: Path, lacks: str) -> None:
    def act(node: Node) -> None:
        live = node.driver.jobs[B]
        assert live.page is not None
        if lacks == "a bell":
            live.page.slot(node.b.slot).flags = 0
        elif lacks == "a connection":
            node.b.peer = None
        else:
            live.members[13] = Member(peer=Recorder(), pid=13, slot=live.page.lend_slot(13) or 0)
        assert node.recall_a() == 0

    with_node(tmp_path, act)


def test_b4_a_holder_recalled_in_its_last_update_is_knocked_for(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        (tmp_path / "bells").mkdir()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
            bell.bind(str(tmp_path / "bells" / str(node.b.pid)))
            bell.setblocking(False)
            live = node.driver.jobs[A]
            assert live.page is not None
            live.page.slot(node.a.slot).flags |= pages.FLAG_SOON
            word = node.recall_a()
            assert int.from_bytes(bell.recv(8), "little") == word | pages.PASSED
            live.page.slot(node.a.slot).flags = pages.FLAG_BELL
            node.driver.tell(Tick())
            with pytest.raises(BlockingIOError):
                bell.recv(8)

    with_node(tmp_path, act)


def test_b4_nobody_at_the_bell_is_no_trouble(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        live = node.driver.jobs[A]
        assert live.page is not None
        live.page.slot(node.a.slot).flags |= pages.FLAG_SOON
        assert node.recall_a() != 0

    with_node(tmp_path, act)
