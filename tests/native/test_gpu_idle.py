"""When the CUDA guest calls a process idle, and what it waits for before a turn goes back: all of its streams, in all
of its contexts. A scripted daemon looks at the flag and takes the messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from carpool.wire import messages as m
from carpool.wire import page as wire
from carpool.wire.page import slot_base
from tests.agent.fake_daemon import FakeDaemon
from tests.native.gpu import Built
from tests.native.scripts import Script
from tests.native.test_gpu_turns import job

HELPERS = """
import threading, time
def stream():
    made = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(made), 1) == 0
    return made

def second_context():
    made = ctypes.c_void_p()
    assert cuda.cuCtxCreate_v2(ctypes.byref(made), 0, 0) == 0
    return made

def run(name, on=None, launch=cuda.cuLaunchKernel):
    assert launch(find(name.encode()), 1, 1, 1, 1, 1, 1, 0, on, None, None) == 0

def copy_back():
    assert cuda.cuMemcpyDtoH_v2(ctypes.byref(word), at, ctypes.c_size_t(4)) == 0

def begin(on):
    return cuda.cuStreamBeginCapture_v2(on, 2)

def end(on):
    graph = ctypes.c_void_p()
    return cuda.cuStreamEndCapture(on, ctypes.byref(graph))

a, b, event, word = stream(), stream(), ctypes.c_void_p(), ctypes.c_int()
assert allocate(4) == cuda.cuEventCreate(ctypes.byref(event), 0) == cuda.cuEventRecord(event, b) == 0
"""
Start = Callable[[str], Script]


@pytest.fixture
def start(built: Built, daemon: FakeDaemon) -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda text: stack.enter_context(Script(job(built, daemon), HELPERS + text))


def attach(daemon: FakeDaemon) -> None:
    message = daemon.accept()
    assert isinstance(message, m.Attach)
    daemon.base = slot_base(message.slot)


def is_idle(daemon: FakeDaemon) -> bool:
    return bool(daemon.words[daemon.base + wire.S_FLAGS] & wire.FLAG_IDLE)


BUSY = {
    "an event of another stream": "run('busy_3s', a); cuda.cuEventSynchronize(event)",
    "another stream": "run('busy_3s', a); cuda.cuStreamSynchronize(b)",
    "the default stream": "run('busy_3s', a); cuda.cuStreamSynchronize(None)",
    "a copy of four bytes": "run('busy_3s', a); copy_back()",
    "the rest, after the stream was destroyed": """
run('busy_3s', a), cuda.cuStreamDestroy_v2(a), cuda.cuStreamSynchronize(b)""",
    "one context of two": """
other = second_context()
run('busy_3s', stream()), cuda.cuCtxSetCurrent(context), cuda.cuCtxSynchronize()""",
    "another stream than that of a green context": """
green, there = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuGreenCtxCreate(ctypes.byref(green), None, 0, 0) == 0
assert cuda.cuGreenCtxStreamCreate(ctypes.byref(there), green, 0, 0) == 0
run('busy_3s', there), cuda.cuStreamSynchronize(b)""",
    "one of more streams than are known": """
many = [stream() for _ in range(80)]
run('busy_3s', many[-1]), cuda.cuStreamSynchronize(b)""",
    "another stream than the thread's own": """
run('busy_1us', a), run('busy_3s', None, cuda.cuLaunchKernel_ptsz), cuda.cuStreamSynchronize(a)""",
    "another stream than the thread's own, which copies": """
run('busy_1us', a)
assert allocate(4096) == cuda.cuMemcpyDtoDAsync_v2_ptsz(at, at, ctypes.c_size_t(4096), None) == 0
cuda.cuStreamSynchronize(a)""",
}
IDLE = {
    "the stream": "run('busy_20ms', a); cuda.cuStreamSynchronize(a)",
    "an event after it": "run('busy_20ms', a); cuda.cuEventRecord(event, a); cuda.cuEventSynchronize(event)",
    "the context": "run('busy_20ms', a); cuda.cuCtxSynchronize()",
    "another stream, later": "run('busy_1ms', a); time.sleep(0.05); cuda.cuStreamSynchronize(b)",
    "a copy of what was computed": "run('busy_1ms'); copy_back()",
    "both of two contexts": """
other = second_context()
run('busy_20ms', stream()), cuda.cuCtxSynchronize(), cuda.cuCtxSetCurrent(context), cuda.cuCtxSynchronize()""",
    "the context, with more streams than are known": """
many = [stream() for _ in range(80)]
run('busy_20ms', many[-1]), cuda.cuCtxSynchronize()""",
    "the context, after the thread's own stream": """
run('busy_20ms', None, cuda.cuLaunchKernel_ptsz), cuda.cuCtxSynchronize()""",
    "the first one, then the other": "run('busy_20ms', a); cuda.cuStreamSynchronize(b), cuda.cuStreamSynchronize(a)",
}


@pytest.mark.parametrize("text", BUSY.values(), ids=BUSY.keys())
def test_u2_a_process_with_a_kernel_in_flight_is_not_idle_after_a_wait_for(
    start: Start, daemon: FakeDaemon, text: str
) -> None:
    script = start(f"{text}\nwait()")
    attach(daemon)
    daemon.answer(m.Ask)
    assert script.line() == "ready"
    assert daemon.words[daemon.base + wire.S_STEPS] == 1  # a wait it was
    assert not is_idle(daemon)


@pytest.mark.parametrize("text", IDLE.values(), ids=IDLE.keys())
def test_u2_a_process_is_idle_after_it_waited_for(start: Start, daemon: FakeDaemon, text: str) -> None:
    script = start(f"{text}\nwait()\nrun('busy_1us', a)\nwait()")
    attach(daemon)
    daemon.answer(m.Ask)
    assert script.line() == "ready"
    assert is_idle(daemon)
    script.go()
    assert script.line() == "ready"
    assert not is_idle(daemon)  # it launched again


@pytest.mark.parametrize("then", ["run('busy_1us')", "cuda.cuStreamSynchronize(None)"], ids=["a launch", "a wait"])
def test_u2_a_recalled_turn_goes_back_when_every_context_has_finished(
    start: Start, daemon: FakeDaemon, then: str
) -> None:
    script = start(f"""
there = stream()
other = second_context()
run('busy_1us')
wait()
cuda.cuCtxSetCurrent(context), run('busy_800ms', there), cuda.cuCtxSetCurrent(other)
wait()
{then}
""")
    attach(daemon)
    daemon.answer(m.Ask)
    assert script.line() == "ready"
    script.go()
    assert script.line() == "ready"
    started = time.monotonic()
    daemon.recall()
    script.go()
    daemon.take_until(m.Return)
    assert time.monotonic() - started > 0.6


ENDS = {
    "a context of its own": "other = second_context(); begin(stream()); cuda.cuCtxDestroy_v2(other)",
    "the primary context": """
begin(stream()), cuda.cuDevicePrimaryCtxReset_v2(0)
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0""",
}


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS.keys())
def test_turns_are_taken_again_after_a_context_ended_during_a_capture(
    start: Start, daemon: FakeDaemon, text: str
) -> None:
    script = start(f"{text}\ncuda.cuCtxSetCurrent(context)\nrun('busy_1us')\nwait()")
    attach(daemon)
    daemon.answer(m.Ask)
    assert script.line() == "ready"


def test_u3_a_launch_beside_a_capture_asks_for_a_turn_and_leaves_the_capture_whole(
    start: Start, daemon: FakeDaemon
) -> None:
    script = start("assert begin(a) == 0; run('busy_1us', a); wait(); run('busy_1us', b); print(end(a)); wait()")
    assert script.line() == "ready"  # the captured launch passed
    script.go()
    attach(daemon)
    daemon.answer(m.Ask)
    assert script.line() == "0"
    assert script.line() == "ready"


def test_u3_a_turn_that_is_recalled_during_a_capture_goes_back_after_it(start: Start, daemon: FakeDaemon) -> None:
    script = start("""
run('busy_1us', b), begin(a)
wait()
run('busy_1us', b), cuda.cuStreamSynchronize(b), print(end(a))
wait()
run('busy_1us', b)
wait()
""")
    attach(daemon)
    daemon.answer(m.Ask)
    assert script.line() == "ready"
    daemon.recall()
    script.go()
    assert script.line() == "0"  # nothing broke it
    assert script.line() == "ready"
    assert daemon.lease == wire.LEASE_HELD
    script.go()
    daemon.answer(m.Return)
    assert script.line() == "ready"
