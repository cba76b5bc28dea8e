"""Attempts to use more of the device's time than the job's compute limit; each answers with its share in percent.

The kernels are those of the stand-in driver, which take the time in their name: on a real driver there are none, and
the attempt says so.
"""

import ctypes
import json
import os
import subprocess
import sys
import time

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


def prepare():
    cuda, module, kernel = Driver(), ctypes.c_void_p(), ctypes.c_void_p()
    if cuda("cuModuleLoadData", ctypes.byref(module), b"any image"):
        raise NotHereError("only the stand-in has kernels for this")
    cuda.good("cuModuleGetFunction", ctypes.byref(kernel), module, KERNEL)
    return cuda, kernel


def plain_launch(cuda, kernel, stream=None):
    return cuda("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, None, None)


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


def compute_disguised(_):
    """As if the Python agent took the turns of this process."""
    os.environ["CARPOOL_AGENT"] = str(os.getpid())
    return compute_plain(_)


def compute_processes(_):
    """Several processes of the job, each of which would like all of it."""
    prepare()
    command = [sys.executable, "-S", sys.argv[0], sys.argv[1], "compute_plain"]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)]
    return sum(json.loads(each.communicate(timeout=60)[0])["share_percent"] for each in children)
