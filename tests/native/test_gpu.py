"""The CUDA guest (native/hooks.c and its neighbours) over the stand-in driver: the cap, the doors, the books."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from carpool.wire import caps
from carpool.wire import page as wire
from carpool.wire.page import Page, slot_base
from tests.native.gpu import (
    CHUNK,
    MIB,
    OUT_OF_MEMORY,
    Built,
    Probe,
    environment,
    live_bytes,
    true_bytes,
)
from tests.native.probe import NATIVE

KINDS = ["plain", "pitch", "managed", "async", "pool", "vmm", "mapped", "array", "mipmap", "external", "graph"]
DOORS = ["link", "dlsym", "proc", "thread", "path"]
Start = Callable[..., Probe]


@pytest.fixture
def start(built: Built, page: Page, books: Path, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:
        made = 0

        def make(door: str = "link", env: dict[str, str] | None = None) -> Probe:
            nonlocal made
            made += 1
            more = [str(built.place / "libcuda.so.1")] if door == "path" else []
            env = environment(built, books, page=page.path) if env is None else env
            return stack.enter_context(Probe(built, env, tmp_path / f"log{made}", door, *more))

        yield make


# The cap.


@pytest.mark.parametrize("how", [kind for kind in KINDS if kind != "graph"])
@pytest.mark.parametrize("door", DOORS)
def test_every_kind_of_memory_through_every_door_is_capped_with_the_drivers_own_code(
    start: Start, page: Page, books: Path, door: str, how: str
) -> None:
    page.words[wire.H_CAP] = 1024 * MIB
    probe = start(door)
    assert [probe.alloc(how, slot, 600 * MIB) for slot in range(3)] == [0, OUT_OF_MEMORY, OUT_OF_MEMORY]
    assert live_bytes(page, probe.pid) == true_bytes(books)[probe.pid]
    assert probe.free(0) == 0
    assert probe.ask("sync")[0] == 0
    assert live_bytes(page, probe.pid) == 0
    assert true_bytes(books)[probe.pid] == 0
    assert probe.alloc(how, 1, 600 * MIB) == 0
    assert page.words[wire.H_DENIED_COUNT] == 2
    assert probe.said() == ""


def test_a_graph_that_can_never_have_its_memory_is_refused_and_one_that_runs_is_counted(
    start: Start, page: Page, books: Path
) -> None:
    page.words[wire.H_CAP] = 1024 * MIB
    probe = start()
    assert probe.alloc("graph", 0, 600 * MIB) == 0
    assert live_bytes(page, probe.pid) == true_bytes(books)[probe.pid] == 600 * MIB
    assert probe.alloc("graph", 1, 600 * MIB) == OUT_OF_MEMORY
    assert probe.alloc("plain", 1, 600 * MIB) == OUT_OF_MEMORY
    assert probe.free(0) == 0
    assert live_bytes(page, probe.pid) == true_bytes(books)[probe.pid] == 0


@pytest.mark.parametrize("how", ["plain", "managed", "async", "pool"])
@pytest.mark.parametrize("is_async", [False, True])
def test_any_free_takes_any_pointer(start: Start, page: Page, how: str, is_async: bool) -> None:
    probe = start()
    assert probe.alloc(how, 0, 10 * MIB) == 0
    assert probe.free(0, is_async=is_async) == 0
    assert live_bytes(page, probe.pid) == 0


def test_the_program_sees_a_card_of_its_own_size(start: Start, page: Page) -> None:
    page.words[wire.H_CAP] = 1024 * MIB
    probe, other = start(), start()
    assert probe.info() == (1024 * MIB, 1024 * MIB)
    assert probe.ask("total") == (0, 1024 * MIB)
    assert probe.alloc("plain", 0, 300 * MIB) == 0
    assert probe.info() == other.info() == (724 * MIB, 1024 * MIB)
    page.words[wire.H_CAP] = 200 * MIB  # lowered below what is held
    assert probe.info() == (0, 200 * MIB)
    page.words[wire.H_CAP] = 100 << 30
    assert probe.info() == (4096 * MIB - 300 * MIB, 4096 * MIB)


def test_a_failed_allocation_of_the_driver_leaves_nothing_counted(
    built: Built, start: Start, page: Page, books: Path
) -> None:
    env = environment(built, books, page=page.path) | {"CARPOOL_STUB_FAIL_ALLOC": "2"}
    probe = start(env=env)
    assert [probe.alloc("plain", slot, 10 * MIB) for slot in range(3)] == [0, OUT_OF_MEMORY, 0]
    assert live_bytes(page, probe.pid) == true_bytes(books)[probe.pid] == 20 * MIB
    assert probe.alloc("plain", 5, 5 << 30) == OUT_OF_MEMORY  # the card itself is full
    assert live_bytes(page, probe.pid) == 20 * MIB


def test_host_memory_made_like_device_memory_is_free(start: Start, page: Page) -> None:
    page.words[wire.H_CAP] = MIB
    probe = start()
    assert probe.alloc("host_vmm", 0, 10 * CHUNK) == 0
    assert live_bytes(page, probe.pid) <= 0
    assert probe.free(0) == 0


def test_memory_lives_while_a_handle_or_a_mapping_refers_to_it(start: Start, page: Page, books: Path) -> None:
    probe = start()
    assert probe.alloc("mapped", 0, 4 * CHUNK) == 0
    assert live_bytes(page, probe.pid) == 4 * CHUNK
    result, handle = probe.ask("retain 0")
    assert result == 0
    assert probe.free(0) == 0
    assert live_bytes(page, probe.pid) == true_bytes(books)[probe.pid] == 4 * CHUNK
    assert probe.ask(f"release {handle}")[0] == 0
    assert live_bytes(page, probe.pid) == true_bytes(books)[probe.pid] == 0


def test_a_pool_cannot_keep_freed_bytes_under_a_cap(start: Start, page: Page, books: Path) -> None:
    page.words[wire.H_CAP] = 1024 * MIB
    probe = start()
    assert probe.ask("threshold")[0] == 0
    assert probe.alloc("async", 0, 500 * MIB) == 0
    assert probe.free(0, is_async=True) == 0
    assert probe.ask("sync")[0] == 0
    assert true_bytes(books)[probe.pid] == 0


def test_the_end_of_a_context_frees_what_was_allocated_in_it(start: Start, page: Page, books: Path) -> None:
    probe = start()
    assert probe.alloc("plain", 0, 10 * MIB) == 0
    result, used = probe.ask(f"context {50 * MIB}")
    assert (result, used) == (0, 60 * MIB), "what a pool gave is there after it"
    assert probe.ask("sync")[0] == 0
    assert live_bytes(page, probe.pid) == true_bytes(books)[probe.pid] == 10 * MIB
    assert probe.ask("reset")[0] == 0
    assert live_bytes(page, probe.pid) == true_bytes(books)[probe.pid] == 0


@pytest.mark.parametrize("how", KINDS)
def test_after_a_reset_we_count_what_the_driver_still_has(start: Start, page: Page, books: Path, how: str) -> None:
    probe = start()
    assert probe.alloc(how, 0, 10 * CHUNK) == 0
    assert probe.ask("reset")[0] == 0
    assert live_bytes(page, probe.pid) == true_bytes(books)[probe.pid]


@pytest.mark.parametrize("seed", range(5))
def test_random_sequences_of_all_kinds_keep_our_books_equal_to_the_drivers(
    start: Start, page: Page, books: Path, seed: int
) -> None:
    page.words[wire.H_CAP] = 2048 * MIB
    probe, dice, held = start(DOORS[seed]), random.Random(seed), dict[int, str]()
    for _ in range(250):
        slot = dice.randrange(40)
        if slot in held:
            assert probe.free(slot, is_async=dice.random() < 0.5) == 0
            del held[slot]
        else:
            how = dice.choice(KINDS)
            result = probe.alloc(how, slot, dice.randint(1, 80) * CHUNK)
            assert result in (0, OUT_OF_MEMORY)
            if result == 0:
                held[slot] = how
        assert probe.ask("sync")[0] == 0
        counted = live_bytes(page, probe.pid)
        assert counted == true_bytes(books)[probe.pid], (seed, held)
        assert counted <= 2048 * MIB


# Several processes, one account.


def test_all_processes_of_a_job_share_one_account(start: Start, page: Page) -> None:
    page.words[wire.H_CAP] = 1024 * MIB
    first, second = start(), start("proc")
    assert first.alloc("plain", 0, 600 * MIB) == 0
    assert second.alloc("vmm", 0, 600 * MIB) == OUT_OF_MEMORY
    assert second.alloc("vmm", 0, 400 * MIB) == 0
    assert first.free(0) == 0
    assert second.alloc("plain", 1, 600 * MIB) == 0


def test_q2_a_process_killed_at_work_leaves_no_phantom_bytes(start: Start, page: Page) -> None:
    page.words[wire.H_CAP] = 1024 * MIB
    first, second = start(), start()
    assert first.alloc("plain", 0, 600 * MIB) == 0
    first.kill()
    assert second.info() == (1024 * MIB, 1024 * MIB)
    assert second.alloc("plain", 0, 1000 * MIB) == 0
    assert second.said() == ""


def test_a_process_that_ends_gives_its_slot_back(start: Start, page: Page) -> None:
    probe = start()
    assert probe.alloc("plain", 0, 600 * MIB) == 0
    probe.__exit__()
    assert page.pids() == {}


def test_what_an_exec_left_in_the_slot_is_wiped(built: Built, page: Page, books: Path) -> None:
    env = environment(built, books, page=page.path)
    script = f"import os, sys; sys.stdin.readline(); os.execv({str(built.probe)!r}, ['probe', 'link'])"
    command, pipe = [sys.executable, "-c", script], subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, bufsize=0) as process:
        page.words[slot_base(1) + wire.S_LIVE] = 600 * MIB
        page.words[slot_base(1) + wire.S_PID] = process.pid
        assert process.stdin and process.stdout
        process.stdin.write(b"go\n")
        assert process.stdout.readline().split()[0] == b"0"
        assert page.words[slot_base(1) + wire.S_LIVE] == 0
        process.stdin.close()


@pytest.mark.slow
def test_q1_racing_processes_never_pass_the_cap_and_none_is_refused_what_fits(
    start: Start, page: Page, books: Path
) -> None:
    page.words[wire.H_CAP] = 1000 * MIB
    probes = [start() for _ in range(4)]
    for _ in range(60):
        for probe in probes:
            probe.tell(f"alloc plain 0 {300 * MIB}")
        results = [probe.answer()[0] for probe in probes]
        assert sorted(results) == [0, 0, 0, OUT_OF_MEMORY]
        assert sum(true_bytes(books).values()) == 900 * MIB
        for probe, result in zip(probes, results, strict=True):
            if result == 0:
                assert probe.free(0) == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_five_hundred_kills_at_random_points_leave_right_books(
    built: Built, start: Start, page: Page, books: Path, tmp_path: Path
) -> None:
    page.words[wire.H_CAP] = 220 * MIB  # the victims are refused every other time
    watcher, dice = start(), random.Random(5)
    assert watcher.alloc("plain", 0, 100 * MIB) == 0
    env = environment(built, books, page=page.path)
    for number in range(500):
        victim = Probe(built, env, tmp_path / "victim", "link")
        victim.tell(f"churn {number} 0")
        time.sleep(dice.random() * 0.008)
        victim.kill()
        assert victim.process.stdin and victim.process.stdout
        victim.process.stdin.close()
        victim.process.stdout.close()
        assert watcher.info() == (120 * MIB, 220 * MIB), number
        assert live_bytes(page, watcher.pid) == 100 * MIB
    assert page.words[wire.H_DENIED_COUNT] > 500
    assert watcher.alloc("plain", 1, 120 * MIB) == 0
    assert watcher.alloc("plain", 2, MIB) == OUT_OF_MEMORY
    assert true_bytes(books)[watcher.pid] == 220 * MIB


@pytest.mark.slow
def test_threads_that_allocate_and_free_leave_nothing_behind(start: Start, page: Page, books: Path) -> None:
    page.words[wire.H_CAP] = 8 * MIB  # sometimes reached
    probe = start()
    assert probe.ask("threads")[0] == 0
    assert live_bytes(page, probe.pid) == true_bytes(books)[probe.pid] == 0
    slot = page.slot_of(probe.pid)
    assert slot is not None
    assert page.words[slot_base(slot) + wire.S_PENDING] == 0


def test_a_forked_child_counts_for_itself(start: Start, page: Page) -> None:
    probe = start()
    assert probe.alloc("plain", 0, 10 * MIB) == 0
    result, _ = probe.ask("fork 0")
    assert result == 3  # the driver's own answer to a forked child: not initialized
    assert live_bytes(page, probe.pid) == 10 * MIB
    assert probe.free(0) == 0


def test_an_allocation_may_wait_for_room(built: Built, start: Start, page: Page, books: Path) -> None:
    page.words[wire.H_CAP] = 1000 * MIB
    env = environment(built, books, page=page.path) | {"CARPOOL_WAIT_MEMORY_NS": str(10 * 10**9)}
    first, second = start(env=env), start(env=env)
    assert first.alloc("plain", 0, 600 * MIB) == 0
    assert second.alloc("plain", 2, 100 * MIB) == 0
    second.tell(f"alloc plain 0 {600 * MIB}")
    slot, seen = page.slot_of(second.pid), []
    assert slot is not None
    for _ in range(40):
        threading.Event().wait(0.005)
        seen.append((page.live_bytes(slot), dict(page.pending()).get(second.pid, 0)))
    assert seen.count((100 * MIB, 600 * MIB)) > 20  # in between it asks again, for a moment
    assert first.free(0) == 0
    assert second.answer()[0] == 0
    started = time.monotonic()
    assert second.alloc("plain", 1, 600 * MIB) == OUT_OF_MEMORY  # nobody else could ever make room
    assert time.monotonic() - started < 5
    first.tell(f"alloc plain 0 {600 * MIB}")
    threading.Event().wait(0.1)
    page.deny("there will be none", now=time.monotonic_ns())
    assert first.answer()[0] == OUT_OF_MEMORY


# Manners.


def test_without_a_page_everything_passes_and_nothing_is_said(
    built: Built, start: Start, page: Page, books: Path
) -> None:
    page.words[wire.H_CAP] = MIB
    probe = start(env=environment(built, books))
    assert [probe.alloc(how, slot, 100 * MIB) for slot, how in enumerate(KINDS)] == [0] * len(KINDS)
    assert probe.info()[1] == 4096 * MIB
    assert probe.ask("launch plain busy_1us")[0] == 0
    assert page.pids() == {}
    assert probe.said() == ""


@pytest.mark.parametrize("spoil", ["missing", "layout", "slots"])
def test_q3_a_capped_program_whose_account_cannot_be_opened_gets_no_device_memory_and_one_sentence(
    start: Start, page: Page, spoil: str
) -> None:
    page.words[wire.H_CAP] = 1024 * MIB
    if spoil == "missing":
        page.path.unlink()
    elif spoil == "layout":
        page.words[wire.H_LAYOUT] = 99
    else:
        for slot in range(1, wire.FIRST_LENT):
            page.words[slot_base(slot) + wire.S_PID] = os.getpid()
    probe = start()
    assert probe.alloc("plain", 0, MIB) == OUT_OF_MEMORY
    assert probe.alloc("vmm", 0, CHUNK) == OUT_OF_MEMORY
    lines = [line for line in probe.said().splitlines() if "gets no device memory" in line]
    assert len(lines) == 1 and lines[0].startswith("carpool: ")


def test_q3_an_uncapped_job_whose_account_cannot_be_opened_runs_on(
    built: Built, start: Start, page: Page, books: Path
) -> None:
    page.path.unlink()
    env = environment(built, books, page=page.path)
    del env["CARPOOL_IS_CAPPED"]
    probe = start(env=env)
    assert probe.alloc("plain", 0, MIB) == 0
    assert "memory of this process is not counted" in probe.said()


def test_a_cap_that_its_user_draws_meanwhile_is_what_the_program_sees_of_the_card(
    built: Built, start: Start, page: Page, books: Path
) -> None:
    env = environment(built, books, page=page.path)
    del env["CARPOOL_IS_CAPPED"]
    page.words[wire.H_CAP] = 200 * MIB  # what others leave: that of a moment
    probe = start(env=env)
    total = probe.ask("total")[1]
    assert total > 200 * MIB
    page.words[wire.H_CAP] = 100 * MIB
    caps.tell(page.words, total, 100 * MIB, may_wait=False)
    assert probe.ask("total") == (0, 100 * MIB)
    assert probe.alloc("plain", 0, 101 * MIB) == OUT_OF_MEMORY
    assert probe.alloc("plain", 0, 60 * MIB) == 0
    assert probe.info() == (40 * MIB, 100 * MIB)


def test_other_programs_find_what_is_behind_them(start: Start) -> None:
    probe = start()
    for name in ("malloc", "cuInit", "dlopen"):  # again and again: a peer forgets the second time
        assert probe.ask(f"next {name}")[1] == 1
        assert probe.ask(f"next {name}")[1] == 1


def test_editing_the_environment_lifts_no_cap(built: Built, page: Page, books: Path) -> None:
    page.words[wire.H_CAP] = 100 * MIB
    script = f"""
import ctypes, os
for name in [name for name in os.environ if name.startswith("CARPOOL_") and "STUB" not in name]:
    del os.environ[name]
cuda = ctypes.CDLL({str(built.place / "libcuda.so.1")!r})
context, at = ctypes.c_void_p(), ctypes.c_ulonglong()
cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)
print(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(200 << 20)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(built, books, page=page.path),
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (done.stdout, done.stderr) == (f"{OUT_OF_MEMORY}\n", "")


NVML = """
import pynvml
pynvml.nvmlInit()
for index in range(pynvml.nvmlDeviceGetCount()):
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    newer = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    assert (newer.total, newer.free, newer.used) == (memory.total, memory.free, memory.used)
    print(memory.total >> 20, memory.free >> 20, memory.used >> 20)
print([process.usedGpuMemory >> 20 for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)])
"""


def test_nvml_shows_the_jobs_own_card_in_its_size_and_others_as_they_are(
    built: Built, start: Start, page: Page, books: Path
) -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: the NVML view is NOT tested")
    page.words[wire.H_CAP] = 1024 * MIB
    uuid = "GPU-63617270-6f6f-6c2d-7374-75622d677001"
    env = environment(built, books, cards="2x4GiB", page=page.path) | {"CUDA_VISIBLE_DEVICES": uuid}
    probe = start(env=env)
    assert probe.alloc("plain", 0, 300 * MIB) == 0
    done = subprocess.run([sys.executable, "-c", NVML], env=env, capture_output=True, text=True, timeout=20)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["4096 4096 0", "1024 724 300", "[300]"]


RESERVED = """
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
newer = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
print(*[size >> 20 for size in (memory.total, memory.free, memory.used)])
print(*[size >> 20 for size in (newer.total, newer.free, newer.used, newer.reserved)])
"""


@pytest.mark.parametrize(
    ("cap", "figures"),
    [
        (0, ["4396 4096 300", "4396 4096 0 300"]),  # as the card has it: what it keeps is used, or reserved
        (1024, ["1024 1024 0", "1024 1024 0 0"]),
        (8192, ["4396 4096 300", "4396 4096 0 300"]),
    ],
)
def test_what_a_card_keeps_for_itself_leaves_nvmls_figures_whole(
    built: Built, page: Page, books: Path, cap: int, figures: list[str]
) -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: the NVML view is NOT tested")
    page.words[wire.H_CAP] = cap * MIB
    env = environment(built, books, page=page.path if cap else None) | {"CARPOOL_STUB_RESERVED": "300MiB"}
    done = subprocess.run([sys.executable, "-c", RESERVED], env=env, capture_output=True, text=True, timeout=20)
    assert (done.stdout.splitlines(), done.stderr) == (figures, "")
    for line in done.stdout.splitlines():
        total, *parts = map(int, line.split())
        assert total == sum(parts)


def test_the_library_needs_no_glibc_newer_than_2_31(built: Built) -> None:
    done = subprocess.run(["objdump", "-T", built.guest], capture_output=True, text=True, timeout=20)
    if done.returncode:
        pytest.skip("no objdump: the glibc versions the guest needs are NOT checked")
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", done.stdout)}
    assert versions and max(versions) <= (2, 31)
    # Before 2.34 dlvsym is in libdl, and a program that binds at once may not have it.
    needed = subprocess.run(["objdump", "-p", built.guest], capture_output=True, text=True, timeout=20).stdout
    assert {"libc.so.6", "libdl.so.2", "libpthread.so.0"} <= set(re.findall(r"NEEDED\s+(\S+)", needed))


def test_only_names_of_the_list_are_exported(built: Built) -> None:
    done = subprocess.run(["nm", "-D", "--defined-only", built.guest], capture_output=True, text=True, timeout=20)
    if done.returncode:
        pytest.skip("no nm: the exports of the guest are NOT checked")
    exported = {line.split()[2] for line in done.stdout.splitlines()}
    rows = re.findall(r"^(?:HOOK|GATE|NVML)\((\w+)", (NATIVE / "hooks.def").read_text(), re.MULTILINE)
    assert exported == {*rows, "dlsym"}


@pytest.mark.slow
def test_a_signal_between_two_calls_changes_nothing(start: Start, page: Page, books: Path) -> None:
    probe = start()
    probe.tell("churn 3 4000")
    for _ in range(50):
        os.kill(probe.pid, signal.SIGSTOP)
        os.kill(probe.pid, signal.SIGCONT)
    assert probe.answer()[0] == 0
    assert probe.ask("sync")[0] == 0
    assert live_bytes(page, probe.pid) == true_bytes(books)[probe.pid]
