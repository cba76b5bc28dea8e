"""Threads that may go on while a program's tensors are away, and those that are in the way."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import dummy
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest

from carpool.agent import packages
from carpool.agent.threads import ComputeThreads, thread_in_the_way

WAIT_SECONDS = 20
NAMES = ["tensorboard_hist", "tensorboard"]
WatchThread = Callable[[str, str], threading.Thread]


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that other tests left behind are none of this one's."""
    before = set(threading.enumerate())
    real = threading.enumerate
    monkeypatch.setattr(threading, "enumerate", lambda: [each for each in real() if each not in before])
    monkeypatch.setattr("carpool.agent.threads.PATIENCE_SECONDS", 0.3)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What work waits for; open at the end in any case."""
    made = threading.Event()
    yield made
    made.set()


def wait_idle() -> None:
    end = time.monotonic() + WAIT_SECONDS
    while thread_in_the_way():
        assert time.monotonic() < end, thread_in_the_way()


def test_a_pool_of_threads_is_in_the_way_only_while_it_has_work(gate: threading.Event) -> None:
    with ThreadPool(2) as pool:
        assert thread_in_the_way() == ""
        result = pool.apply_async(gate.wait, (WAIT_SECONDS,))
        assert "has work of a pool or a queue, which might touch its tensors" in thread_in_the_way()
        gate.set()
        assert result.get(WAIT_SECONDS)
        wait_idle()


def test_a_callback_that_still_runs_is_work(gate: threading.Event) -> None:
    with ThreadPool(1) as pool:
        pool.apply_async(int, callback=lambda _: gate.wait(WAIT_SECONDS))
        assert "has work" in thread_in_the_way()
        gate.set()
        wait_idle()


def test_a_pool_whose_threads_begin_with_code_of_the_program_is_in_the_way() -> None:
    with ThreadPool(1, initializer=int):
        assert "might touch its tensors" in thread_in_the_way()


def test_a_pool_of_processes_is_in_the_way_while_results_are_to_come() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert thread_in_the_way() == ""
        result = pool.apply_async(time.sleep, (1.0,))
        assert "has work" in thread_in_the_way()
        result.get(WAIT_SECONDS)
        wait_idle()


def test_a_pool_that_replaces_its_processes_would_fork_a_program_without_tensors() -> None:
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1):
        assert "might touch its tensors" in thread_in_the_way()


def test_a_thread_in_the_clothes_of_a_process_is_in_the_way(gate: threading.Event) -> None:
    thread = dummy.Process(target=gate.wait, args=(WAIT_SECONDS,))
    thread.daemon = True
    thread.start()
    assert thread_in_the_way() == f"its thread {thread.name} might touch its tensors meanwhile"


class Slow:
    """Something that is pickled as long as the gate is closed."""

    def __init__(self, gate: threading.Event) -> None:
        self._gate = gate

    def __reduce__(self) -> tuple[type[int], tuple[()]]:
        self._gate.wait(WAIT_SECONDS)
        return int, ()


def test_a_queue_is_in_the_way_while_something_of_the_programs_is_pickled(gate: threading.Event) -> None:
    queue = multiprocessing.get_context("fork").Queue()
    queue.put(1)
    wait_idle()
    queue.put(Slow(gate))
    assert "its thread QueueFeederThread has work" in thread_in_the_way()
    gate.set()
    wait_idle()
    assert [queue.get(timeout=WAIT_SECONDS) for _ in range(2)] == [1, 0]
    queue.close()
    queue.join_thread()


WATCHER = """
import threading
def watch(gate): gate.wait(20)
class Monitor(threading.Thread):
    def __init__(self, gate):
        super().__init__(daemon=True)
        self.gate = gate
    def run(self): watch(self.gate)
"""


@pytest.fixture
def watch_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gate: threading.Event) -> Iterator[WatchThread]:
    """Starts a thread of a module with this name that lies in a directory of its own."""
    monkeypatch.syspath_prepend(tmp_path)
    hidden = {each: sys.modules.pop(each) for each in NAMES if each in sys.modules}
    packages.is_installed.cache_clear()

    def start(name: str, how: str) -> threading.Thread:
        (tmp_path / f"{name}.py").write_text(WATCHER)
        importlib.invalidate_caches()
        module = importlib.import_module(name)
        made: threading.Thread = module.Monitor(gate)
        if how == "target":
            made = threading.Thread(target=module.watch, args=(gate,), daemon=True)
        made.start()
        return made

    yield start
    gate.set()
    for each in NAMES:
        sys.modules.pop(each, None)
    sys.modules.update(hidden)
    packages.is_installed.cache_clear()


@pytest.mark.parametrize("how", ["target", "class"])
@pytest.mark.parametrize("name", NAMES)
def test_k2_a_thread_of_the_programs_own_module_is_in_the_way_whatever_the_module_is_called(
    watch_thread: WatchThread, name: str, how: str
) -> None:
    """One name begins like a harmless package's, the other is one: but nobody installed what lies there."""
    thread = watch_thread(name, how)
    assert thread_in_the_way() == f"its thread {thread.name} might touch its tensors meanwhile"


@pytest.mark.parametrize("how", ["target", "class"])
def test_a_thread_of_an_installed_package_that_touches_no_tensors_is_not_in_the_way(
    watch_thread: WatchThread, how: str, tmp_path: Path
) -> None:
    metadata = tmp_path / "tensorboard-2.20.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorboard\nVersion: 2.20.0\n")
    watch_thread("tensorboard", how)
    assert thread_in_the_way() == ""


def test_k2_a_thread_is_known_by_its_code_and_not_by_what_a_decorator_calls_it(gate: threading.Event) -> None:
    def watch() -> None:
        gate.wait(WAIT_SECONDS)

    from torch.utils.data import _utils

    disguised = functools.wraps(_utils.pin_memory._pin_memory_loop)(watch)
    thread = threading.Thread(target=disguised, daemon=True)
    thread.start()
    assert thread_in_the_way() == f"its thread {thread.name} might touch its tensors meanwhile"


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> ComputeThreads:
    monkeypatch.setenv("CARPOOL_JOB", "job-1")
    return ComputeThreads()


@pytest.fixture
def other(gate: threading.Event) -> threading.Thread:
    """A thread of the program of which nothing is known."""
    made = threading.Thread(target=gate.wait, args=(WAIT_SECONDS,), name="server", daemon=True)
    made.start()
    return made


def test_k2_a_thread_of_which_nothing_is_known_is_in_the_way_until_the_program_says_who_computes(
    declared: ComputeThreads, other: threading.Thread
) -> None:
    reason = "its thread server might touch its tensors meanwhile"
    assert declared.begin_parking() == reason
    declared.declare(threading.current_thread())
    assert declared.begin_parking() == ""
    declared.end_parking()
    declared.declare(threading.current_thread(), other)
    assert declared.begin_parking() == reason
    assert thread_in_the_way() == reason, "a checkpoint takes nobody's word for it"


def test_k2_a_thread_that_computes_against_the_programs_word_ends_parking_and_is_said_once(
    declared: ComputeThreads, capsys: pytest.CaptureFixture[str]
) -> None:
    declared.check()
    declared.declare(threading.current_thread())
    declared.check()
    assert (declared.begin_parking(), capsys.readouterr().err) == ("", "")
    declared.end_parking()
    for _ in range(2):
        loader = threading.Thread(target=declared.check, name="loader")
        loader.start()
        loader.join(WAIT_SECONDS)
        assert not loader.is_alive()
    assert capsys.readouterr().err == (
        "carpool: job job-1: thread loader computes, but was not named in carpool.only_these_threads_compute();"
        " name it too: until the program ends it is not parked\n"
    )
    assert declared.begin_parking() == "its thread loader computes, and the program said that it does not"


def test_k1_a_thread_that_computes_against_the_programs_word_waits_until_the_tensors_are_back(
    declared: ComputeThreads,
) -> None:
    declared.declare(threading.current_thread())
    assert declared.begin_parking() == ""
    loader = threading.Thread(target=declared.check)
    loader.start()
    loader.join(0.1)
    assert loader.is_alive()
    declared.end_parking()
    loader.join(WAIT_SECONDS)
    assert not loader.is_alive()
    assert declared.begin_parking() != "", "it was parked for the last time"


def test_hooks_look_at_threads_only_after_the_program_named_some(declared: ComputeThreads) -> None:
    acted: list[str] = []
    declared.when_declared(lambda: acted.append("early"))
    assert acted == []
    declared.declare(threading.current_thread())
    declared.when_declared(lambda: acted.append("late"))
    assert acted == ["early", "late"]
