"""Turns that go from job to job without the daemon in between: the test is the daemon and the other job."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import pytest

from carpool.agent.memory import Memory
from carpool.agent.turns import hot_path
from carpool.agent.turns.turn_taking import Turns
from carpool.wire import messages as m
from carpool.wire import page
from tests.agent.fake_daemon import FakeDaemon
from tests.agent.turns.test_turn_taking import POINT, FakeSource, first_turn, learn

pytestmark = pytest.mark.skipif(
    hot_path.native is None, reason="the C points are not built: install gcc, 'make native'"
)
OTHER = 4_000_000  # no process of the test has this pid
SERIAL = 77


class Job:
    """This process as a job with a bell; `step` ends an iteration, by the C hook or by Python."""

    def __init__(self, daemon: FakeDaemon, *, is_instant: bool) -> None:
        (daemon.directory / "bells").mkdir()
        self.daemon = daemon
        self.link = daemon.link()
        self.turns = Turns(self.link, Memory(FakeSource(), overhead_bytes=0))
        first_turn(daemon, self.turns)
        learn(daemon, self.turns)
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
        for path in (self.daemon.directory / "bells").iterdir():
            path.unlink()
        (self.daemon.directory / "bells").rmdir()


@pytest.fixture(params=[True, False], ids=["c", "python"])
def job(daemon: FakeDaemon, request: pytest.FixtureRequest) -> Iterator[Job]:
    made = Job(daemon, is_instant=request.param)
    yield made
    made.close()


@contextmanager
def other_bell(daemon: FakeDaemon) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        bell.settimeout(20)
        bell.bind(str(daemon.directory / "bells" / str(OTHER)))
        yield bell


def arm(daemon: FakeDaemon, *, is_quiet: bool = False) -> int:
    """Recall the turn and name the other job, as the daemon does."""
    word = page.make_pass(pid=OTHER, is_shared=False, serial=SERIAL, is_quiet=is_quiet)
    daemon.words[daemon.base + page.S_PASS] = word
    daemon.recall()
    return word


def ring(daemon: FakeDaemon, word: int, *rest: int) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        sound = b"".join(each.to_bytes(8, "little") for each in (word, *rest))
        line.sendto(sound, str(daemon.directory / "bells" / str(os.getpid())))


def offer(daemon: FakeDaemon, serial: int) -> int:
    word = page.make_pass(pid=os.getpid(), is_shared=False, serial=serial)
    daemon.words[daemon.base + page.S_RECALL] = 0
    daemon.words[daemon.base + page.S_OFFER] = word
    return word


def test_a_recalled_holder_rings_the_next_job_and_is_rung_itself(daemon: FakeDaemon, job: Job) -> None:
    for turn in range(3):
        word = arm(daemon)

        def act(word: int = word, serial: int = SERIAL + 1 + turn) -> None:
            assert int.from_bytes(bell.recv(8), "little") == word
            returned = daemon.take()
            assert isinstance(returned, m.Return)
            assert (returned.wants_more, returned.passed) == (True, word)
            assert daemon.words[daemon.base + page.S_PASS] == word | page.PASSED
            assert daemon.lease == page.LEASE_ASKED
            ring(daemon, offer(daemon, serial))

        daemon.words[daemon.base + page.S_FLAGS] |= page.FLAG_SOON  # its last update runs
        with other_bell(daemon) as bell, daemon.playing(act):  # a new one each time: the old line is dead
            job.step()
        (daemon.directory / "bells" / str(OTHER)).unlink()
        assert (daemon.lease, job.turns.state.held) == (page.LEASE_HELD, True)
        assert daemon.words[daemon.base + page.S_OFFER] == 0
        assert not daemon.words[daemon.base + page.S_FLAGS] & page.FLAG_SOON
        assert daemon.steps == 3 + turn
        assert job.rehearsals == 0  # nobody knocked


def test_b1_a_pass_that_was_taken_back_is_not_used(daemon: FakeDaemon, job: Job) -> None:
    arm(daemon)
    daemon.words[daemon.base + page.S_PASS] = 0
    with other_bell(daemon) as bell:
        with daemon.playing(lambda: daemon.answer(m.Return)):
            job.step()
        bell.setblocking(False)
        with pytest.raises(BlockingIOError):
            bell.recv(8)
    assert daemon.words[daemon.base + page.S_PASS] == 0
    assert job.turns.state.held


def test_b2_a_bell_that_is_not_offered_is_not_believed(daemon: FakeDaemon, job: Job) -> None:
    arm(daemon)
    told: list[m.Message] = []

    def act() -> None:
        told.append(daemon.take())
        offered = offer(daemon, SERIAL + 1)
        ring(daemon, page.make_pass(pid=os.getpid(), is_shared=False, serial=SERIAL))  # of a daemon before this one
        time.sleep(0.05)
        assert daemon.lease == page.LEASE_ASKED
        ring(daemon, offered)

    with daemon.playing(act):
        job.step()
    assert isinstance(told[0], m.Return)
    assert job.turns.state.held


def test_b3_the_daemons_own_grant_of_a_rung_turn_is_not_another_one(daemon: FakeDaemon, job: Job) -> None:
    arm(daemon)

    def rung() -> None:
        daemon.take()
        ring(daemon, offer(daemon, SERIAL + 1))

    with daemon.playing(rung):
        job.step()
    daemon.send(m.Grant(lane_bytes=1, is_shared=False, serial=SERIAL + 1))
    waited: list[bool] = []

    def later() -> None:
        daemon.take()
        time.sleep(0.05)
        waited.append(daemon.lease == page.LEASE_ASKED)
        daemon.grant()

    arm(daemon)
    with daemon.playing(later):
        job.step()
    assert waited == [True]
    assert job.turns.state.held


def test_b3_a_bell_that_comes_after_the_daemons_own_grant_is_not_another_turn(daemon: FakeDaemon, job: Job) -> None:
    """The giver marked the pass as used, and something kept it from ringing for a while."""
    arm(daemon)
    late = page.make_pass(pid=os.getpid(), is_shared=False, serial=SERIAL + 1)

    def grant_first() -> None:
        daemon.take()
        assert offer(daemon, SERIAL + 1) == late
        daemon.send(m.Grant(lane_bytes=0, is_shared=False, serial=SERIAL + 1))

    with other_bell(daemon), daemon.playing(grant_first):
        job.step()
    assert (daemon.lease, job.turns.state.held) == (page.LEASE_HELD, True)
    ring(daemon, late)
    (daemon.directory / "bells" / str(OTHER)).unlink()
    arm(daemon)

    def look_and_grant() -> None:
        daemon.take()
        time.sleep(0.05)
        assert daemon.lease == page.LEASE_ASKED
        daemon.grant()

    with other_bell(daemon), daemon.playing(look_and_grant):
        job.step()
    assert (daemon.lease, job.turns.state.held) == (page.LEASE_HELD, True)


def test_a_job_that_cannot_be_rung_gets_the_daemons_grant(daemon: FakeDaemon, job: Job) -> None:
    word = arm(daemon)  # no such bell

    def act() -> None:
        assert daemon.take() == m.Return(steps=3, wants_more=True, passed=word)
        daemon.grant()

    with daemon.playing(act):
        job.step()
    assert job.turns.state.held


def test_a_signal_of_the_program_is_handled_while_it_waits(daemon: FakeDaemon, job: Job) -> None:
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = signal.signal(signal.SIGUSR1, note)
    try:
        arm(daemon)

        def act() -> None:
            daemon.take()
            os.kill(os.getpid(), signal.SIGUSR1)
            for _ in range(1000):
                if came:
                    break
                time.sleep(0.01)
            assert came == [signal.SIGUSR1]  # not only when the turn comes
            ring(daemon, offer(daemon, SERIAL + 1))

        with daemon.playing(act):
            job.step()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert job.turns.state.held


def test_a_daemon_that_dies_while_a_rung_job_waits_is_waited_for(daemon: FakeDaemon, job: Job) -> None:
    arm(daemon)

    def act() -> None:
        daemon.take()
        daemon.die()
        daemon.come_back()
        assert isinstance(daemon.accept(), m.Attach)
        daemon.answer(m.Ask)

    with daemon.playing(act):
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


def test_b4_a_recalled_holder_knocks_when_its_last_step_begins(daemon: FakeDaemon, job: Job) -> None:
    with other_bell(daemon) as bell:
        job.begin_step()
        assert heard(bell) == []  # not recalled
        word = arm(daemon)
        job.begin_step()
        assert heard(bell) == ([word | page.PASSED] if job.turns.state.is_instant else [])
        assert daemon.words[daemon.base + page.S_PASS] == word  # nothing was passed on
        assert bool(daemon.words[daemon.base + page.S_FLAGS] & page.FLAG_SOON) == job.turns.state.is_instant
        daemon.words[daemon.base + page.S_RECALL] = daemon.steps + 5
        job.begin_step()
        assert heard(bell) == []  # this step is not the last one


def test_b4_who_is_knocked_at_takes_no_turn_before_the_bell(daemon: FakeDaemon, job: Job) -> None:
    arm(daemon)

    def act() -> None:
        daemon.take()
        word = offer(daemon, SERIAL + 1)
        ring(daemon, word | page.PASSED)
        time.sleep(0.05)  # longer than it stays awake
        assert daemon.lease == page.LEASE_ASKED
        assert daemon.words[daemon.base + page.S_OFFER] == word
        ring(daemon, word | page.PASSED)
        ring(daemon, word)

    with other_bell(daemon), daemon.playing(act):
        job.step()
    assert (daemon.lease, job.turns.state.held) == (page.LEASE_HELD, True)
    assert daemon.words[daemon.base + page.S_OFFER] == 0
    assert bool(job.rehearsals) == job.turns.state.is_instant


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors: there is no other one to move to")
def test_b5_who_is_woken_on_the_holders_processor_leaves_it_and_may_run_where_it_might(
    daemon: FakeDaemon, job: Job
) -> None:
    allowed, here = os.sched_getaffinity(0), ctypes.CDLL(None).sched_getcpu
    word, moves = offer(daemon, SERIAL + 1), 0
    for _ in range(40):
        before = here()
        ring(daemon, word | page.PASSED, before)
        assert job.turns.state.hear() == 0
        moves += here() != before
    assert moves >= 30  # the kernel may move it too, to and fro
    assert os.sched_getaffinity(0) == allowed


def test_b6_a_quiet_pass_is_not_told_and_the_wait_goes_on_until_the_bell(daemon: FakeDaemon) -> None:
    job = Job(daemon, is_instant=True)
    word = arm(daemon, is_quiet=True)

    def act() -> None:
        assert int.from_bytes(bell.recv(8), "little") == word
        for _ in range(1000):
            if daemon.lease == page.LEASE_ASKED:
                break
            time.sleep(0.005)
        ring(daemon, offer(daemon, SERIAL + 1))

    with other_bell(daemon) as bell, daemon.playing(act):
        job.step()
    assert (daemon.lease, job.turns.state.held) == (page.LEASE_HELD, True)
    assert daemon.words[daemon.base + page.S_PASS] == word | page.PASSED
    assert daemon.is_silent()
    job.close()


def test_b6_who_finds_nobody_to_ring_tells_the_daemon_of_a_quiet_pass(daemon: FakeDaemon) -> None:
    job = Job(daemon, is_instant=True)
    word = arm(daemon, is_quiet=True)

    def act() -> None:
        returned = daemon.take()
        assert isinstance(returned, m.Return)
        assert returned.passed == word
        ring(daemon, offer(daemon, SERIAL + 1))

    with daemon.playing(act):
        job.step()
    assert job.turns.state.held
    job.close()


def test_a_signal_handler_that_raises_in_a_rehearsal_ends_the_wait_and_the_next_step_asks_anew(
    daemon: FakeDaemon,
) -> None:
    job = Job(daemon, is_instant=True)

    def raise_interrupt() -> None:
        raise KeyboardInterrupt

    job.rehearsal = raise_interrupt
    arm(daemon)

    def act() -> None:
        daemon.take()
        ring(daemon, offer(daemon, SERIAL + 1) | page.PASSED)

    with other_bell(daemon), daemon.playing(act), pytest.raises(KeyboardInterrupt):
        job.step()
    assert (daemon.lease, job.turns.state.held, job.turns.state.is_waiting) == (page.LEASE_NONE, False, False)

    def take_back() -> None:
        assert isinstance(daemon.accept(), m.Attach)
        daemon.answer(m.Ask)

    with daemon.playing(take_back):
        job.turns.begin()
    assert (daemon.lease, job.turns.state.held) == (page.LEASE_HELD, True)
    job.close()


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_i45_a_process_gets_its_bell_from_the_daemon_and_a_new_one_from_the_next(daemon: FakeDaemon) -> None:
    job = Job(daemon, is_instant=False)
    path, before = daemon.directory / "bells" / str(os.getpid()), open_files()
    first = path.lstat().st_ino
    daemon.hang_up()

    def come_again() -> None:
        assert isinstance(daemon.accept(), m.Attach)
        daemon.answer(m.Ask)

    with daemon.playing(come_again):
        job.link.close()
        job.turns.state.held = False
        job.turns.begin()
    assert path.lstat().st_ino != first
    assert open_files() == before, "the first one is closed"
    word = offer(daemon, SERIAL)
    ring(daemon, word)
    assert job.turns.state.hear() == word
    bell = job.link._bell
    assert bell is not None and not bell._own.socket.get_inheritable(), "no program that it starts has it"
    job.close()


def test_b1_a_process_has_no_bell_where_words_cannot_be_exchanged(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the daemon would offer it turns that nobody could take back."""
    monkeypatch.setattr(page, "HAS_SWAP", False)
    job = Job(daemon, is_instant=False)
    assert not daemon.words[daemon.base + page.S_FLAGS] & page.FLAG_BELL
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line, pytest.raises(ConnectionRefusedError):
        line.connect(str(daemon.directory / "bells" / str(os.getpid())))  # it let go of the one that it was given
    job.close()
