"""Turns that go from job to job without the daemon in between: the test is the daemon and the other job."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import pytest

from carpool.agent.memory import Memory
from carpool.agent.turns import hot_path
from carpool.agent.turns.turn_taking import Turns
from carpool.wire import messages as m
from carpool.wire import page
from tests.agent.desk import Desk
from tests.agent.turns.test_turn_taking import POINT, FakeSource, first_turn, learn

pytestmark = pytest.mark.skipif(
    hot_path.native is None, reason="the C points are not built: install gcc, 'make native'"
)
OTHER = 4_000_000  # no process of the test has this pid
SERIAL = 77


class Job:
    """This process as a job with a bell; `step` ends an iteration, by the C hook or by Python."""

    def __init__(self, desk: Desk, *, is_instant: bool) -> None:
        (desk.directory / "bells").mkdir()
        self.desk = desk
        self.link = desk.link()
        self.turns = Turns(self.link, Memory(FakeSource(), overhead_bytes=0))
        first_turn(desk, self.turns)
        learn(desk, self.turns)
        self.turns.state.is_instant = is_instant
        optimizer = object()
        self.rehearsal: Callable[[], None] = lambda: None
        self.rehearsals = 0
        after, rehearse = self.turns.after_count, lambda: self.turns.while_waiting(self._rehearse)
        self._hook = hot_path.native.StepHook(lambda *_: self.turns.boundary(POINT), after, rehearse)
        self._soon = hot_path.native.SoonHook()
        self._hook.state = self._soon.state = self.turns.state
        self.turns.state.know(id(optimizer), True)
        self.step: Callable[[], object] = lambda: self._hook(optimizer, (), {})
        self.begin_step: Callable[[], object] = lambda: self._soon(optimizer, (), {})

    def _rehearse(self) -> None:
        self.rehearsals += 1
        self.rehearsal()

    def close(self) -> None:
        self._hook.state = self._soon.state = None
        self.turns.after_fork()
        self.link.page.close()
        for path in (self.desk.directory / "bells").iterdir():
            path.unlink()
        (self.desk.directory / "bells").rmdir()


@pytest.fixture(params=[True, False], ids=["c", "python"])
def job(desk: Desk, request: pytest.FixtureRequest) -> Iterator[Job]:
    made = Job(desk, is_instant=request.param)
    yield made
    made.close()


@contextmanager
def other_bell(desk: Desk) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        bell.settimeout(20)
        bell.bind(str(desk.directory / "bells" / str(OTHER)))
        yield bell


def arm(desk: Desk, *, is_quiet: bool = False) -> int:
    """Recall the turn and name the other job, as the daemon does."""
    word = page.make_pass(pid=OTHER, is_shared=False, serial=SERIAL, is_quiet=is_quiet)
    desk.words[desk.base + page.S_PASS] = word
    desk.recall()
    return word


def ring(desk: Desk, word: int, *rest: int) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        sound = b"".join(each.to_bytes(8, "little") for each in (word, *rest))
        line.sendto(sound, str(desk.directory / "bells" / str(os.getpid())))


def offer(desk: Desk, serial: int) -> int:
    word = page.make_pass(pid=os.getpid(), is_shared=False, serial=serial)
    desk.words[desk.base + page.S_RECALL] = 0
    desk.words[desk.base + page.S_OFFER] = word
    return word


def test_a_recalled_holder_rings_the_next_job_and_is_rung_itself(desk: Desk, job: Job) -> None:
    for turn in range(3):
        word = arm(desk)

        def act(word: int = word, serial: int = SERIAL + 1 + turn) -> None:
            assert int.from_bytes(bell.recv(8), "little") == word
            returned = desk.take()
            assert isinstance(returned, m.Return)
            assert (returned.wants_more, returned.passed) == (True, word)
            assert desk.words[desk.base + page.S_PASS] == word | page.PASSED
            assert desk.lease == page.LEASE_ASKED
            ring(desk, offer(desk, serial))

        desk.words[desk.base + page.S_FLAGS] |= page.FLAG_SOON  # its last update runs
        with other_bell(desk) as bell, desk.playing(act):  # a new one each time: the old line is dead
            job.step()
        (desk.directory / "bells" / str(OTHER)).unlink()
        assert (desk.lease, job.turns.state.held) == (page.LEASE_HELD, True)
        assert desk.words[desk.base + page.S_OFFER] == 0
        assert not desk.words[desk.base + page.S_FLAGS] & page.FLAG_SOON
        assert desk.steps == 3 + turn
        assert job.rehearsals == 0  # nobody knocked


def test_b1_a_pass_that_was_taken_back_is_not_used(desk: Desk, job: Job) -> None:
    arm(desk)
    desk.words[desk.base + page.S_PASS] = 0
    with other_bell(desk) as bell:
        with desk.playing(lambda: desk.answer(m.Return)):
            job.step()
        bell.setblocking(False)
        with pytest.raises(BlockingIOError):
            bell.recv(8)
    assert desk.words[desk.base + page.S_PASS] == 0
    assert job.turns.state.held


def test_b2_a_bell_that_is_not_offered_is_not_believed(desk: Desk, job: Job) -> None:
    arm(desk)
    told: list[m.Message] = []

    def act() -> None:
        told.append(desk.take())
        offered = offer(desk, SERIAL + 1)
        ring(desk, page.make_pass(pid=os.getpid(), is_shared=False, serial=SERIAL))  # of a daemon before this one
        time.sleep(0.05)
        assert desk.lease == page.LEASE_ASKED
        ring(desk, offered)

    with desk.playing(act):
        job.step()
    assert isinstance(told[0], m.Return)
    assert job.turns.state.held


def test_b3_the_daemons_own_grant_of_a_rung_turn_is_not_another_one(desk: Desk, job: Job) -> None:
    arm(desk)

    def rung() -> None:
        desk.take()
        ring(desk, offer(desk, SERIAL + 1))

    with desk.playing(rung):
        job.step()
    desk.send(m.Grant(lane_bytes=1, is_shared=False, serial=SERIAL + 1))
    waited: list[bool] = []

    def later() -> None:
        desk.take()
        time.sleep(0.05)
        waited.append(desk.lease == page.LEASE_ASKED)
        desk.grant()

    arm(desk)
    with desk.playing(later):
        job.step()
    assert waited == [True]
    assert job.turns.state.held


def test_b3_a_bell_that_comes_after_the_daemons_own_grant_is_not_another_turn(desk: Desk, job: Job) -> None:
    """The giver marked the pass as used, and something kept it from ringing for a while."""
    arm(desk)
    late = page.make_pass(pid=os.getpid(), is_shared=False, serial=SERIAL + 1)

    def grant_first() -> None:
        desk.take()
        assert offer(desk, SERIAL + 1) == late
        desk.send(m.Grant(lane_bytes=0, is_shared=False, serial=SERIAL + 1))

    with other_bell(desk), desk.playing(grant_first):
        job.step()
    assert (desk.lease, job.turns.state.held) == (page.LEASE_HELD, True)
    ring(desk, late)
    (desk.directory / "bells" / str(OTHER)).unlink()
    arm(desk)

    def look_and_grant() -> None:
        desk.take()
        time.sleep(0.05)
        assert desk.lease == page.LEASE_ASKED
        desk.grant()

    with other_bell(desk), desk.playing(look_and_grant):
        job.step()
    assert (desk.lease, job.turns.state.held) == (page.LEASE_HELD, True)


def test_a_job_that_cannot_be_rung_gets_the_daemons_grant(desk: Desk, job: Job) -> None:
    word = arm(desk)  # no such bell

    def act() -> None:
        assert desk.take() == m.Return(steps=3, wants_more=True, passed=word)
        desk.grant()

    with desk.playing(act):
        job.step()
    assert job.turns.state.held


def test_a_signal_of_the_program_is_handled_while_it_waits(desk: Desk, job: Job) -> None:
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = signal.signal(signal.SIGUSR1, note)
    try:
        arm(desk)

        def act() -> None:
            desk.take()
            os.kill(os.getpid(), signal.SIGUSR1)
            for _ in range(1000):
                if came:
                    break
                time.sleep(0.01)
            assert came == [signal.SIGUSR1]  # not only when the turn comes
            ring(desk, offer(desk, SERIAL + 1))

        with desk.playing(act):
            job.step()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert job.turns.state.held


def test_a_daemon_that_dies_while_a_rung_job_waits_is_waited_for(desk: Desk, job: Job) -> None:
    arm(desk)

    def act() -> None:
        desk.take()
        desk.die()
        desk.come_back()
        assert isinstance(desk.accept(), m.Attach)
        desk.answer(m.Ask)

    with desk.playing(act):
        job.step()
    assert job.turns.state.held


def heard(bell: socket.socket) -> list[int]:
    """What came to a bell so far."""
    bell.setblocking(False)
    words = []
    with suppress(BlockingIOError):
        while True:
            words.append(int.from_bytes(bell.recv(8), "little"))
    return words


def test_b4_a_recalled_holder_knocks_when_its_last_step_begins(desk: Desk, job: Job) -> None:
    with other_bell(desk) as bell:
        job.begin_step()
        assert heard(bell) == []  # not recalled
        word = arm(desk)
        job.begin_step()
        assert heard(bell) == ([word | page.PASSED] if job.turns.state.is_instant else [])
        assert desk.words[desk.base + page.S_PASS] == word  # nothing was passed on
        assert bool(desk.words[desk.base + page.S_FLAGS] & page.FLAG_SOON) == job.turns.state.is_instant
        desk.words[desk.base + page.S_RECALL] = desk.steps + 5
        job.begin_step()
        assert heard(bell) == []  # this step is not the last one


def test_b4_who_is_knocked_at_takes_no_turn_before_the_bell(desk: Desk, job: Job) -> None:
    arm(desk)

    def act() -> None:
        desk.take()
        word = offer(desk, SERIAL + 1)
        ring(desk, word | page.PASSED)
        time.sleep(0.05)  # longer than it stays awake
        assert desk.lease == page.LEASE_ASKED
        assert desk.words[desk.base + page.S_OFFER] == word
        ring(desk, word | page.PASSED)
        ring(desk, word)

    with other_bell(desk), desk.playing(act):
        job.step()
    assert (desk.lease, job.turns.state.held) == (page.LEASE_HELD, True)
    assert desk.words[desk.base + page.S_OFFER] == 0
    assert bool(job.rehearsals) == job.turns.state.is_instant


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors: there is no other one to move to")
def test_b5_who_is_woken_on_the_holders_processor_leaves_it_and_may_run_where_it_might(desk: Desk, job: Job) -> None:
    allowed, here = os.sched_getaffinity(0), ctypes.CDLL(None).sched_getcpu
    word, moves = offer(desk, SERIAL + 1), 0
    for _ in range(40):
        before = here()
        ring(desk, word | page.PASSED, before)
        assert job.turns.state.hear() == 0
        moves += here() != before
    assert moves >= 30  # the kernel may move it too, to and fro
    assert os.sched_getaffinity(0) == allowed


def test_b6_a_quiet_pass_is_not_told_and_the_wait_goes_on_until_the_bell(desk: Desk) -> None:
    job = Job(desk, is_instant=True)
    word = arm(desk, is_quiet=True)

    def act() -> None:
        assert int.from_bytes(bell.recv(8), "little") == word
        for _ in range(1000):
            if desk.lease == page.LEASE_ASKED:
                break
            time.sleep(0.005)
        ring(desk, offer(desk, SERIAL + 1))

    with other_bell(desk) as bell, desk.playing(act):
        job.step()
    assert (desk.lease, job.turns.state.held) == (page.LEASE_HELD, True)
    assert desk.words[desk.base + page.S_PASS] == word | page.PASSED
    assert desk.is_silent()
    job.close()


def test_b6_who_finds_nobody_to_ring_tells_the_daemon_of_a_quiet_pass(desk: Desk) -> None:
    job = Job(desk, is_instant=True)
    word = arm(desk, is_quiet=True)

    def act() -> None:
        returned = desk.take()
        assert isinstance(returned, m.Return)
        assert returned.passed == word
        ring(desk, offer(desk, SERIAL + 1))

    with desk.playing(act):
        job.step()
    assert job.turns.state.held
    job.close()


def test_a_signal_handler_that_raises_in_a_rehearsal_ends_the_wait_and_the_next_step_asks_anew(desk: Desk) -> None:
    job = Job(desk, is_instant=True)

    def raise_interrupt() -> None:
        raise KeyboardInterrupt

    job.rehearsal = raise_interrupt
    arm(desk)

    def act() -> None:
        desk.take()
        ring(desk, offer(desk, SERIAL + 1) | page.PASSED)

    with other_bell(desk), desk.playing(act), pytest.raises(KeyboardInterrupt):
        job.step()
    assert (desk.lease, job.turns.state.held, job.turns.state.is_waiting) == (page.LEASE_NONE, False, False)

    def take_back() -> None:
        assert isinstance(desk.accept(), m.Attach)
        desk.answer(m.Ask)

    with desk.playing(take_back):
        job.turns.begin()
    assert (desk.lease, job.turns.state.held) == (page.LEASE_HELD, True)
    job.close()
