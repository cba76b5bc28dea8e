"""Ways past the limits that programs found without meaning to, and sentences that got lost; each is closed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from carpool.bench.node import PROGRAMS
from carpool.wire import messages as m
from carpool.wire import page as wire
from carpool.wire.page import PRICE_ONE, Page, slot_base
from tests.agent.fake_daemon import FakeDaemon
from tests.native.gpu import MIB, SHARED, Built, busy_ns, environment, live_bytes, true_bytes
from tests.native.probe import compile_c
from tests.native.scripts import PRELUDE, Script
from tests.native.test_gpu_turns import job

Run = Callable[..., Script]

STREAMS = """
S, P = ctypes.c_size_t, ctypes.c_void_p
def stream():
    made = P()
    assert cuda.cuStreamCreate(ctypes.byref(made), 0) == 0
    return made
def graph_of(captured):
    made = P()
    assert cuda.cuGraphInstantiateWithFlags(ctypes.byref(made), captured, ctypes.c_ulonglong(0)) == 0
    return made
"""


@pytest.fixture
def page(page: Page) -> Page:
    page.words[wire.H_CAP] = 1024 * MIB
    return page


@pytest.fixture
def run(built: Built, page: Page, books: Path) -> Iterator[Run]:
    with ExitStack() as stack:

        def start(text: str, **more: str) -> Script:
            env = environment(built, books, cards="1x8GiB", page=page.path) | more
            return stack.enter_context(Script(env, STREAMS + text))

        yield start


# Memory.


def test_a_captured_allocation_that_can_never_be_had_is_refused(run: Run) -> None:
    text = """
into, graph = stream(), P()
assert cuda.cuStreamBeginCapture_v2(into, 0) == 0
print(*(cuda.cuMemAllocAsync(ctypes.byref(at), S(size << 20), into) for size in (3000, 3)))
print(cuda.cuStreamEndCapture(into, ctypes.byref(graph)), cuda.cuGraphLaunch(graph_of(graph), into))
"""
    assert run(text).end().split() == ["2", "0", "0", "0"]


GRAPHS = """
class Node(ctypes.Structure):
    _fields_ = [("pool", ctypes.c_char * 88), ("d", P), ("n", S), ("size", S), ("dptr", ctypes.c_ulonglong)]
def graph(count, make=graph_of):
    made, node, params = P(), P(), Node(size=600 << 20)
    assert cuda.cuGraphCreate(ctypes.byref(made), 0) == 0
    for _ in range(count):
        assert cuda.cuGraphAddMemAllocNode(ctypes.byref(node), made, None, S(0), ctypes.byref(params)) == 0
    return make(made)
"""


def test_graphs_get_no_more_together_than_the_cap(run: Run, page: Page, books: Path) -> None:
    text = """
into, two, one, other = stream(), graph(2), graph(1), graph(1)
print(cuda.cuGraphLaunch(two, into), cuda.cuGraphLaunch(one, into), cuda.cuGraphLaunch(one, into))
print(cuda.cuGraphLaunch(other, into), cuda.cuGraphExecDestroy(one), cuda.cuGraphLaunch(other, into), flush=True)
wait()
"""
    script = run(GRAPHS + text)
    assert script.line() == "2 0 0", "two nodes at once are too much for one graph"
    assert script.line() == "2 0 0", "and so is a second graph, until the first is gone"
    pid = script.process.pid
    assert script.line() == "ready"
    assert live_bytes(page, pid) == true_bytes(books)[pid] == 600 * MIB


def test_a_graph_that_has_its_memory_is_launched_whatever_became_of_the_cap(run: Run, page: Page) -> None:
    script = run(
        GRAPHS + "one, into = graph(1), stream()\nprint(cuda.cuGraphLaunch(one, into)), wait()\n"
        "print(cuda.cuGraphLaunch(one, into), allocate(1 << 20))\n"
    )
    assert (script.line(), script.line()) == ("0", "ready")
    page.words[wire.H_CAP] = 500 * MIB
    script.go()
    assert script.line() == "0 2"


@pytest.mark.parametrize("how", ["cuGraphUpload", "cuGraphUpload_ptsz", "cuGraphInstantiateWithParams"])
def test_graphs_that_are_mapped_without_a_launch_are_counted(run: Run, page: Page, books: Path, how: str) -> None:
    text = f"""
class Params(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_ulonglong), ("stream", P), ("node", P), ("result", ctypes.c_int)]
def upload(made):
    run, params = P(), Params(flags=2)
    if {how!r} == "cuGraphInstantiateWithParams":
        assert cuda.cuGraphInstantiateWithParams(ctypes.byref(run), made, ctypes.byref(params)) == 0
        return cuda.cuGraphLaunch(run, None)
    return cuda.{how}(graph_of(made), None)
print(*map(upload, [graph(1, lambda made: made) for _ in range(3)]), flush=True)
wait()
"""
    script = run(GRAPHS + text)
    # What was mapped and not launched gives way to the next; what was launched does not.
    assert script.line() == ("0 2 2" if how == "cuGraphInstantiateWithParams" else "0 0 0")
    pid = script.process.pid
    assert live_bytes(page, pid) == true_bytes(books)[pid] == 600 * MIB


def test_what_a_pool_gave_is_counted_after_the_end_of_the_context_it_was_asked_in(
    run: Run, page: Page, books: Path
) -> None:
    text = """
codes = []
for _ in range(3):
    other = P()
    assert cuda.cuCtxCreate_v2(ctypes.byref(other), 0, 0) == 0
    codes.append(cuda.cuMemAllocAsync(ctypes.byref(at), S(900 << 20), None))
    assert cuda.cuCtxDestroy_v2(other) == 0 and cuda.cuCtxSetCurrent(context) == 0
print(codes, flush=True)
wait()
"""
    script = run(text)
    assert script.line() == "[0, 2, 2]"
    pid = script.process.pid
    assert live_bytes(page, pid) == true_bytes(books)[pid] == 900 * MIB


def test_memory_of_a_green_context_is_counted_after_its_end(run: Run, page: Page, books: Path) -> None:
    """It is the primary context's, as the driver's documentation of cuCtxFromGreenCtx says."""
    text = """
codes = []
for _ in range(2):
    green, own = P(), P()
    assert cuda.cuGreenCtxCreate(ctypes.byref(green), None, 0, 1) == 0
    assert cuda.cuCtxFromGreenCtx(ctypes.byref(own), green) == 0 and cuda.cuCtxSetCurrent(own) == 0
    codes.append(allocate(900 << 20))
    assert cuda.cuCtxSetCurrent(context) == 0 and cuda.cuGreenCtxDestroy(green) == 0
print(codes, flush=True)
wait()
"""
    script = run(text)
    assert script.line() == "[0, 2]"
    pid = script.process.pid
    assert script.line() == "ready"
    assert live_bytes(page, pid) == true_bytes(books)[pid] == 900 * MIB


def test_a_handle_found_by_an_address_inside_a_mapping_keeps_its_bytes_counted(
    run: Run, page: Page, books: Path
) -> None:
    text = """
class Prop(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("where", ctypes.c_int * 2), ("rest", P * 2)]
prop, zero, size = Prop(type=1, where=(1, 0)), ctypes.c_ulonglong(0), S(600 << 20)
def hide():
    made, again, place = ctypes.c_ulonglong(), ctypes.c_ulonglong(), ctypes.c_ulonglong()
    code = cuda.cuMemCreate(ctypes.byref(made), size, ctypes.byref(prop), zero)
    if code:
        return code
    assert cuda.cuMemAddressReserve(ctypes.byref(place), size, S(0), zero, zero) == 0
    assert cuda.cuMemMap(place, size, S(0), made, zero) == 0 and cuda.cuMemRelease(made) == 0
    inside = P(place.value + (2 << 20))
    assert cuda.cuMemRetainAllocationHandle(ctypes.byref(again), inside) == 0 and again.value == made.value
    assert cuda.cuMemUnmap(place, size) == 0
    return cuda.cuMemMap(place, size, S(0), again, zero) or cuda.cuMemRelease(again)
print(hide(), hide(), flush=True)
wait()
"""
    script = run(text)
    assert script.line() == "0 2"
    pid = script.process.pid
    assert live_bytes(page, pid) == true_bytes(books)[pid] == 600 * MIB


def test_answers_that_overwrite_what_was_asked_leave_the_account_right(run: Run, page: Page, books: Path) -> None:
    """The driver writes its answer where the question stands, or two answers into one place."""
    text = """
props = (ctypes.c_int * 22)(1, 0, 1, 0)
inside = ctypes.byref(props, 8)
assert cuda.cuMemPoolCreate(inside, props) == 0
pool = P.from_buffer_copy(bytes(props)[8:16])
word, codes = ctypes.byref(ctypes.c_ulonglong()), []
for _ in range(2):
    codes.append(cuda.cuMemAllocFromPoolAsync(ctypes.byref(at), S(500 << 20), pool, None))
    codes.append(cuda.cuMemAllocPitch_v2(word, word, S(1 << 20), S(500), 4))
print(*codes, flush=True)
wait()
"""
    script = run(text)
    assert script.line() == "0 0 2 2"
    pid = script.process.pid
    assert live_bytes(page, pid) == true_bytes(books)[pid] == 1000 * MIB


FLIPPER = """
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuMemPoolCreate(void **, const void *);
int cuMemAllocFromPoolAsync(unsigned long long *, size_t, void *, void *);
static volatile int props[22] = {1, 0, 1, 0}, is_over;
static void *flip(void *none) {
    while (!is_over)
        props[2] = 1, props[2] = 2; /* on the device, on the host */
    return none;
}
int main(void) {
    void *context, *pool;
    pthread_t thread;
    unsigned long long at;
    cuInit(0), cuDevicePrimaryCtxRetain(&context, 0), cuCtxSetCurrent(context);
    pthread_create(&thread, NULL, flip, NULL);
    for (time_t end = time(NULL) + 3; time(NULL) < end;)
        if (cuMemPoolCreate(&pool, (void *)props) == 0)
            cuMemAllocFromPoolAsync(&at, 8 << 20, pool, NULL);
    is_over = 1;
    puts("ready"), fflush(stdout);
    return getchar();
}
"""


def test_properties_that_another_thread_changes_do_not_pass_the_cap(
    built: Built, page: Page, books: Path, tmp_path: Path
) -> None:
    source = tmp_path / "flipper.c"
    source.write_text(FLIPPER)
    program = compile_c(tmp_path / "flipper", source, built.place / "libcuda.so.1", "-lpthread")
    page.words[wire.H_CAP] = 64 * MIB
    env, pipe = environment(built, books, page=page.path), subprocess.PIPE
    with subprocess.Popen([program], env=env, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert true_bytes(books).get(process.pid, 0) <= 64 * MIB
        process.communicate("\n", timeout=20)


def test_a_linked_library_that_looks_behind_itself_finds_the_limited_function(
    built: Built, page: Page, books: Path
) -> None:
    env = environment(built, books, page=page.path)
    page.words[wire.H_CAP] = 256 * MIB
    command = [sys.executable, "-S", str(PROGRAMS / "attack.py"), str(256 * MIB), "door_next"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == {"attack": "door_next", "held_bytes": 192 * MIB, "why": ""}


def test_the_steps_of_a_process_outlast_it(run: Run, page: Page) -> None:
    """The daemon reads them when it has ended; that they are fewer then would mean that some were none."""
    script = run("wait()")
    assert script.line() == "ready"
    slot = page.slot_of(script.process.pid)
    assert slot is not None
    page.words[slot_base(slot) + wire.S_STEPS] = 6
    script.go()
    script.end()
    assert page.slot_of(script.process.pid) is None
    assert page.words[slot_base(slot) + wire.S_STEPS] == 6


# Device time.

SHARES = """
import time
def kernel_of(name):
    made = P()
    assert cuda.cuModuleLoadData(ctypes.byref(module), b"any image") == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(made), module, name) == 0
    return made
def launch_for(seconds, kernel):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
    return cuda.cuCtxSynchronize()
"""


def share(script: Script, books: Path, seconds: float) -> float:
    """What part of the device, in percent, a program has between two waits that are so far apart."""
    assert script.line() == "ready"
    before = busy_ns(books, script.process.pid)
    script.go()
    assert script.line() == "ready"
    return (busy_ns(books, script.process.pid) - before) / 1e7 / seconds


def test_a_second_context_is_under_the_compute_limit_too(run: Run, page: Page, books: Path) -> None:
    page.words[wire.H_PRICE] = 4 * PRICE_ONE
    text = """
launch_for(0.3, kernel_of(b"busy_1ms"))
other = P()
assert cuda.cuCtxCreate_v2(ctypes.byref(other), 0, 0) == 0
kernel = kernel_of(b"busy_5ms")
launch_for(0.2, kernel), wait()
launch_for(1.0, kernel), wait()
"""
    assert share(run(SHARES + text), books, 1.0) < 40


@pytest.mark.parametrize("name", ["CARPOOL_AGENT", "CARPOOL_PAGE"])
def test_no_variable_lifts_the_compute_limit(run: Run, page: Page, books: Path, name: str) -> None:
    page.words[wire.H_PRICE] = 4 * PRICE_ONE
    text = f"""
import os
os.environ["{name}"] = str(os.getpid())
kernel = kernel_of(b"busy_5ms")
launch_for(0.2, kernel), wait()
launch_for(1.0, kernel), wait()
"""
    assert share(run(SHARES + text), books, 1.0) < 40


# Turns.


@pytest.fixture
def hold(built: Built, daemon: FakeDaemon) -> Iterator[Callable[[str], Script]]:
    """A program that has its first turn; it waits then."""
    with ExitStack() as stack:

        def start(text: str) -> Script:
            script = stack.enter_context(Script(job(built, daemon), STREAMS + 'launch(b"busy_1us"), wait()\n' + text))
            attached = daemon.accept()
            assert isinstance(attached, m.Attach)
            daemon.base = slot_base(attached.slot)
            daemon.answer(m.Ask)
            assert script.line() == "ready"
            return script

        yield start


def test_a_capture_whose_stream_was_destroyed_is_over(hold: Callable[[str], Script], daemon: FakeDaemon) -> None:
    script = hold("""
into = stream()
cuda.cuStreamBeginCapture_v2(into, 2), cuda.cuStreamDestroy_v2(into)
wait()
print(launch(b"busy_1us"))
""")
    script.go()
    assert script.line() == "ready"
    daemon.recall()
    script.go()
    daemon.answer(m.Return)
    assert script.line() == "0"


def test_the_end_of_a_capture_that_never_began_ends_no_other(
    hold: Callable[[str], Script], daemon: FakeDaemon
) -> None:
    script = hold("""
into, graph = stream(), P()
print(cuda.cuStreamBeginCapture_v2(into, 0), cuda.cuStreamEndCapture(stream(), ctypes.byref(graph)) != 0)
wait()
kernel = find(b"busy_1us")
print([cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, into, None, None) for _ in range(3)])
print(cuda.cuStreamEndCapture(into, ctypes.byref(graph)))
""")
    script.go()
    assert script.line() == "0 True"
    daemon.recall()
    assert script.line() == "ready"
    script.go()
    assert script.line() == "[0, 0, 0]", "nothing waits in a capture"
    assert script.line() == "0"


def test_a_copy_back_to_the_host_is_a_wait_for_the_device(hold: Callable[[str], Script], daemon: FakeDaemon) -> None:
    script = hold("""
host = (ctypes.c_char * 4096)()
assert allocate(4096) == 0 and launch(b"busy_1ms") == 0
cuda.cuMemcpyDtoH_v2(host, at, S(4096)), wait()
cuda.cuCtxSynchronize(), wait()
""")
    for steps in (1, 1):  # a second wait, with nothing launched since, is no other step
        script.go()
        assert script.line() == "ready"
        assert daemon.words[daemon.base + wire.S_FLAGS] & wire.FLAG_IDLE
        assert daemon.steps == steps


def test_a_forked_child_keeps_the_programs_files(hold: Callable[[str], Script]) -> None:
    script = hold("""
import os
os.closerange(3, 200)
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(6)]
if os.fork() == 0:
    print([os.fstat(each).st_size for each in files], flush=True)
    os._exit(0)
os.wait()
""")
    script.go()
    assert script.line() == "[0, 0, 0, 0, 0, 0]"


def test_the_agents_mark_is_of_one_program_and_gone_in_the_next(built: Built, daemon: FakeDaemon) -> None:
    """A torch program that executes another CUDA program in its place."""
    text = """
import os
from pathlib import Path
from carpool.wire import page
shared = page.Page.open(Path(os.environ["CARPOOL_PAGE"]))
page.raise_flag(shared.words, page.slot_base(shared.slot_of(os.getpid())), page.FLAG_AGENT)
print(launch(b"busy_1us"), flush=True)
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""
    other = PRELUDE + 'print(launch(b"busy_1us"), flush=True)\n'
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + text, other], env=job(built, daemon), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n", "nobody answered the daemon's socket: it asked nobody"
        attached = daemon.accept()
        assert isinstance(attached, m.Attach) and attached.pid == process.pid
        daemon.answer(m.Ask)
        assert process.stdout.readline() == "0\n"


# Other libraries, and sentences.

WRAPPER = """
#include <dlfcn.h>
#include <stddef.h>
int cuMemAlloc_v2(unsigned long long *at, size_t size) {
    int (*real)(unsigned long long *, size_t);
    *(void **)&real = dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuMemAlloc_v2");
    return real(at, size);
}
"""


def test_a_library_with_some_of_the_drivers_names_is_left_alone(
    built: Built, page: Page, books: Path, tmp_path: Path
) -> None:
    source = tmp_path / "wrapper.c"
    source.write_text(WRAPPER)
    wrapper = compile_c(tmp_path / "wrapper.so", *SHARED, "-fvisibility=default", source)
    first = f"import ctypes\nwrapped = ctypes.CDLL({str(wrapper)!r}).cuMemAlloc_v2\n"
    last = "print(*(wrapped(ctypes.byref(at), ctypes.c_size_t(size << 20)) for size in (600, 600)))\n"
    done = subprocess.run(
        [sys.executable, "-c", first + PRELUDE + last],
        env=environment(built, books, page=page.path),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.stdout, done.stderr) == ("0 2\n", ""), "its calls are counted where they reach the driver"


def test_a_second_driver_is_named_and_its_calls_go_to_the_first(run: Run, built: Built, tmp_path: Path) -> None:
    shutil.copy(built.place / "stub_cuda.so", tmp_path / "libcuda.so.1")
    script = run(f"""
other = ctypes.CDLL({str(tmp_path / "libcuda.so.1")!r})
print(*(other.cuMemAlloc_v2(ctypes.byref(at), S(600 << 20)) for _ in range(2)))
""")
    out, err = script.process.communicate(timeout=30)
    assert out == "0 2\n"
    assert err == f"carpool: {tmp_path / 'libcuda.so.1'} is not used: calls go to the driver that was found first\n"


def test_every_trouble_is_said_once_not_only_the_first(run: Run, tmp_path: Path) -> None:
    script = run(
        'print(launch(b"busy_1us"), launch(b"busy_1us"), allocate(700 << 20), allocate(700 << 20))\n',
        CARPOOL_JOB="j",
        CARPOOL_SOCKET=str(tmp_path / "none"),
        CARPOOL_MAY_OVERSUBSCRIBE="1",
    )
    out, err = script.process.communicate(timeout=30)
    assert out == "0 0 0 0\n"
    assert [line[:30] for line in err.splitlines()] == [
        "carpool: job j: no daemon answ",
        "carpool: job j: there is no ro",
    ]


def test_u3_a_capture_that_does_not_end_keeps_a_recalled_turn_for_a_moment_only(
    hold: Callable[[str], Script], daemon: FakeDaemon
) -> None:
    script = hold("""
import threading, time
into, other, graph, said = stream(), stream(), P(), []
assert cuda.cuStreamBeginCapture_v2(into, 2) == 0
print("captures", flush=True), wait()
threading.Thread(target=lambda: said.append(sys.stdin.readline()), daemon=True).start()
end = time.monotonic() + 5.0
while not said and time.monotonic() < end:
    assert cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, other, None, None) == 0
print(cuda.cuStreamEndCapture(into, ctypes.byref(graph)), bool(said))
""")
    script.go()
    assert script.line() == "captures"
    assert script.line() == "ready"
    daemon.recall()
    script.go()
    daemon.answer(m.Return)
    script.go()
    assert script.line() == "0 True"  # the capture is whole, and was not over when the turn went back
