"""Attempts to keep what a resize took away: the job's limits become smaller while it uses what it had.

A job may lower its own limits, so each asks for that itself. It is in a job of its own, which ends with it.
"""

import ctypes
import os
import select
import subprocess
import sys
import time

from attack_compute import KERNEL_S, plain_launch, prepare, spend
from attack_driver import Driver, NotHereError, word

PATIENCE_SECONDS = 20.0
TRYING_SECONDS = 3.0
GIVEN_PERCENT, LEFT_PERCENT = 25, 10


def resize(*words):
    job = os.environ.get("CARPOOL_JOB")
    if not job:
        raise NotHereError("there is no job to resize")
    command = [sys.executable, "-m", "carpool.cli.main", "resize", job, "--no-wait", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise NotHereError(f"the resize was refused: {done.stderr.strip()[-200:]}")


def take(cuda, size):
    """Memory of this size, or None."""
    at = word()
    return at if cuda.made("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size)) else None


def compute(cuda, kernel, seconds):
    """Iterations, so that the job comes to boundaries."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        plain_launch(cuda, kernel)
        cuda.good("cuCtxSynchronize")
        time.sleep(0.005)


def resized_down(size):
    """It holds much, is made smaller, frees and takes again and again, and at last asks for what it had."""
    cuda, kernel = prepare()
    held = take(cuda, size)
    compute(cuda, kernel, 1.0)
    small = size // 3
    resize("--memory", str(small))
    cuda.good("cuMemFree_v2", held)
    end, again = time.monotonic() + PATIENCE_SECONDS, held
    while again is not None and time.monotonic() < end:
        compute(cuda, kernel, 0.05)
        again = take(cuda, size)
        if again is not None:
            cuda.good("cuMemFree_v2", again)
    if again is not None:
        return 2 * size  # it is let have all of it for as long as it likes
    got = small // 2 if take(cuda, small // 2) else 0
    ways = [
        lambda at: cuda.made("cuMemAllocManaged", at, ctypes.c_size_t(size), 1),
        lambda at: cuda.made("cuMemAllocAsync", at, ctypes.c_size_t(size), None),
        lambda at: cuda.made("cuMemAlloc_v2", at, ctypes.c_size_t(size)),
    ]
    return got + 2 * size * sum(way(ctypes.byref(word())) for way in ways)


def resized_left(size):
    """A process that has left the job behind, its variables and its parents, asks for a larger cap."""
    job, kept = os.environ.get("CARPOOL_JOB", ""), ("CARPOOL_JOB", "CARPOOL_PAGE", "LD_PRELOAD")
    bare = {name: value for name, value in os.environ.items() if name not in kept}
    command = [sys.executable, "-m", "carpool.cli.main", "resize", job, "--no-wait", "--memory", str(8 * size)]
    until, done = os.pipe()
    os.set_inheritable(done, True)
    first = os.fork()
    if first == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(0.2)  # its parent has ended by then
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.execve(command[0], command, bare)
        os._exit(0)
    os.waitpid(first, 0)
    os.close(done)
    select.select([until], [], [], PATIENCE_SECONDS)  # until that process has ended
    cuda = Driver()
    return sum(size for _ in range(2) if take(cuda, size) is not None)


def turn_resized_down(size):
    """It goes on with what it holds, more than its new cap: it gets no turn until that is less."""
    command = [sys.executable, "-S", sys.argv[0], sys.argv[1], "turn_holding_too_much"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    said = child.stdout.readline().strip()
    if said != "resized":
        child.communicate()
        raise NotHereError(said)
    try:
        child.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return []
    return ["launches with more than the new cap"]


def turn_holding_too_much(size):
    cuda, kernel = prepare()
    take(cuda, size)
    compute(cuda, kernel, 1.0)
    try:
        resize("--memory", str(size // 3))
    except NotHereError as error:
        print(error, flush=True)
        raise
    print("resized", flush=True)
    compute(cuda, kernel, TRYING_SECONDS)
    return []


def compute_resized_down(_):
    """Launches without a wait while the limit is made smaller; the part of the new limit, as of the old one."""
    cuda, kernel = prepare()
    for _ in range(40):
        plain_launch(cuda, kernel)
    resize("--compute", f"{LEFT_PERCENT}%")
    return spend(cuda, lambda: plain_launch(cuda, kernel), KERNEL_S, waits_every=0) * GIVEN_PERCENT / LEFT_PERCENT
