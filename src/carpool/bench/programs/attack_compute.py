"""Attempts to use more of the device's time than the job's compute limit; each answers with its share in percent.

The kernels are those of the stand-in driver, which take the time in their name: on a real driver there are none, and
the attempt says so.
"""

import ctypes
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from attack_driver import Driver, NotHereError

LENGTH_S = 2.0
KERNEL, KERNEL_S = b"busy_5ms", 0.005
GRAPH_KERNELS = 4
PROCESSES = 4


class LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("dimensions", ctypes.c_uint * 7),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    ]


class LaunchAttribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16)]


class LaunchParams(ctypes.Structure):
    _fields_ = [
        ("function", ctypes.c_void_p),
        ("dimensions", ctypes.c_uint * 7),
        ("stream", ctypes.c_void_p),
        ("params", ctypes.c_void_p),
    ]


COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE


def load(cuda, name):
    """A module of its own, and its kernel of this name."""
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    if cuda("cuModuleLoadData", ctypes.byref(module), b"any image"):
        raise NotHereError("only the stand-in has kernels for this")
    cuda.good("cuModuleGetFunction", ctypes.byref(kernel), module, name)
    return module, kernel


def prepare():
    cuda = Driver()
    return cuda, load(cuda, KERNEL)[1]


def plain_launch(cuda, kernel, stream=None, grid=1, params=None):
    return cuda("cuLaunchKernel", kernel, grid, 1, 1, 1, 1, 1, 0, stream, params, None)


def spend(cuda, launch, each_s, *, waits_every):
    """Launch for a while; the share of the device's time that this used."""
    started, count = time.monotonic(), 0
    while time.monotonic() - started < LENGTH_S and count * each_s < 2 * LENGTH_S:
        if launch():
            raise NotHereError("a launch failed")
        count += 1
        if waits_every and count % waits_every == 0:
            cuda.good("cuCtxSynchronize")
    cuda.good("cuCtxSynchronize")
    return 100 * count * each_s / (time.monotonic() - started)


def compute_plain(_):
    cuda, kernel = prepare()
    return spend(cuda, lambda: plain_launch(cuda, kernel), KERNEL_S, waits_every=4)


def compute_backlog(_):
    """As many as the driver takes, without ever waiting for one."""
    cuda, kernel = prepare()
    return spend(cuda, lambda: plain_launch(cuda, kernel), KERNEL_S, waits_every=0)


def compute_extended(_):
    cuda, kernel = prepare()
    config = LaunchConfig(dimensions=(ctypes.c_uint * 7)(1, 1, 1, 1, 1, 1, 0))

    def launch():
        return cuda("cuLaunchKernelEx", ctypes.byref(config), kernel, None, None)

    return spend(cuda, launch, KERNEL_S, waits_every=4)


def one_config(stream=None, *, is_cooperative=False):
    config = LaunchConfig(dimensions=(ctypes.c_uint * 7)(1, 1, 1, 1, 1, 1, 0), stream=stream)
    if is_cooperative:
        attribute = LaunchAttribute(id=COOPERATIVE, value=(ctypes.c_int * 16)(1))
        config.attributes, config.count = ctypes.addressof(attribute), 1
        config.kept = attribute  # as long as the configuration is
    return config


def launch_list(kernel, streams):
    """One kernel for each of these streams, in one call."""
    shape = (ctypes.c_uint * 7)(1, 1, 1, 1, 1, 1, 0)
    return (LaunchParams * len(streams))(*(LaunchParams(kernel, shape, stream, None) for stream in streams))


def cooperative_forms(cuda, kernel):
    """Ways to launch a kernel whose blocks wait for each other."""
    stream = make_streams(cuda, 1)[0]
    dimensions, config, one = (1, 1, 1, 1, 1, 1, 0), one_config(is_cooperative=True), launch_list(kernel, [stream])
    return [
        lambda: cuda("cuLaunchCooperativeKernel", kernel, *dimensions, stream, None),
        lambda: cuda("cuLaunchCooperativeKernel_ptsz", kernel, *dimensions, stream, None),
        lambda: cuda("cuLaunchKernelEx", ctypes.byref(config), kernel, None, None),
        lambda: cuda("cuLaunchCooperativeKernelMultiDevice", one, 1, 0),
    ]


def compute_cooperative(_):
    cuda, kernel = prepare()
    return spend(cuda, cooperative_forms(cuda, kernel)[0], KERNEL_S, waits_every=4)


def compute_cooperative_extended(_):
    cuda, kernel = prepare()
    return spend(cuda, cooperative_forms(cuda, kernel)[2], KERNEL_S, waits_every=0)


def compute_forms(_):
    """Another form of a launch each time, cooperative ones and others, without a wait."""
    cuda, kernel = prepare()
    turn = itertools.cycle([*cooperative_forms(cuda, kernel), lambda: plain_launch(cuda, kernel)])
    return spend(cuda, lambda: next(turn)(), KERNEL_S, waits_every=0)


def compute_devices(_):
    """Kernels for several devices in one call, all of which are for this one."""
    cuda, kernel = prepare()
    count = 8
    every = launch_list(kernel, make_streams(cuda, count))
    name = "cuLaunchCooperativeKernelMultiDevice"
    if cuda(name, every, count, 0):  # as a driver does that launches one kernel a device
        every, count = launch_list(kernel, make_streams(cuda, 1)), 1
    return spend(cuda, lambda: cuda(name, every, count, 0), count * KERNEL_S, waits_every=1)


def compute_graph(_):
    cuda, kernel = prepare()
    stream, graph, run = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    cuda.good("cuStreamCreate", ctypes.byref(stream), 0)
    cuda.good("cuStreamBeginCapture_v2", stream, 0)
    for _ in range(GRAPH_KERNELS):
        plain_launch(cuda, kernel, stream)
    cuda.good("cuStreamEndCapture", stream, ctypes.byref(graph))
    cuda.good("cuGraphInstantiateWithFlags", ctypes.byref(run), graph, ctypes.c_ulonglong(0))
    return spend(cuda, lambda: cuda("cuGraphLaunch", run, stream), GRAPH_KERNELS * KERNEL_S, waits_every=1)


def compute_context(_):
    """In a context made after the first one was measured."""
    cuda, kernel = prepare()
    for _ in range(8):
        plain_launch(cuda, kernel)
        cuda.good("cuCtxSynchronize")
    cuda.good("cuCtxCreate_v2", ctypes.byref(ctypes.c_void_p()), 0, 0)
    module, other = ctypes.c_void_p(), ctypes.c_void_p()
    cuda.good("cuModuleLoadData", ctypes.byref(module), b"any image")
    cuda.good("cuModuleGetFunction", ctypes.byref(other), module, KERNEL)
    return spend(cuda, lambda: plain_launch(cuda, other), KERNEL_S, waits_every=4)


def grids_of_one_home(kernel, count, home=None):
    """Grids whose costs want the same place in the library's table (native/hooks.c, share.c); and that place."""
    found, x = [], 0
    while len(found) < count:
        x += 1
        key = kernel.value + x * 0x2545F491 + 0x4F6CDD1D + 0x5851F42D
        place = (key * 0x9E3779B97F4A7C15 & 2**64 - 1) >> 52
        home = place if home is None else home
        if place == home:
            found.append(x)
    return found, home


def compute_collisions(_):
    """Grids that push each other out of the table of costs, after a short kernel took their places."""
    cuda = Driver()
    short, long = load(cuda, b"busy_10us")[1], load(cuda, KERNEL)[1]
    first, home = grids_of_one_home(short, 4)
    for grid in first:
        plain_launch(cuda, short, grid=grid)
        cuda.good("cuCtxSynchronize")
    turn = itertools.cycle(grids_of_one_home(long, 64, home)[0])
    return spend(cuda, lambda: plain_launch(cuda, long, grid=next(turn)), KERNEL_S, waits_every=0)


def make_streams(cuda, count=2):
    streams = [ctypes.c_void_p() for _ in range(count)]
    for stream in streams:
        cuda.good("cuStreamCreate", ctypes.byref(stream), 0)
    return streams


def compute_streams(_):
    """Kernels on two streams in turn, whose work lies between each other's events."""
    cuda, kernel = prepare()
    turn = itertools.cycle(make_streams(cuda))
    return spend(cuda, lambda: plain_launch(cuda, kernel, next(turn)), KERNEL_S, waits_every=4)


def compute_data_streams(_):
    """A length that depends on data, in a program that has two streams besides."""
    cuda = Driver()
    kernel = load(cuda, b"busy_10us")[1]
    for stream in make_streams(cuda):
        plain_launch(cuda, kernel, stream)
    return compute_data(_)


def compute_data_alternating(_):
    """The same on two streams in turn."""
    return vary(make_streams(Driver()))


def compute_data(_):
    """A kernel whose length depends on its data."""
    return vary([None])


def vary(streams):
    """Short at the first launches and at one in 96, else long; on these streams in turn."""
    cuda = Driver()
    kernel, ns = load(cuda, b"told")[1], ctypes.c_ulonglong()
    params = (ctypes.c_void_p * 1)(ctypes.addressof(ns))
    used_ns, number, started = 0, 0, time.monotonic()
    while time.monotonic() - started < 2 * LENGTH_S:
        ns.value = 10_000 if number < 3 or number % 96 < 2 else 1_000_000
        used_ns += ns.value
        if plain_launch(cuda, kernel, streams[number % len(streams)], params=params):
            raise NotHereError("a launch failed")
        if number < 3 or number % 16 == 0:
            cuda.good("cuCtxSynchronize")
        number += 1
    cuda.good("cuCtxSynchronize")
    return used_ns / 1e7 / (time.monotonic() - started)


def compute_rare(_):
    """Short for a hundred launches, then long once: seldom the one that is measured by lot."""
    cuda = Driver()
    kernel, ns = load(cuda, b"told")[1], ctypes.c_ulonglong()
    params = (ctypes.c_void_p * 1)(ctypes.addressof(ns))
    used_ns, started = 0, time.monotonic()
    while time.monotonic() - started < 2 * LENGTH_S:
        for ns.value in [2_000] * 100 + [20_000_000]:
            used_ns += ns.value
            if plain_launch(cuda, kernel, params=params):
                raise NotHereError("a launch failed")
            if ns.value > 2_000:
                cuda.good("cuCtxSynchronize")
    return used_ns / 1e7 / (time.monotonic() - started)


LONG, LONG_S = b"busy_200ms", 0.2


def wait_unseen(cuda):
    """Until all is done, by questions that nobody takes for a wait."""
    done = ctypes.c_void_p()
    cuda.good("cuEventCreate", ctypes.byref(done), 0)
    cuda.good("cuEventRecord", done, None)
    while cuda("cuEventQuery", done):
        time.sleep(0.002)


def compute_ended_contexts(_):
    """A context for each kernel, which ends with it."""
    cuda, count, started = Driver(), 0, time.monotonic()
    while time.monotonic() - started < 2 * LENGTH_S:
        context = ctypes.c_void_p()
        cuda.good("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
        if plain_launch(cuda, load(cuda, LONG)[1]):
            raise NotHereError("a launch failed")
        wait_unseen(cuda)
        cuda.good("cuCtxDestroy_v2", context)
        count += 1
    return 100 * count * LONG_S / (time.monotonic() - started)


def compute_one_kernel(_):
    """One long kernel; nobody has seen its end when this process ends."""
    cuda = Driver()
    if plain_launch(cuda, load(cuda, LONG)[1]):
        raise NotHereError("a launch failed")
    wait_unseen(cuda)
    return 100.0


def compute_successors(_):
    """A process for each kernel, one after the other."""
    prepare()
    count, started = 0, time.monotonic()
    while time.monotonic() - started < 2 * LENGTH_S:
        run_at_once("compute_one_kernel", 1)
        count += 1
    return 100 * count * LONG_S / (time.monotonic() - started)


def compute_reloaded(_):
    """A function's address that comes back with another function, after its module was unloaded."""
    cuda, used_s, started, seen = Driver(), 0.0, time.monotonic(), set()
    while time.monotonic() - started < LENGTH_S:
        module, kernel = load(cuda, b"busy_10us")
        for _ in range(20):
            plain_launch(cuda, kernel)
        cuda.good("cuCtxSynchronize")
        seen.add(kernel.value)
        cuda.good("cuModuleUnload", module)
        module, kernel = load(cuda, KERNEL)
        for _ in range(20 if kernel.value in seen else 0):
            plain_launch(cuda, kernel)
            used_s += KERNEL_S
        cuda.good("cuCtxSynchronize")
        cuda.good("cuModuleUnload", module)
    if not used_s:
        raise NotHereError("no address came back")
    return 100 * used_s / (time.monotonic() - started)


def compute_disguised(_):
    """As if the Python agent took the turns of this process."""
    os.environ["CARPOOL_AGENT"] = str(os.getpid())
    return compute_plain(_)


LEFT_TURN = """
import carpool, sys
with carpool.turn():
    pass
sys.path.insert(0, sys.argv[3])
import json, time, attack_compute, attack_turns
cuda, kernel = attack_compute.prepare()
end = time.monotonic() + 20
while not attack_turns.is_taken_away() and time.monotonic() < end:
    time.sleep(0.6)  # who does nothing loses its turn sooner
print(json.dumps({"share_percent": attack_compute.compute_plain(None), "is_taken": time.monotonic() < end}))
"""


def compute_left_turn(_):
    """A turn by carpool's own call that is not given back, then launches after the daemon took it away."""
    here = str(Path(__file__).resolve().parent)
    done = subprocess.run(
        [sys.executable, "-c", LEFT_TURN, *sys.argv[1:3], here], capture_output=True, text=True, timeout=60
    )
    if done.returncode:
        raise NotHereError(f"it failed: {done.stderr[-200:]}")
    found = json.loads(done.stdout)
    if not found["is_taken"]:
        raise NotHereError("the daemon left it its turn for 20 s")
    return found["share_percent"]


def compute_data_processes(_):
    """A length that depends on data, in two processes."""
    return run_at_once("compute_data", 2)


def compute_processes(_):
    """Several processes of the job, each of which would like all of it."""
    return run_at_once("compute_plain", PROCESSES)


def run_at_once(name, count):
    prepare()
    command = [sys.executable, "-S", sys.argv[0], sys.argv[1], name]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    return sum(json.loads(each.communicate(timeout=60)[0])["share_percent"] for each in children)
