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
from tests.agent.desk import Desk
from tests.native.gpu import MIB, Built, Probe, environment

Start = Callable[[], Probe]


def job(built: Built, desk: Desk) -> dict[str, str]:
    return environment(built, desk.directory / "books", page=desk.page.path) | {
        "CARPOOL_JOB": "job-1",
        "CARPOOL_SOCKET": str(desk.directory / "socket"),
        "CARPOOL_VERSION": "1.2.3",
    }


@pytest.fixture
def start(built: Built, desk: Desk, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Probe(built, job(built, desk), tmp_path / "log"))


def attach(desk: Desk, probe: Probe) -> m.Attach:
    """Take the guest's connection; from then on the desk looks at its slot."""
    message = desk.accept()
    assert isinstance(message, m.Attach)
    desk.base = slot_base(message.slot)
    assert desk.words[desk.base + wire.S_PID] == probe.pid
    return message


def hold(desk: Desk, probe: Probe) -> None:
    """Let the probe have its first turn."""
    probe.tell("launch plain busy_1us")
    attach(desk, probe)
    desk.answer(m.Ask)
    assert probe.answer()[0] == 0
    assert desk.lease == wire.LEASE_HELD


def test_the_first_launch_attaches_asks_and_waits(start: Start, desk: Desk) -> None:
    probe = start()
    assert probe.alloc("plain", 0, MIB) == 0  # memory needs no turn
    probe.tell("launch plain busy_1us")
    said = attach(desk, probe)
    assert (said.job, said.pid, said.holding, said.version) == ("job-1", probe.pid, False, "1.2.3")
    assert said.protocol == m.PROTOCOL
    assert desk.take() == m.Ask()
    assert desk.lease == wire.LEASE_ASKED
    desk.grant()
    assert probe.answer()[0] == 0


def test_an_order_to_park_is_refused_with_a_reason_and_the_turn_still_comes(start: Start, desk: Desk) -> None:
    probe = start()
    probe.tell("launch plain busy_1us")
    attach(desk, probe)
    assert desk.take() == m.Ask()
    desk.send(m.Park(limit_bytes=1 << 30))
    parked = desk.take()
    assert isinstance(parked, m.Parked) and "not PyTorch" in parked.reason
    desk.send(m.Unpark())
    assert desk.take() == m.Unparked(move_ns=0, reason="")
    desk.grant()
    assert probe.answer()[0] == 0


def test_u2_a_recalled_turn_goes_back_after_the_devices_work_and_is_waited_for(start: Start, desk: Desk) -> None:
    probe = start()
    hold(desk, probe)
    started = time.monotonic()
    assert probe.ask("launch plain busy_300ms")[0] == 0
    desk.recall()
    probe.tell("launch plain busy_1us")
    returned = desk.take_until(m.Return)
    assert time.monotonic() - started >= 0.3
    assert isinstance(returned, m.Return) and returned.wants_more
    desk.grant()
    assert probe.answer()[0] == 0


def test_a_recall_seen_at_a_wait_gives_the_turn_back_and_the_next_launch_asks(start: Start, desk: Desk) -> None:
    probe = start()
    hold(desk, probe)
    desk.recall()
    assert probe.ask("sync")[0] == 0
    returned = desk.take_until(m.Return)
    assert returned == m.Return(steps=1, wants_more=False)
    assert desk.lease == wire.LEASE_NONE
    probe.tell("launch plain busy_1us")
    desk.answer(m.Ask)
    assert probe.answer()[0] == 0


def test_what_the_program_holds_is_reported_after_its_first_steps(start: Start, desk: Desk) -> None:
    probe = start()
    hold(desk, probe)
    assert probe.alloc("plain", 0, 64 * MIB) == 0
    for _ in range(3):
        assert probe.ask("launch plain busy_1us")[0] == 0
        assert probe.ask("sync")[0] == 0
    measured = desk.take_until(m.Measured)
    assert isinstance(measured, m.Measured)
    assert (measured.persistent_bytes, measured.ephemeral_bytes) == (64 * MIB, 0)
    assert measured.step_ns > 0
    assert desk.steps == 3


def test_u3_nothing_waits_while_a_stream_is_captured(start: Start, desk: Desk) -> None:
    probe = start()
    probe.tell("capture 1 3 busy_1us")  # the three captured launches pass; the graph's launch asks
    attach(desk, probe)
    desk.answer(m.Ask)
    assert probe.answer()[0] == 0


def test_a_refusal_lets_the_program_run_on_and_is_said_once(start: Start, desk: Desk) -> None:
    probe = start()
    probe.tell("launch plain busy_1us")
    desk.accept(attach=False)
    desk.send(m.Refuse(reason="another version"))
    assert probe.answer()[0] == 0
    assert probe.ask("launch plain busy_1us")[0] == 0
    assert probe.said().count("another version") == probe.said().count("\n") == 1


def test_u5_without_a_daemon_the_program_goes_on_alone_and_says_so_once(start: Start, desk: Desk) -> None:
    desk.die(leave_socket=False)
    probe = start()
    started = time.monotonic()
    assert probe.ask("launch plain busy_1us")[0] == 0
    assert 0.9 < time.monotonic() - started < 10
    assert probe.ask("launch plain busy_1us")[0] == 0
    assert probe.said().count("goes on without taking turns") == probe.said().count("\n") == 1


def test_u5_a_holder_whose_daemon_is_gone_returns_its_turn_to_the_next_one(start: Start, desk: Desk) -> None:
    probe = start()
    hold(desk, probe)
    desk.die(leave_socket=False)
    assert probe.ask("launch plain busy_1us")[0] == 0  # it keeps its turn
    desk.open()
    desk.recall()
    probe.tell("launch plain busy_1us")
    again = attach(desk, probe)
    assert again.holding
    returned = desk.take_until(m.Return)
    assert isinstance(returned, m.Return) and returned.wants_more
    desk.grant()
    assert probe.answer()[0] == 0
    assert probe.said() == ""


def test_the_turn_goes_back_when_the_program_ends(start: Start, desk: Desk) -> None:
    probe = start()
    hold(desk, probe)
    probe.__exit__()
    returned = desk.take_until(m.Return)
    assert isinstance(returned, m.Return) and not returned.wants_more


def test_u4_a_program_whose_turns_the_agent_takes_is_left_to_it(built: Built, desk: Desk) -> None:
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
    desk.words[wire.H_CAP] = 100 * MIB
    done = subprocess.run(  # nobody answers the desk's socket: one who asked would wait for ever
        [sys.executable, "-c", script], env=job(built, desk), capture_output=True, text=True, timeout=20
    )
    assert (done.stdout.split(), done.stderr) == (["0", "2"], "")
