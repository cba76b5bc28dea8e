"""The CUDA guest's turns against a scripted daemon: the same messages as the Python agent's."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from carpool.wire import messages as m
from carpool.wire import page as wire
from carpool.wire.page import slot_base
from tests.agent.fake_daemon import FakeDaemon
from tests.native.gpu import MIB, Built, Probe, environment

Start = Callable[[], Probe]


def job(built: Built, daemon: FakeDaemon) -> dict[str, str]:
    return environment(built, daemon.directory / "books", page=daemon.page.path) | {
        "CARPOOL_JOB": "job-1",
        "CARPOOL_SOCKET": str(daemon.directory / "socket"),
        "CARPOOL_VERSION": "1.2.3",
    }


@pytest.fixture
def start(built: Built, daemon: FakeDaemon, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Probe(built, job(built, daemon), tmp_path / "log"))


def attach(daemon: FakeDaemon, probe: Probe) -> m.Attach:
    """Take the guest's connection; from then on the daemon looks at its slot."""
    message = daemon.accept()
    assert isinstance(message, m.Attach)
    daemon.base = slot_base(message.slot)
    assert daemon.words[daemon.base + wire.S_PID] == probe.pid
    return message


def hold(daemon: FakeDaemon, probe: Probe) -> None:
    """Let the probe have its first turn."""
    probe.tell("launch plain busy_1us")
    attach(daemon, probe)
    daemon.answer(m.Ask)
    assert probe.answer()[0] == 0
    assert daemon.lease == wire.LEASE_HELD


def test_the_first_launch_attaches_asks_and_waits(start: Start, daemon: FakeDaemon) -> None:
    probe = start()
    assert probe.alloc("plain", 0, MIB) == 0  # memory needs no turn
    probe.tell("launch plain busy_1us")
    said = attach(daemon, probe)
    assert (said.job, said.pid, said.holding, said.version) == ("job-1", probe.pid, False, "1.2.3")
    assert said.protocol == m.PROTOCOL
    assert daemon.take() == m.Ask()
    assert daemon.lease == wire.LEASE_ASKED
    daemon.grant()
    assert probe.answer()[0] == 0


def test_an_order_to_park_is_refused_with_a_reason_and_the_turn_still_comes(start: Start, daemon: FakeDaemon) -> None:
    probe = start()
    probe.tell("launch plain busy_1us")
    attach(daemon, probe)
    assert daemon.take() == m.Ask()
    daemon.send(m.Park(limit_bytes=1 << 30))
    parked = daemon.take()
    assert isinstance(parked, m.Parked) and "not PyTorch" in parked.reason
    daemon.send(m.Unpark())
    assert daemon.take() == m.Unparked(move_ns=0, reason="")
    daemon.grant()
    assert probe.answer()[0] == 0


def test_u2_a_recalled_turn_goes_back_after_the_devices_work_and_is_waited_for(
    start: Start, daemon: FakeDaemon
) -> None:
    probe = start()
    hold(daemon, probe)
    started = time.monotonic()
    assert probe.ask("launch plain busy_300ms")[0] == 0
    daemon.recall()
    probe.tell("launch plain busy_1us")
    returned = daemon.take_until(m.Return)
    assert time.monotonic() - started >= 0.3
    assert isinstance(returned, m.Return) and returned.wants_more
    daemon.grant()
    assert probe.answer()[0] == 0


def test_a_recall_seen_at_a_wait_gives_the_turn_back_and_the_next_launch_asks(
    start: Start, daemon: FakeDaemon
) -> None:
    probe = start()
    hold(daemon, probe)
    daemon.recall()
    assert probe.ask("sync")[0] == 0
    returned = daemon.take_until(m.Return)
    assert returned == m.Return(steps=1, wants_more=False)
    assert daemon.lease == wire.LEASE_NONE
    probe.tell("launch plain busy_1us")
    daemon.answer(m.Ask)
    assert probe.answer()[0] == 0


def test_what_the_program_holds_is_reported_after_its_first_steps(start: Start, daemon: FakeDaemon) -> None:
    probe = start()
    hold(daemon, probe)
    assert probe.alloc("plain", 0, 64 * MIB) == 0
    for _ in range(3):
        assert probe.ask("launch plain busy_1us")[0] == 0
        assert probe.ask("sync")[0] == 0
    measured = daemon.take_until(m.Measured)
    assert isinstance(measured, m.Measured)
    assert (measured.persistent_bytes, measured.ephemeral_bytes) == (64 * MIB, 0)
    assert measured.step_ns > 0
    assert daemon.steps == 3


def test_u3_nothing_waits_while_a_stream_is_captured(start: Start, daemon: FakeDaemon) -> None:
    probe = start()
    probe.tell("capture 1 3 busy_1us")  # the three captured launches pass; the graph's launch asks
    attach(daemon, probe)
    daemon.answer(m.Ask)
    assert probe.answer()[0] == 0


def test_a_refusal_lets_the_program_run_on_and_is_said_once(start: Start, daemon: FakeDaemon) -> None:
    probe = start()
    probe.tell("launch plain busy_1us")
    daemon.accept(attach=False)
    daemon.send(m.Refuse(reason="another version"))
    assert probe.answer()[0] == 0
    assert probe.ask("launch plain busy_1us")[0] == 0
    assert probe.said().count("another version") == probe.said().count("\n") == 1


def test_u5_without_a_daemon_the_program_goes_on_alone_and_says_so_once(start: Start, daemon: FakeDaemon) -> None:
    daemon.die(leave_socket=False)
    probe = start()
    started = time.monotonic()
    assert probe.ask("launch plain busy_1us")[0] == 0
    assert 0.9 < time.monotonic() - started < 10
    assert probe.ask("launch plain busy_1us")[0] == 0
    assert probe.said().count("goes on without taking turns") == probe.said().count("\n") == 1


def test_u5_a_holder_whose_daemon_is_gone_returns_its_turn_to_the_next_one(start: Start, daemon: FakeDaemon) -> None:
    probe = start()
    hold(daemon, probe)
    daemon.die(leave_socket=False)
    assert probe.ask("launch plain busy_1us")[0] == 0  # it keeps its turn
    daemon.open()
    daemon.recall()
    probe.tell("launch plain busy_1us")
    again = attach(daemon, probe)
    assert again.holding
    returned = daemon.take_until(m.Return)
    assert isinstance(returned, m.Return) and returned.wants_more
    daemon.grant()
    assert probe.answer()[0] == 0
    assert probe.said() == ""


def test_the_turn_goes_back_when_the_program_ends(start: Start, daemon: FakeDaemon) -> None:
    probe = start()
    hold(daemon, probe)
    probe.__exit__()
    returned = daemon.take_until(m.Return)
    assert isinstance(returned, m.Return) and not returned.wants_more


def test_u4_a_program_whose_turns_the_agent_takes_is_left_to_it(built: Built, daemon: FakeDaemon) -> None:
    script = """
import ctypes, os
from pathlib import Path
from carpool.wire import page
shared = page.Page.open(Path(os.environ["CARPOOL_PAGE"]))
page.raise_flag(shared.words, page.slot_base(shared.slot_of(os.getpid())), page.FLAG_AGENT)
cuda = ctypes.CDLL("libcuda.so.1")
context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)
cuda.cuModuleLoadData(ctypes.byref(module), b"")
cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"busy_1us")
print(cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None))
print(cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_ulonglong()), ctypes.c_size_t(200 << 20)))
"""
    daemon.words[wire.H_CAP] = 100 * MIB
    done = subprocess.run(  # nobody answers the daemon's socket: one who asked would wait for ever
        [sys.executable, "-c", script], env=job(built, daemon), capture_output=True, text=True, timeout=20
    )
    assert (done.stdout.split(), done.stderr) == (["0", "2"], "")
