"""Failures that users of other interposers reported, each shown not to be ours; more of them are in test_gpu.py
(races, kills, codes, kinds and doors), test_gpu_cost.py and tests/e2e/test_gpu.py (forms of launches)."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from carpool.wire import page as wire
from carpool.wire.page import Page
from tests.native.gpu import MIB, OUT_OF_MEMORY, Built, Probe, environment, live_bytes, true_bytes
from tests.native.probe import compile_c
from tests.native.scripts import PRELUDE, Script

Start = Callable[..., Probe]


@pytest.fixture
def page(page: Page) -> Page:
    page.words[wire.H_CAP] = 1024 * MIB
    return page


@pytest.fixture
def env(built: Built, page: Page, books: Path) -> dict[str, str]:
    return environment(built, books, cards="1x8GiB", page=page.path)


@pytest.fixture
def start(built: Built, env: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:
        made = 0

        def make(door: str = "link", own: dict[str, str] | None = None) -> Probe:
            nonlocal made
            made += 1
            return stack.enter_context(Probe(built, own or env, tmp_path / f"log{made}", door))

        yield make


# The account.


def test_a_live_process_is_still_counted_after_others_ended_and_one_came(
    start: Start, page: Page, books: Path
) -> None:
    page.words[wire.H_CAP] = 4096 * MIB
    first, second, third = start(), start(), start()
    assert third.alloc("plain", 0, 500 * MIB) == 0
    first.__exit__()
    second.__exit__()
    newcomer = start()
    assert third.alloc("plain", 1, 2500 * MIB) == 0
    assert newcomer.alloc("plain", 0, 2500 * MIB) == OUT_OF_MEMORY
    assert newcomer.info() == (1096 * MIB, 4096 * MIB)
    assert live_bytes(page, third.pid) == true_bytes(books)[third.pid] == 3000 * MIB


def test_a_process_without_settings_does_not_lift_the_cap_of_the_others(
    start: Start, env: dict[str, str], page: Page
) -> None:
    stranger = start(
        own={name: value for name, value in env.items() if not name.startswith(("CARPOOL_PAGE", "CARPOOL_IS"))}
    )
    assert stranger.alloc("plain", 0, 1500 * MIB) == 0
    probe = start()
    assert probe.info()[1] == page.words[wire.H_CAP] == 1024 * MIB
    assert probe.alloc("plain", 0, 1500 * MIB) == OUT_OF_MEMORY


def test_freeing_twice_or_what_was_never_allocated_makes_no_bytes_out_of_nothing(
    env: dict[str, str], page: Page, books: Path
) -> None:
    script = """
assert allocate(1 << 20) == 0
print(cuda.cuMemFree_v2(at), cuda.cuMemFree_v2(at), cuda.cuMemFreeAsync(at, None), end=" ")
print(cuda.cuMemFree_v2(ctypes.c_ulonglong(4096)))
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(free.value, total.value)
wait()
"""
    with Script(env, script) as found:
        assert found.line() == "0 1 1 1"
        assert found.line() == f"{1024 * MIB} {1024 * MIB}"
        assert found.line() == "ready"
        assert live_bytes(page, found.process.pid) == true_bytes(books)[found.process.pid] == 0


def test_sizes_beyond_four_gibibytes_go_through_every_door(start: Start, page: Page, books: Path) -> None:
    page.words[wire.H_CAP] = 6 << 30
    for door in ("link", "dlsym", "proc", "thread"):
        probe = start(door)
        assert probe.alloc("plain", 0, 5 << 30) == 0, door
        assert live_bytes(page, probe.pid) == true_bytes(books)[probe.pid] == 5 << 30
        assert probe.free(0) == 0


@pytest.mark.slow
def test_forty_processes_that_start_at_once_all_find_their_place(start: Start, page: Page) -> None:
    page.words[wire.H_CAP] = 41 * MIB
    probes = [start() for _ in range(40)]
    for probe in probes:
        probe.tell(f"alloc plain 0 {MIB}")
    assert [probe.answer()[0] for probe in probes] == [0] * 40
    assert probes[0].info() == (MIB, 41 * MIB)
    assert len(page.pids()) == 40


# Figures.


def test_a_cap_lowered_below_what_is_held_gives_no_negative_figures(env: dict[str, str], page: Page) -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: the NVML view is NOT tested")
    script = """
import pynvml
assert allocate(600 << 20) == 0
wait()
pynvml.nvmlInit()
memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
free, total = ctypes.c_size_t(), ctypes.c_size_t()
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print(memory.total >> 20, memory.free >> 20, memory.used >> 20, total.value >> 20, free.value >> 20)
"""
    with Script(env, script) as found:
        assert found.line() == "ready"
        page.words[wire.H_CAP] = 200 * MIB
        found.go()
        assert found.line() == "200 0 200 200 0"


def test_without_a_cap_the_figures_are_the_cards(start: Start, page: Page) -> None:
    page.words[wire.H_CAP] = 0
    probe = start()
    assert probe.ask("total") == (0, 8 << 30)
    assert probe.info() == (8 << 30, 8 << 30)


# Manners.


def test_the_program_keeps_its_signals_its_umask_and_its_threads(env: dict[str, str]) -> None:
    script = """
import os, re, signal
assert allocate(4096) == 0 and launch(b"busy_1us") == 0 and cuda.cuCtxSynchronize() == 0
handlers = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGSEGV)]
status = open("/proc/self/status").read()
caught = int(re.search(r"SigCgt:\\t([0-9a-f]+)", status)[1], 16)
threads = len(os.listdir("/proc/self/task"))
print(oct(os.umask(0o77)), set(handlers) == {signal.SIG_DFL}, caught >> (signal.SIGUSR1 - 1) & 1, threads)
"""
    command = ["sh", "-c", f'umask 027; exec {sys.executable} -c "$0"']
    done = subprocess.run([*command, PRELUDE + script], env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0o27 True 0 1\n", "")


PROBING = """
null, nothing = None, ctypes.c_size_t(0)
class Prop(ctypes.Structure):
    _fields_ = [("words", ctypes.c_int * 8)]
handle, prop = ctypes.c_ulonglong(), Prop()
prop.words[0], prop.words[2] = 1, 3  # on the host's memory, as NCCL and llama.cpp ask
two = ctypes.c_size_t(2 << 20)
print(cuda.cuMemCreate(ctypes.byref(handle), two, ctypes.byref(prop), ctypes.c_ulonglong(0)))
print(cuda.cuMemCreate(ctypes.byref(handle), two, null, ctypes.c_ulonglong(0)))
print(cuda.cuMemCreate(null, two, ctypes.byref(prop), ctypes.c_ulonglong(0)))
print(cuda.cuMemAlloc_v2(null, two), cuda.cuMemAlloc_v2(ctypes.byref(at), nothing))
print(cuda.cuMemAllocAsync(null, two, null), cuda.cuMemFree_v2(ctypes.c_ulonglong(0)))
"""


def test_probes_with_host_locations_and_null_pointers_get_the_drivers_answer(
    env: dict[str, str], built: Built, page: Page
) -> None:
    with Script(env, PROBING) as guarded:
        said = guarded.end()
    bare = {name: value for name, value in env.items() if name not in ("LD_PRELOAD", "CARPOOL_PAGE")}
    with Script(bare, PROBING) as alone:
        assert alone.end() == said == "0\n1\n1\n1 1\n1 0\n"


def test_names_that_only_begin_like_cudas_belong_to_their_own_library(env: dict[str, str], tmp_path: Path) -> None:
    source = tmp_path / "dnn.c"
    source.write_text("int cudnnCreate(void) { return 42; }\nint cublasCreate_v2(void) { return 43; }\n")
    library = compile_c(tmp_path / "libdnn.so", "-shared", "-fPIC", source)
    script = f"""
dnn = ctypes.CDLL({str(library)!r})
print(dnn.cudnnCreate(), dnn.cublasCreate_v2(), hasattr(dnn, "cuMemAlloc_v2"), hasattr(cuda, "cuNoSuchThing"))
"""
    with Script(env, script) as found:
        assert found.end() == "42 43 False False\n"


def test_cu_get_proc_address_honours_the_stream_mode_and_the_version(env: dict[str, str]) -> None:
    script = """
def ask(name, version, flags):
    found, status = ctypes.c_void_p(), ctypes.c_int()
    places = ctypes.byref(found), version, ctypes.c_ulonglong(flags), ctypes.byref(status)
    return cuda.cuGetProcAddress_v2(name, *places), found.value, status.value
own = lambda name: ctypes.cast(getattr(cuda, name), ctypes.c_void_p).value
legacy, thread = ask(b"cuLaunchKernel", 13000, 1)[1], ask(b"cuLaunchKernel", 13000, 2)[1]
print(legacy == own("cuLaunchKernel"), thread == own("cuLaunchKernel_ptsz"), legacy != thread)
print(ask(b"cuMemAlloc", 3010, 0)[1] == own("cuMemAlloc"), ask(b"cuMemAlloc", 13000, 0)[1] == own("cuMemAlloc_v2"))
print(ask(b"cuNoSuchThing", 13000, 0), ask(b"cuMemAllocAsync", 10000, 0))
"""
    with Script(env, script) as found:
        assert found.end() == "True True True\nTrue True\n(0, None, 1) (0, None, 2)\n"


def test_freeing_does_not_wait_for_kernels_that_run(start: Start) -> None:
    probe = start()
    assert probe.alloc("plain", 0, MIB) == 0
    assert probe.ask("launch plain busy_30s")[0] == 0
    started = time.monotonic()
    assert probe.free(0) == 0
    assert time.monotonic() - started < 15
    probe.kill()


# Other drivers.

OLD_DRIVER = """
#include <stdlib.h>
int cuInit(unsigned flags) { return (int)(flags * 0); }
int cuDevicePrimaryCtxRetain(void **out, int device) { *out = &out; return device; }
int cuCtxSetCurrent(void *context) { return context == 0; }
int cuMemAlloc_v2(unsigned long long *at, unsigned long n) { *at = (unsigned long long)malloc(1 + n % 7); return 0; }
int cuMemFree_v2(unsigned long long at) { free((void *)at); return 0; }
"""


def test_a_driver_that_lacks_most_entry_points_is_capped_in_what_it_has(
    built: Built, env: dict[str, str], page: Page, tmp_path: Path
) -> None:
    source = tmp_path / "old.c"
    source.write_text(OLD_DRIVER)
    place = tmp_path / "old"
    place.mkdir()
    compile_c(place / "libcuda.so.1", "-shared", "-fPIC", source)
    script = """
print(hasattr(cuda, "cuMemCreate"), hasattr(cuda, "cuGetProcAddress_v2"), allocate(600 << 20), allocate(600 << 20))
whole = ctypes.CDLL(None)
print(whole.cuMemAllocManaged(ctypes.byref(at), ctypes.c_size_t(4096), 1), whole.cuCtxSynchronize())
"""
    with Script(env | {"LD_LIBRARY_PATH": str(place)}, script) as found:
        said = found.end(warned="carpool: this driver has no cuCtx")  # one of what the guest needs
        assert said == f"False False 0 {OUT_OF_MEMORY}\n500 500\n"  # 500: not found


def test_without_any_driver_the_program_is_told_what_the_loader_says(env: dict[str, str], tmp_path: Path) -> None:
    missing = env | {"LD_LIBRARY_PATH": str(tmp_path)}
    command = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"]
    done = subprocess.run(command, env=missing, capture_output=True, text=True, timeout=60)
    if done.returncode == 0:
        pytest.skip("this machine has a driver of its own: its absence cannot be shown here")
    assert "libcuda.so.1" in done.stderr.splitlines()[-1]
    assert "carpool" not in done.stderr
