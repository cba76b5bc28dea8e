"""Taking turns, against a daemon's end of the connection that the test plays itself."""

from __future__ import annotations

import atexit
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import FrameType

import pytest

from carpool.agent import api
from carpool.agent.memory import Memory
from carpool.agent.threads import compute_threads
from carpool.agent.turns import process, turn_taking
from carpool.agent.turns.turn_taking import OUTSIDE_LOOP, Turns
from carpool.errors import UsageError
from carpool.wire import messages as m
from carpool.wire import page
from tests.agent.fake_daemon import FakeDaemon

POINT = 7


class FakeSource:
    """Bytes as the test says; writes down what was asked of the device."""

    is_synchronous = True

    def __init__(self) -> None:
        self.live = 1000
        self.peak = 5000
        self.calls: list[str] = []

    def live_bytes(self) -> int:
        return self.live

    def peak_bytes(self) -> int:
        return self.peak

    def reset_peak(self, *, is_learning: bool) -> None:
        self.calls.append("reset")

    def finish_device_work(self, *, give_back: bool) -> None:
        self.calls.append("gave back" if give_back else "finished")


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def turns(daemon: FakeDaemon, source: FakeSource, implementation: str) -> Iterator[Turns]:
    link = daemon.link()
    made = Turns(link, Memory(source, overhead_bytes=0))
    yield made
    link.close()
    link.page.close()


def first_turn(daemon: FakeDaemon, turns: Turns) -> None:
    """The first begin point: attach, ask, granted."""

    def act() -> None:
        assert isinstance(daemon.accept(), m.Attach)
        assert isinstance(daemon.take(), m.Ask)
        daemon.grant()

    with daemon.playing(act):
        turns.begin()


def learn(daemon: FakeDaemon, turns: Turns) -> m.Measured:
    for _ in range(2):
        turns.boundary(POINT)
    message = daemon.take()
    assert isinstance(message, m.Measured)
    return message


def test_the_first_begin_point_attaches_asks_and_waits_for_the_grant(daemon: FakeDaemon, turns: Turns) -> None:
    seen: list[int] = []

    def act() -> None:
        attach = daemon.accept()
        assert isinstance(attach, m.Attach)
        assert (attach.job, attach.slot, attach.holding) == ("job-1", daemon.slot, False)
        assert isinstance(daemon.take(), m.Ask)
        seen.append(daemon.lease)
        daemon.grant()

    with daemon.playing(act):
        turns.begin()
    assert seen == [page.LEASE_ASKED]
    assert daemon.lease == page.LEASE_HELD
    turns.begin()  # it holds the turn: no message
    learn(daemon, turns)


def test_t1_a_held_turn_sends_nothing_and_counts_in_the_page(daemon: FakeDaemon, turns: Turns) -> None:
    first_turn(daemon, turns)
    needs = learn(daemon, turns)
    assert (needs.persistent_bytes, needs.ephemeral_bytes) == (1000, 4000)
    for _ in range(100):
        turns.begin()
        turns.boundary(POINT)
    assert daemon.steps == 102
    assert daemon.words[daemon.base + page.S_BOUNDARY_NS] > 0
    daemon.recall()
    with daemon.playing(lambda: daemon.answer(m.Return)):
        turns.boundary(POINT)  # the first message since the measurement


def test_a_recalled_turn_is_given_back_at_the_boundary_and_waited_for(
    daemon: FakeDaemon, turns: Turns, source: FakeSource
) -> None:
    first_turn(daemon, turns)
    learn(daemon, turns)
    daemon.recall()
    turns.begin()  # inside an iteration a recall changes nothing
    returned: list[m.Message] = []

    def act() -> None:
        returned.append(daemon.take())
        returned.append(m.Stop() if daemon.lease == page.LEASE_ASKED else m.Ask())
        daemon.grant(is_shared=True)

    with daemon.playing(act):
        turns.boundary(POINT)
    assert returned == [m.Return(steps=3, wants_more=True), m.Stop()]
    assert source.calls[-2:] == ["finished", "reset"]
    daemon.recall()
    with daemon.playing(lambda: daemon.answer(m.Return)):
        turns.boundary(POINT)
    assert "gave back" in source.calls, "the second grant said that the lane is shared"


def test_a_recall_names_the_step_at_which_all_ranks_stop(daemon: FakeDaemon, turns: Turns) -> None:
    first_turn(daemon, turns)
    learn(daemon, turns)
    daemon.recall(at=5)
    turns.boundary(POINT)
    turns.boundary(POINT)
    assert daemon.lease == page.LEASE_HELD
    with daemon.playing(lambda: daemon.answer(m.Return)):
        turns.boundary(POINT)
    assert daemon.steps == 5


def test_a_lapsed_turn_is_asked_for_before_the_next_computation(daemon: FakeDaemon, turns: Turns) -> None:
    first_turn(daemon, turns)
    learn(daemon, turns)
    daemon.words[daemon.base + page.S_RECALL] = page.LAPSED
    with daemon.playing(lambda: daemon.answer(m.Ask)):
        turns.begin()
    assert daemon.lease == page.LEASE_HELD


def test_slow_input_gives_the_turn_back_only_while_somebody_waits(daemon: FakeDaemon, turns: Turns) -> None:
    first_turn(daemon, turns)
    learn(daemon, turns)
    for _ in range(10):
        turns.before_data()
        turns.after_data(50_000_000)
    assert daemon.lease == page.LEASE_HELD, "nobody waits"
    daemon.words[page.H_WAITERS] = 1
    turns.before_data()
    assert daemon.take() == m.Return(steps=2, wants_more=False)
    assert daemon.lease == page.LEASE_NONE
    with daemon.playing(lambda: daemon.answer(m.Ask)):
        turns.after_data(50_000_000)
    assert daemon.words[daemon.base + page.S_STALL_NS] == 11 * 50_000_000


def test_scratch_memory_in_use_keeps_the_turn(daemon: FakeDaemon, turns: Turns, source: FakeSource) -> None:
    first_turn(daemon, turns)
    learn(daemon, turns)
    daemon.recall()
    source.live = 4_000_000  # a graph is alive
    turns.before_data()
    for _ in range(OUTSIDE_LOOP):
        turns.yield_point(0)
    assert daemon.lease == page.LEASE_HELD
    source.live = 1000
    with daemon.playing(lambda: daemon.answer(m.Return)):
        turns.yield_point(0)


def test_t5_what_a_program_holds_outside_its_loop_is_told_before_the_turn_goes(
    daemon: FakeDaemon, turns: Turns, source: FakeSource
) -> None:
    first_turn(daemon, turns)
    learn(daemon, turns)
    for _ in range(OUTSIDE_LOOP - 1):
        turns.yield_point(0)  # nobody wants the turn
    turns.boundary(POINT)  # it is still in its loop
    source.live = 4_000_000
    daemon.recall(at=daemon.steps)
    for backwards in range(3):  # and still
        for _ in range(OUTSIDE_LOOP):
            turns.yield_point(backwards)
    elsewhere = threading.Thread(target=turns.yield_point, args=(2,))
    elsewhere.start()
    elsewhere.join(20)
    assert daemon.lease == page.LEASE_HELD
    told: list[m.Message] = []

    def act() -> None:
        told.append(daemon.take())
        daemon.answer(m.Return)

    with daemon.playing(act):
        turns.yield_point(2)
    assert isinstance(told[0], m.Measured)
    assert told[0].persistent_bytes == 4_000_000
    daemon.recall(at=daemon.steps)
    with daemon.playing(lambda: daemon.answer(m.Return)):
        turns.yield_point(0)  # it is what the daemon knows


def test_a_job_that_grows_says_so_once_in_a_while(daemon: FakeDaemon, turns: Turns, source: FakeSource) -> None:
    first_turn(daemon, turns)
    learn(daemon, turns)
    source.live, source.peak = 3000, 9000
    for _ in range(64):
        turns.boundary(POINT)
    grown = daemon.take()
    assert isinstance(grown, m.Measured)
    assert (grown.persistent_bytes, grown.ephemeral_bytes) == (3000, 6000)


def test_points_inside_an_explicit_turn_are_part_of_it(daemon: FakeDaemon, turns: Turns) -> None:
    def act() -> None:
        daemon.accept()
        daemon.take()
        daemon.grant()

    with daemon.playing(act), turns.turn():
        turns.boundary(POINT)
        turns.begin()
        assert daemon.steps == 0
    assert daemon.steps == 1
    with pytest.raises(ZeroDivisionError), turns.turn():
        raise ZeroDivisionError
    assert daemon.steps == 2, "a turn that failed is over too"


def test_t4_another_thread_takes_no_turns(daemon: FakeDaemon, turns: Turns) -> None:
    first_turn(daemon, turns)
    learn(daemon, turns)
    daemon.recall()

    def elsewhere() -> None:
        turns.begin()
        turns.boundary(POINT)
        turns.before_data()
        with turns.turn():
            pass

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert daemon.steps == 2
    assert daemon.lease == page.LEASE_HELD


def run_elsewhere(act: Callable[[], object], *, name: str = "elsewhere") -> None:
    """In another thread, to its end; what it raises fails the test."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - raised again below
            raised.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    if raised:
        raise raised[0]


def enter(turns: Turns) -> None:
    with turns.turn():
        pass


def test_t4_a_turn_in_another_thread_says_once_that_it_took_none(
    daemon: FakeDaemon, turns: Turns, capsys: pytest.CaptureFixture[str]
) -> None:
    first_turn(daemon, turns)
    for _ in range(2):
        run_elsewhere(lambda: enter(turns), name="server")
    enter(turns)
    assert daemon.is_silent()
    assert capsys.readouterr().err == (
        "carpool: job job-1: carpool.turn() took no turn in thread server: another thread takes the turns;"
        " call carpool.take_turns_here() in the thread that computes\n"
    )


def test_t4_a_thread_that_is_named_takes_the_turns_and_the_one_that_is_held(
    daemon: FakeDaemon, turns: Turns, capsys: pytest.CaptureFixture[str]
) -> None:
    first_turn(daemon, turns)
    learn(daemon, turns)

    def elsewhere() -> None:
        turns.take_here()
        enter(turns)
        daemon.recall()
        with daemon.playing(lambda: daemon.answer(m.Return)):
            turns.boundary(POINT)

    run_elsewhere(elsewhere)
    assert daemon.lease == page.LEASE_HELD
    before = daemon.steps
    assert before >= 3
    turns.boundary(POINT)
    assert daemon.steps == before, "the thread that took them before counts nothing any more"
    assert capsys.readouterr().err == ""


def test_t4_a_thread_takes_no_turn_out_of_the_middle_of_anothers(daemon: FakeDaemon, turns: Turns) -> None:
    first_turn(daemon, turns)
    with turns.turn(), pytest.raises(UsageError, match=r"before or after that"):
        run_elsewhere(turns.take_here)
    assert turns.state.taker == threading.get_ident()


def test_t4_a_thread_that_is_named_waits_until_the_other_one_has_what_it_asked_for(
    daemon: FakeDaemon, turns: Turns
) -> None:
    order: list[str] = []

    def take_over() -> None:
        turns.take_here()
        order.append("named")
        turns.begin()

    def act() -> None:
        daemon.accept()
        daemon.take()
        other = threading.Thread(target=take_over)
        other.start()
        other.join(0.1)
        order.append("granted")
        daemon.grant()
        other.join(20)

    with daemon.playing(act):
        turns.begin()
    assert order == ["granted", "named"]
    assert daemon.is_silent(), "one ask, and one turn"


def test_a_turn_that_is_not_kept_goes_back_when_its_block_ends(
    daemon: FakeDaemon, turns: Turns, source: FakeSource
) -> None:
    first_turn(daemon, turns)
    for _ in range(4):
        with (
            daemon.playing(lambda: daemon.answer(m.Ask)) if not turns.state.held else nullcontext(),
            turns.turn(keep=False),
        ):
            assert daemon.lease == page.LEASE_HELD
        returned = daemon.take_until(m.Return)
        assert returned == m.Return(steps=daemon.steps, wants_more=False, passed=0)
        assert daemon.lease == page.LEASE_NONE
    assert daemon.steps == 4
    assert daemon.is_silent()


def test_a_turn_that_is_not_kept_does_not_wait_for_the_next_one_if_it_was_recalled(
    daemon: FakeDaemon, turns: Turns
) -> None:
    first_turn(daemon, turns)
    for _ in range(4):
        enter(turns)
    with turns.turn(keep=False):
        daemon.recall()
    returned = daemon.take_until(m.Return)
    assert isinstance(returned, m.Return)
    assert (returned.wants_more, returned.steps, daemon.lease) == (False, 5, page.LEASE_NONE)
    assert daemon.is_silent()


def test_a_turn_that_is_not_kept_goes_back_after_an_error_and_only_with_the_outermost_block(
    daemon: FakeDaemon, turns: Turns
) -> None:
    first_turn(daemon, turns)
    with turns.turn():
        with turns.turn(keep=False):
            pass
        assert daemon.lease == page.LEASE_HELD
    assert daemon.lease == page.LEASE_HELD
    with pytest.raises(ZeroDivisionError), turns.turn(keep=False):
        raise ZeroDivisionError
    assert daemon.lease == page.LEASE_NONE
    assert daemon.steps == 2


def test_a_turn_that_is_not_kept_works_without_a_daemon(
    daemon: FakeDaemon, turns: Turns, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(turn_taking, "STOPPED_PATIENCE_NS", 0)
    daemon.die(leave_socket=False)
    for _ in range(3):
        with turns.turn(keep=False):
            assert turns.state.held
    assert capsys.readouterr().err.count("the program goes on without taking turns") == 1


@pytest.fixture
def job(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    """This process is part of a job whose daemon the test plays."""
    values = {"JOB": "job-1", "SOCKET": daemon.directory / "socket", "PAGE": daemon.directory / "page"}
    for name, value in values.items():
        monkeypatch.setenv(f"CARPOOL_{name}", str(value))
    for name, fresh in (("_current", None), ("_is_unmanaged", False), ("_named_taker", 0), ("_followers", [])):
        monkeypatch.setattr(process, name, fresh)
    yield daemon
    turns = process._current
    if turns is not None:
        atexit.unregister(turns.finish)
        turns._link.close()
        turns._link.page.close()


def test_t4_a_thread_that_is_named_before_the_first_turn_is_the_one_that_takes_it(
    job: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    followed: list[int] = []
    process.follow_taker(followed.append)
    api.take_turns_here()

    def elsewhere() -> None:
        with api.turn():
            assert job.lease == page.LEASE_NONE

    run_elsewhere(elsewhere, name="loader")
    assert "carpool.turn() took no turn in thread loader" in capsys.readouterr().err

    def act() -> None:
        job.accept()
        job.answer(m.Ask)

    with job.playing(act), api.turn():
        assert job.lease == page.LEASE_HELD
    assert followed == [threading.get_ident()]


def test_outside_a_job_nobody_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CARPOOL_JOB", raising=False)
    monkeypatch.setattr(process, "_named_taker", 0)
    api.take_turns_here()
    api.only_these_threads_compute()
    with api.turn(keep=False):
        assert (process._named_taker, compute_threads._named) == (0, None)


def test_an_interrupted_wait_is_withdrawn_and_a_late_grant_is_not_mistaken_for_the_next(
    daemon: FakeDaemon, turns: Turns
) -> None:
    class InterruptedInTestError(Exception):
        pass

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise InterruptedInTestError

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        first_turn(daemon, turns)
        learn(daemon, turns)
        daemon.words[daemon.base + page.S_RECALL] = page.LAPSED

        def act() -> None:
            daemon.take_until(m.Ask)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            assert daemon.is_closed()

        with daemon.playing(act), pytest.raises(InterruptedInTestError):
            turns.begin()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert daemon.lease == page.LEASE_NONE
    asked: list[m.Message] = []

    def act_again() -> None:
        asked.append(daemon.accept())
        daemon.take_until(m.Ask)
        daemon.grant()

    with daemon.playing(act_again):
        turns.begin()
    assert isinstance(asked[0], m.Attach)
    assert daemon.lease == page.LEASE_HELD


def test_a_holder_goes_on_without_a_daemon_and_comes_back_to_the_next(daemon: FakeDaemon, turns: Turns) -> None:
    first_turn(daemon, turns)
    learn(daemon, turns)
    daemon.die()
    for _ in range(100):
        turns.begin()
        turns.boundary(POINT)
    assert (daemon.steps, daemon.lease) == (102, page.LEASE_HELD)
    daemon.come_back()
    daemon.recall()

    def act() -> None:
        attach = daemon.accept()
        assert isinstance(attach, m.Attach)
        assert not attach.holding, "it has just given its turn back"
        assert isinstance(daemon.take(), m.Ask)
        assert isinstance(daemon.take(), m.Measured)
        daemon.grant()

    with daemon.playing(act):
        turns.boundary(POINT)
    assert (daemon.steps, daemon.lease) == (103, page.LEASE_HELD)


def test_a_waiting_job_waits_for_the_next_daemon(daemon: FakeDaemon, turns: Turns) -> None:
    first_turn(daemon, turns)
    learn(daemon, turns)
    daemon.recall()

    def act() -> None:
        daemon.take_until(m.Return)
        daemon.die()
        daemon.come_back()
        daemon.accept()
        daemon.take_until(m.Ask)
        daemon.grant()

    with daemon.playing(act):
        turns.boundary(POINT)
    assert daemon.lease == page.LEASE_HELD


def test_after_a_daemon_that_was_stopped_the_job_goes_on_alone_and_says_so_once(
    daemon: FakeDaemon, turns: Turns, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(turn_taking, "STOPPED_PATIENCE_NS", 1)
    first_turn(daemon, turns)
    learn(daemon, turns)
    daemon.recall()

    def act() -> None:
        daemon.take_until(m.Return)
        daemon.die(leave_socket=False)

    with daemon.playing(act):
        turns.boundary(POINT)
    for _ in range(5):
        turns.begin()
        turns.boundary(POINT)
    assert daemon.steps == 8
    said = capsys.readouterr().err
    assert said.count("the program goes on without taking turns") == 1
    daemon.come_back()
    daemon.words[daemon.base + page.S_RECALL] = 1

    def act_again() -> None:
        daemon.accept()
        daemon.take_until(m.Ask)
        daemon.grant()

    with daemon.playing(act_again):
        turns.boundary(POINT)
    assert daemon.lease == page.LEASE_HELD


def test_a_daemon_that_does_not_want_it_leaves_the_program_alone(
    daemon: FakeDaemon, turns: Turns, capsys: pytest.CaptureFixture[str]
) -> None:
    def act() -> None:
        daemon.accept(attach=False)
        daemon.send(m.Refuse(reason="the daemon does not know job job-1"))

    with daemon.playing(act):
        turns.begin()
    turns.begin()
    turns.boundary(POINT)
    assert daemon.steps == 0
    assert capsys.readouterr().err == "carpool: job job-1 runs unmanaged: the daemon does not know job job-1\n"


def test_t3_a_bug_of_the_agent_is_said_once_and_the_program_runs_on(
    daemon: FakeDaemon, turns: Turns, source: FakeSource, capsys: pytest.CaptureFixture[str]
) -> None:
    first_turn(daemon, turns)

    def broken() -> int:
        raise RuntimeError("no such counter")

    source.live_bytes = broken  # type: ignore[method-assign]  # a fault is what this test is about
    turns.boundary(POINT)
    assert daemon.take() == m.Detach(reason="unexpected RuntimeError: no such counter")
    turns.boundary(POINT)
    turns.begin()
    assert capsys.readouterr().err == "carpool: job job-1 runs unmanaged: unexpected RuntimeError: no such counter\n"


def test_at_its_end_the_program_gives_the_turn_back_with_its_last_steps(daemon: FakeDaemon, turns: Turns) -> None:
    first_turn(daemon, turns)
    learn(daemon, turns)
    for _ in range(5):
        turns.boundary(POINT)
    turns.finish()
    assert daemon.take() == m.Return(steps=7, wants_more=False)
    turns.begin()  # whatever runs at exit takes no turn any more


def test_a_forked_child_leaves_the_turn_to_its_parent(daemon: FakeDaemon, turns: Turns) -> None:
    first_turn(daemon, turns)
    learn(daemon, turns)
    turns.after_fork()
    turns.begin()
    turns.boundary(POINT)
    assert daemon.steps == 2
    assert daemon.lease == page.LEASE_HELD


def test_outside_a_job_a_turn_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CARPOOL_JOB", raising=False)
    with api.turn():
        assert process.current_turns() is None


def test_a_page_that_cannot_be_used_leaves_the_program_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "_is_unmanaged", False)
    for name, value in (("CARPOOL_JOB", "x-1"), ("CARPOOL_SOCKET", "/nowhere"), ("CARPOOL_PAGE", "/nowhere/page")):
        monkeypatch.setenv(name, value)
    with api.turn():
        pass
    with api.turn():
        pass
    said = capsys.readouterr().err
    assert said == (
        "carpool: job x-1 runs unmanaged: cannot open the shared page /nowhere/page: No such file or directory\n"
    )
