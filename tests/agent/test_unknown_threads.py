"""Threads that `threading` does not know: workers are harmless, all others are in the way; each in a fresh Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from carpool.agent.thread_stacks import is_worker

THREAD = r"""
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>
static volatile int stop, spins;
static void *wait_here(void *arg) { while (!stop) { if (!spins) usleep(1000); } return arg; }
static pthread_t made;
int begin(int busy) { stop = 0; spins = busy; return pthread_create(&made, 0, wait_here, 0); }
static const char *title;
static void *word;
static void *wait_named(void *arg) {
    void *volatile found[2] = {word, arg};
    prctl(PR_SET_NAME, title);
    while (!stop) usleep(1000);
    return found[0];
}
int begin_named(const char *as, void *has) {
    stop = 0, title = as, word = has;
    return pthread_create(&made, 0, wait_named, 0);
}
int end(void) { stop = 1; return pthread_join(made, 0); }
"""
WORKERS = """
import os, threading
import numpy, torch
from carpool.agent.threads import start_aside, thread_in_the_way
numpy.ones((600, 600)) @ numpy.ones((600, 600))
torch.set_num_threads(3)
weights = torch.ones(900, 900, requires_grad=True)
(weights @ weights).sum().backward()
gate = threading.Event()
start_aside(gate.wait, 100)
threads = len(os.listdir("/proc/self/task"))
print(threads > 4, repr(thread_in_the_way()), repr(thread_in_the_way()))
"""
# The fork computes until it sees the flag, however slow the machine is; only then is it at rest. It writes to what
# may be the flag, for all that torch's compiler knows: else that would read it only once.
FORKED = """
import sys, torch
from typing import List
from torch import Tensor
from carpool.agent.threads import thread_in_the_way
torch.set_num_threads(int(sys.argv[1]))
@torch.jit.script
def compute(flags: List[Tensor], a: Tensor):
    n = 0
    while float(flags[0]) == 0.0 and n < 5000:
        a = torch.tanh(a @ a) * 0.5
        flags[1].add_(1.0)
        n += 1
    return a
@torch.jit.script
def begin(flags: List[Tensor], a: Tensor):
    return torch.jit.fork(compute, flags, a)
begin([torch.ones(1), torch.ones(1)], torch.ones(8, 8)).wait()
print(repr(thread_in_the_way()))
for _ in range(2):
    flag = torch.zeros(1)
    work = begin([flag, torch.ones(1)], torch.ones(300, 300))
    print(thread_in_the_way())
    flag.fill_(1)
    work.wait()
    print(repr(thread_in_the_way()))
"""
RAW = """
import _thread, threading
from carpool.agent.threads import thread_in_the_way
gate, runs = threading.Event(), threading.Event()
_thread.start_new_thread(lambda: (runs.set(), gate.wait(100)), ())
runs.wait(100)
print(thread_in_the_way())
gate.set()
"""
OF_C = """
import ctypes, sys
from carpool.agent.threads import thread_in_the_way
library = ctypes.CDLL(sys.argv[1])
library.begin(int(sys.argv[2]))
print(thread_in_the_way())
library.end()
print(repr(thread_in_the_way()))
"""
# Its stack has an address of Python's code, as a call leaves one behind.
NAMED = """
import ctypes, sys
from carpool.agent.threads import thread_in_the_way
library = ctypes.CDLL(sys.argv[1])
title = sys.argv[2].encode()
library.begin_named(title, ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p))
print(repr(thread_in_the_way()))
library.end()
"""


def run(script: str | Path, *arguments: str) -> list[str]:
    command = [sys.executable, *([script] if isinstance(script, Path) else ["-c", script]), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout.splitlines()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    directory = tmp_path_factory.mktemp("thread")
    (directory / "thread.c").write_text(THREAD)
    made = directory / "libmine.so"
    flags = ["-shared", "-fPIC", "-pthread", "-o", str(made)]
    subprocess.run([compiler, str(directory / "thread.c"), *flags], check=True, timeout=100)
    return made


def test_k2_workers_of_torch_and_numpy_and_threads_of_carpools_own_are_not_in_the_way() -> None:
    assert run(WORKERS) == ["True '' ''"]


@pytest.mark.parametrize("threads", ["1", "3"])
def test_k2_a_worker_of_torchs_that_was_at_rest_is_in_the_way_while_it_computes_a_fork(
    threads: str, tmp_path: Path
) -> None:
    script = tmp_path / "forked.py"  # torch.jit reads the source of what it compiles
    script.write_text(FORKED)
    first, *then = run(script, threads)
    assert first == "''"
    assert ["might touch its tensors meanwhile" in line for line in then[::2]] == [True] * 2, then
    assert then[1::2] == ["''"] * 2


def test_k2_a_raw_thread_of_pythons_is_in_the_way() -> None:
    (line,) = run(RAW)
    assert line.startswith("a thread that Python's threading does not know (")
    assert line.endswith(") might touch its tensors meanwhile")


@pytest.mark.parametrize(
    ("name", "title", "is_in_the_way"),
    [
        ("libtorch_cpu.so", "pt_autograd_0", False),
        ("libtorch_cpu.so", "mine", True),
        ("libmine.so", "pt_autograd_0", True),
    ],
)
def test_k2_what_python_left_on_the_stack_of_torchs_backward_thread_is_no_sign_of_work(
    library: Path, tmp_path: Path, name: str, title: str, is_in_the_way: bool
) -> None:
    copied = shutil.copy(library, tmp_path / name) if name != library.name else library
    (said,) = run(NAMED, str(copied), title)
    assert ("might touch its tensors meanwhile" in said) == is_in_the_way, said


@pytest.mark.parametrize("name", ["libtorch_mine.so", "libtorchmine.so", "libc10mine.so", "carpool_mine.so"])
def test_k2_a_library_of_the_programs_own_is_in_the_way_though_its_name_begins_like_torchs(
    library: Path, tmp_path: Path, name: str
) -> None:
    there, gone = run(OF_C, str(shutil.copy(library, tmp_path / name)), "0")
    assert (f" of {name} might" in there, gone) == (True, "''")


@pytest.mark.parametrize(
    "name",
    [
        *(
            "libgomp.so.1",
            "libgomp-a34b3233.so.1",
            "libiomp5.so",
            "libomp.so.5",
            "libtbb.so.12",
            "libtbbbind_2_5.so.3",
        ),
        *("libtorch_cpu.so", "libtorch_cuda_linalg.so", "libc10.so", "libc10_cuda.so", "libtorch_python.so"),
        *("libscipy_openblas64_-32a4b2a6.so", "libopenblasp-r0-2d23e62b.3.17.so", "libopenblas64_p-r0-15028c96.so"),
        *("libmkl_intel_thread.so.2", "libcuda.so.535.1", "libcublasLt.so.12", "libcudnn_ops.so.9", "libnccl.so.2"),
        *("libnvrtc-builtins.so.12.6", "libnvidia-glcore.so.535", "libtcmalloc_minimal.so.4", "libarrow.so.2100"),
        "cygrpc.cpython-311-x86_64-linux-gnu.so",
    ],
)
def test_libraries_are_known_by_whole_names_whatever_their_version(name: str) -> None:
    assert is_worker(name)


@pytest.mark.parametrize(
    ("busy", "words"), [("0", " of libmine.so might"), ("1", ", which computes all the time, might")]
)
def test_k2_a_thread_that_c_code_started_is_in_the_way_until_it_ends(library: Path, busy: str, words: str) -> None:
    there, gone = run(OF_C, str(library), busy)
    assert words in there
    assert gone == "''"
