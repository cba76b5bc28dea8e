"""Attempts to use the device without a turn; each answers with the calls that went through.

The word that says that the turn is wanted back is written as the daemon writes it. A call that waits for turns gives
it back then, asks again, and finds the word cleared when it goes on; one that does not leaves it as it is.
"""

import contextlib
import ctypes
import mmap
import os
import time

from attack_compute import LaunchConfig, prepare
from attack_driver import Driver, NotHereError, word

# page: made from src/carpool/wire by make docs
SLOT_WORDS, S_PID, S_RECALL, FIRST_LENT = 32, 0, 5, 448
# end of what is made
LARGE_COPY = 2 << 20
PATIENCE_SECONDS = 1.5  # a capture keeps a turn for a quarter of a second
DIMENSIONS = 1, 1, 1, 1, 1, 1, 0


def launches(cuda, kernel):
    """Ways to start a kernel: of CUDA 2, of today, for per-thread streams, cooperative, by a graph."""
    config, stream, run = LaunchConfig(dimensions=(ctypes.c_uint * 7)(*DIMENSIONS)), ctypes.c_void_p(), graph_of(cuda)
    cuda.good("cuStreamCreate", ctypes.byref(stream), 0)
    yield "cuLaunch", (kernel,)
    yield "cuLaunchGrid", (kernel, 1, 1)
    yield "cuLaunchGridAsync", (kernel, 1, 1, stream)
    for name in ("cuLaunchKernel", "cuLaunchKernel_ptsz"):
        yield name, (kernel, *DIMENSIONS, stream, None, None)
    for name in ("cuLaunchKernelEx", "cuLaunchKernelEx_ptsz"):
        yield name, (ctypes.byref(config), kernel, None, None)
    for name in ("cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz"):
        yield name, (kernel, *DIMENSIONS, stream, None)
    for name in ("cuGraphLaunch", "cuGraphLaunch_ptsz"):
        yield name, (run, stream)


def graph_of(cuda):
    graph, run = ctypes.c_void_p(), ctypes.c_void_p()
    cuda.good("cuGraphCreate", ctypes.byref(graph), 0)
    cuda.good("cuGraphInstantiateWithFlags", ctypes.byref(run), graph, ctypes.c_ulonglong(0))
    return run


def copies(cuda):
    at, back = word(), ctypes.create_string_buffer(LARGE_COPY)
    size = ctypes.c_size_t(LARGE_COPY)
    cuda.good("cuMemAlloc_v2", ctypes.byref(at), size)
    for name in ("cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds"):
        yield name, (at, back, size)
    for name in ("cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2_ptds"):
        yield name, (back, at, size)


@contextlib.contextmanager
def own_slot():
    """The words of the job's page, and where those of this process begin."""
    path = os.environ.get("CARPOOL_PAGE")
    if not path:
        raise NotHereError("there is no page")
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as page, memoryview(page).cast("Q") as words:
        own = [slot for slot in range(1, FIRST_LENT) if words[slot * SLOT_WORDS + S_PID] == os.getpid()]
        if not own:
            raise NotHereError("this process has no slot in the page")
        yield words, own[0] * SLOT_WORDS


def is_taken_away():
    with own_slot() as (words, base):
        return words[base + S_RECALL] >> 63 != 0


def passed(cuda, calls, seconds=0.0):
    """Which of these calls left the word as it was, made again and again for so long."""
    with own_slot() as (words, base):
        return [name for name, arguments in calls if is_ignored(cuda, words, base, name, arguments, seconds)]


def is_ignored(cuda, words, base, name, arguments, seconds):
    words[base + S_RECALL] = 1
    end = time.monotonic() + seconds
    cuda.good(name, *arguments)
    while words[base + S_RECALL] and time.monotonic() < end:
        cuda.good(name, *arguments)
    return words[base + S_RECALL] != 0


def turn_launches(_):
    cuda, kernel = prepare()
    return passed(cuda, launches(cuda, kernel))


def turn_copies(_):
    cuda = Driver()
    return passed(cuda, copies(cuda))


def turn_captured(_):
    """Launches on one stream, while another is captured and that never ends."""
    cuda, kernel = prepare()
    into, other = ctypes.c_void_p(), ctypes.c_void_p()
    for stream in (into, other):
        cuda.good("cuStreamCreate", ctypes.byref(stream), 0)
    cuda.good("cuStreamBeginCapture_v2", into, 2)
    launch = "cuLaunchKernel", (kernel, *DIMENSIONS, other, None, None)
    return passed(cuda, [launch], seconds=PATIENCE_SECONDS)
