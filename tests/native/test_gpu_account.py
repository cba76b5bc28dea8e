"""The CUDA guest where its account is in trouble: no slot left, another pid namespace, processes that were killed in
the middle of something, a driver that lacks entry points, memory that was freed behind its back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from carpool.wire import page as wire
from carpool.wire.page import Page, slot_base
from tests.native import probe as probes
from tests.native.gpu import MIB, OUT_OF_MEMORY, SHARED, Built, Probe, busy_ns, environment, live_bytes
from tests.native.probe import NATIVE, compile_c
from tests.native.scripts import Script

CAP = 100 * MIB
OWN = wire.own_namespace() << wire.NAMESPACE_SHIFT
Start = Callable[..., Probe]


@pytest.fixture
def start(built: Built, page: Page, books: Path, tmp_path: Path) -> Iterator[Start]:
    page.words[wire.H_CAP] = CAP
    with ExitStack() as stack:
        made: list[Probe] = []

        def begin(**settings: str) -> Probe:
            env = environment(built, books, page=page.path) | settings
            made.append(stack.enter_context(Probe(built, env, tmp_path / f"log{len(made)}")))
            return made[-1]

        yield begin


# No slot


def test_a_process_without_a_slot_pays_for_its_launches_like_the_others(
    start: Start, page: Page, books: Path
) -> None:
    page.words[wire.H_CAP] = 0
    page.words[wire.H_PRICE] = 4 * wire.PRICE_ONE
    for slot in range(1, wire.FIRST_LENT):
        page.words[slot_base(slot) + wire.S_FLAGS] = OWN
        page.words[slot_base(slot) + wire.S_PID] = os.getpid()
    probe = start(CARPOOL_IS_CAPPED="0")
    assert probe.ask("loop 1500 10 busy_1ms")[0] == 0
    assert busy_ns(books, probe.pid) < 600_000_000  # a quarter of 1.5 s, and the burst
    assert page.words[wire.H_PAID_UNTIL] > 0
    said = probe.said()
    assert "every slot of the shared page is taken" in said and "it takes no turns" in said
    assert said.count("\n") == 1 and "no compute limit" not in said


def test_a_process_that_cannot_open_the_page_says_that_it_has_no_compute_limit(start: Start, page: Page) -> None:
    page.words[wire.H_LAYOUT] = 99
    probe = start(CARPOOL_IS_CAPPED="0")
    assert probe.ask("launch plain busy_1us")[0] == 0
    assert probe.said().endswith("it takes no turns and has no compute limit\n")


# Pid namespaces


@pytest.fixture
def inside(built: Built, page: Page, books: Path, tmp_path: Path) -> Iterator[probes.Probe]:
    """A probe in a pid namespace of its own, where it is process 1."""
    enter = ["unshare", "--pid", "--fork"]
    if subprocess.run([*enter, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine allows no pid namespace: processes of another one are NOT tried")
    env = environment(built, books, page=page.path)
    preload = f"LD_PRELOAD={env.pop('LD_PRELOAD')}"
    with probes.Probe([*enter, "env", preload, built.probe, "link"], env, tmp_path / "inside") as probe:
        yield probe


def test_a_process_in_another_pid_namespace_buries_nobody(start: Start, inside: probes.Probe, page: Page) -> None:
    outside = start()
    assert inside.first == (0, 1)
    assert outside.alloc("plain", 0, 60 * MIB) == 0
    assert inside.ask(f"alloc plain 0 {60 * MIB}")[0] == OUT_OF_MEMORY
    assert live_bytes(page, outside.pid) == 60 * MIB
    assert inside.ask(f"alloc plain 0 {30 * MIB}")[0] == 0
    assert outside.alloc("plain", 1, 20 * MIB) == OUT_OF_MEMORY  # nor does who is outside bury who is inside
    assert inside.ask("free 0 0")[0] == 0
    assert outside.alloc("plain", 1, 40 * MIB) == 0


def test_a_pid_of_another_namespace_is_not_taken_for_ones_own(
    request: pytest.FixtureRequest, page: Page, books: Path
) -> None:
    base = slot_base(3)
    page.words[wire.H_SLOTS_USED] = 4
    for word, value in ((wire.S_FLAGS, OWN), (wire.S_LIVE, 7 * MIB), (wire.S_PID, 1)):
        page.words[base + word] = value
    inside = request.getfixturevalue("inside")
    assert inside.first == (0, 1)
    assert page.words[base + wire.S_LIVE] == 7 * MIB
    assert page.slot_of(1) == 3  # of the two whose process is 1, the one of this namespace


# Killed in the middle of something

STATES = {
    "while it held": {wire.S_LIVE: 90 * MIB, wire.S_PEAK: 90 * MIB},
    "while it asked for bytes": {wire.S_LIVE: 90 * MIB, wire.S_PENDING: 80 * MIB},
    "while it stood aside": {wire.S_LIVE: 10 * MIB, wire.S_PENDING: 90 * MIB, wire.S_FLAGS: wire.FLAG_ASIDE},
    "while it had its turn": {wire.S_LIVE: 90 * MIB, wire.S_LEASE: wire.LEASE_HELD, wire.S_FLAGS: wire.FLAG_PACED},
    "while it freed what it never had": {wire.S_LIVE: (1 << 64) - 90 * MIB},
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
def test_q2_a_killed_process_leaves_nothing_behind(start: Start, page: Page, state: dict[int, int]) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as victim:
        page.words[wire.H_SLOTS_USED] = 10
        for word, value in (state | {wire.S_FLAGS: state.get(wire.S_FLAGS, 0) | OWN, wire.S_PID: victim.pid}).items():
            page.words[slot_base(9) + word] = value
        victim.kill()
    probe = start()
    assert probe.alloc("plain", 0, CAP) == 0
    assert probe.alloc("plain", 1, MIB) == OUT_OF_MEMORY
    assert page.words[slot_base(9) + wire.S_PID] == 0
    assert page.words[slot_base(9) + wire.S_LIVE] == 0


def test_c4_the_trial_of_a_killed_process_is_not_waited_for(start: Start, page: Page) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as victim:
        victim.kill()
    probe = start()
    page.words[wire.H_PRICE] = wire.PRICE_ONE
    page.words[wire.H_TRIAL] = ((1 << 62) & ~wire.TRIAL_PID) | victim.pid
    assert probe.ask("loop 200 10 busy_1ms")[1] > 20


# What the driver lacks, and what it does not tell


def test_a_driver_without_an_entry_point_is_named_if_the_guest_needs_it(
    built: Built, page: Page, books: Path, tmp_path: Path
) -> None:
    older = tmp_path / "older"
    older.mkdir()
    hide = tmp_path / "hide"
    hide.write_text("{ local: cuGraphUpload; cuGraphUpload_ptsz; cuStreamGetCtx; cuEventElapsedTime; };\n")
    link = f"-Wl,-Bsymbolic,-soname,libcuda.so.1,--version-script={hide}"
    compile_c(older / "libcuda.so.1", *SHARED, NATIVE / "fake" / "cuda.c", link)
    found_there = {"LD_LIBRARY_PATH": f"{older}:{built.place}"}
    env = environment(built, books, page=page.path) | found_there
    page.words[wire.H_CAP] = CAP
    unlimited = environment(built, books) | found_there
    with Script(unlimited, "print(hasattr(cuda, 'cuGraphUpload'), hasattr(cuda, 'cuGraphLaunch'))") as script:
        assert script.end() == "False True\n"
    with Probe(built, env, tmp_path / "log") as probe:
        assert probe.alloc("graph", 0, 60 * MIB) == 0
        assert probe.alloc("plain", 1, 60 * MIB) == OUT_OF_MEMORY
        assert probe.alloc("plain", 1, 30 * MIB) == 0
        assert probe.said().count("carpool: this driver has no cuEventElapsedTime: ") == 1
        assert probe.said().count("carpool: ") == 1, "what only the program calls it does not find either"


def test_utilisation_is_the_whole_cards(built: Built, page: Page, books: Path, start: Start) -> None:
    page.words[wire.H_PRICE] = 4 * wire.PRICE_ONE
    script = """
import time
class Rates(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]
nvml, card, rates = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), Rates()
assert nvml.nvmlInit_v2() == nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card)) == 0
def look():
    assert nvml.nvmlDeviceGetUtilizationRates(card, ctypes.byref(rates)) == 0
    return rates.gpu
wait()
look()
time.sleep(0.3)
print(look())
"""
    bare = environment(built, books)
    del bare["LD_PRELOAD"]
    with Script(environment(built, books, page=page.path), script) as limited, Script(bare, script) as neighbour:
        for one in (limited, neighbour):
            assert one.line() == "ready"
        with Script(bare, "launch(b'busy_30s')\nwait()") as busy:
            assert busy.line() == "ready"
            for one in (limited, neighbour):
                one.go()
                assert int(one.line()) > 70


def test_memory_freed_where_nobody_saw_it_is_given_back_when_its_address_is_given_again(
    built: Built, page: Page, books: Path
) -> None:
    page.words[wire.H_CAP] = CAP
    text = """
import os
place = [line.split()[-1] for line in open("/proc/self/maps") if "stub_cuda" in line][0]
base = min(int(line.split("-")[0], 16) for line in open("/proc/self/maps") if line.split()[-1] == place)
import subprocess
found = [line.split() for line in subprocess.run(["nm", "-D", place], env={"PATH": os.environ["PATH"]},
         capture_output=True, text=True).stdout.splitlines() if line.endswith(" cuMemFree_v2")]
unseen = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_ulonglong)(base + int(found[0][0], 16))
assert allocate(8192) == 0
first = at.value
assert unseen(first) == 0 and allocate(8192) == 0 and at.value == first
print(os.getpid())
wait()
assert cuda.cuMemFree_v2(at) == 0
wait()
"""
    with Script(environment(built, books, page=page.path), text) as script:
        pid = int(script.line())
        assert script.line() == "ready"
        assert live_bytes(page, pid) == 8192
        script.go()
        assert script.line() == "ready"
        assert live_bytes(page, pid) == 0


def test_a_captured_free_of_ordinary_memory_is_refused_and_it_stays_counted(
    built: Built, page: Page, books: Path
) -> None:
    page.words[wire.H_CAP] = CAP
    text = """
import os
stream, graph, node = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_ulonglong()
assert allocate(8192) == cuda.cuStreamCreate(ctypes.byref(stream), 1) == cuda.cuStreamBeginCapture_v2(stream, 2) == 0
print(cuda.cuMemFreeAsync(at, stream))
assert cuda.cuMemAllocAsync(ctypes.byref(node), ctypes.c_size_t(8192), stream) == 0
assert cuda.cuMemFreeAsync(node, stream) == 0
print(cuda.cuStreamEndCapture(stream, ctypes.byref(graph)))
print(os.getpid())
wait()
"""
    with Script(environment(built, books, page=page.path), text) as script:
        assert (script.line(), script.line()) == ("1", "0")
        assert live_bytes(page, int(script.line())) == 8192
