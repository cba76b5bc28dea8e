"""Attempts to pass the limits of a job: `attack.py CAP_BYTES NAME...`. Standard library only.

An attack on the memory cap asks twice for three quarters of it, by its own way; the answer is one line of JSON: how
many bytes it holds at the end, or why it could not be tried here. With several names each gets a process of its own,
one after another. Runs inside a job of `carpool verify`, and outside as the control; by its absolute path.
"""

import contextlib
import ctypes
import json
import mmap
import os
import signal
import subprocess
import sys

import attack_compute
import attack_doors
import attack_host
import attack_members
import attack_resize
import attack_turns
from attack_driver import (
    AllocationProp,
    ArrayText,
    Driver,
    Handle,
    Location,
    NodeParams,
    NotHereError,
    PoolProps,
    twice,
    word,
)

GRANULARITY = 2 << 20
REPORTS = {"compute": "share_percent", "turn": "passed"}  # by the beginning of the attack's name
CAP_WORD = 2  # as in carpool/wire/page.py
STUB_ONLY = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CARPOOL_STUB", "CARPOOL_STUB_FILE", "PATH")


# --- kinds of memory ---------------------------------------------------------------------------------------------


def plain(size):
    return twice(Driver().plain, size)


def pitched(size):
    cuda = Driver()

    def make(size):
        pitch = ctypes.c_size_t()
        shape = ctypes.c_size_t(1 << 20), ctypes.c_size_t(size >> 20), 4
        return cuda.made("cuMemAllocPitch_v2", ctypes.byref(word()), ctypes.byref(pitch), *shape)

    return twice(make, size)


def managed(size):
    cuda = Driver()
    return twice(lambda size: cuda.made("cuMemAllocManaged", ctypes.byref(word()), ctypes.c_size_t(size), 1), size)


def ordered(size):
    cuda = Driver()
    return twice(lambda size: cuda.made("cuMemAllocAsync", ctypes.byref(word()), ctypes.c_size_t(size), None), size)


def pool(size):
    cuda, own = Driver(), ctypes.c_void_p()
    props = PoolProps(type=1, location=Location(1, 0))
    cuda.good("cuMemPoolCreate", ctypes.byref(own), ctypes.byref(props))
    name = "cuMemAllocFromPoolAsync"
    return twice(lambda size: cuda.made(name, ctypes.byref(word()), ctypes.c_size_t(size), own, None), size)


def keeping_pool(size):
    """What is freed into a pool that keeps it is still the program's."""
    cuda, own, at = Driver(), ctypes.c_void_p(), word()
    keep = ctypes.c_ulonglong(2**64 - 1)
    cuda.good("cuDeviceGetDefaultMemPool", ctypes.byref(own), 0)
    cuda.good("cuMemPoolSetAttribute", own, 4, ctypes.byref(keep))
    cuda.made("cuMemAllocAsync", ctypes.byref(at), ctypes.c_size_t(size), None)
    cuda.good("cuMemFreeAsync", at, None)
    cuda.good("cuCtxSynchronize")
    kept = word()
    cuda.good("cuMemPoolGetAttribute", own, 5, ctypes.byref(kept))
    return kept.value + (size if cuda.plain(size) else 0)


def create(cuda, size, handle):
    prop = AllocationProp(type=1, location=Location(1, 0))
    return cuda.made("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(prop), 0)


def virtual(size):
    cuda = Driver()
    return twice(lambda size: create(cuda, size, word()), size)


def mapped(size):
    """The handle is released, the mapping keeps the memory."""
    cuda = Driver()

    def make(size):
        handle, at = word(), word()
        if not create(cuda, size, handle):
            return False
        zero = ctypes.c_ulonglong(0)
        cuda.good("cuMemAddressReserve", ctypes.byref(at), ctypes.c_size_t(size), ctypes.c_size_t(0), zero, zero)
        cuda.good("cuMemMap", at, ctypes.c_size_t(size), ctypes.c_size_t(0), handle, zero)
        cuda.good("cuMemRelease", handle)
        return True

    return twice(make, size)


def retained(size):
    """The handle behind an address inside the mapping is asked for, the mapping made anew, the handle released."""
    cuda, zero = Driver(), ctypes.c_ulonglong(0)

    def make(size):
        handle, again, at, length = word(), word(), word(), ctypes.c_size_t(size)
        if not create(cuda, size, handle):
            return False
        cuda.good("cuMemAddressReserve", ctypes.byref(at), length, ctypes.c_size_t(0), zero, zero)
        cuda.good("cuMemMap", at, length, ctypes.c_size_t(0), handle, zero)
        cuda.good("cuMemRelease", handle)
        inside = ctypes.c_void_p(at.value + GRANULARITY)
        cuda.good("cuMemRetainAllocationHandle", ctypes.byref(again), inside)
        cuda.good("cuMemUnmap", at, length)
        cuda.good("cuMemMap", at, length, ctypes.c_size_t(0), again, zero)
        cuda.good("cuMemRelease", again)
        return True

    return twice(make, size)


def overwritten(size):
    """A pool whose properties change while it is made: the driver's answer is written over them."""
    cuda = Driver()
    props = PoolProps(type=1, location=Location(1, 0))
    place = ctypes.byref(props, PoolProps.location.offset)
    cuda.good("cuMemPoolCreate", place, ctypes.byref(props))
    own = ctypes.cast(place, ctypes.POINTER(ctypes.c_void_p)).contents
    name = "cuMemAllocFromPoolAsync"
    return twice(lambda size: cuda.made(name, ctypes.byref(word()), ctypes.c_size_t(size), own, None), size)


def array(size):
    cuda = Driver()

    def make(size):
        text = ArrayText(width=4096, height=size // 4096 // 4 // 4, format=0x20, channels=4)
        return cuda.made("cuArrayCreate_v2", ctypes.byref(ctypes.c_void_p()), ctypes.byref(text))

    return twice(make, size)


def add_node(cuda, graph, size):
    params = NodeParams(pool=PoolProps(type=1, location=Location(1, 0)), size=size)
    return cuda.made("cuGraphAddMemAllocNode", ctypes.byref(ctypes.c_void_p()), graph, None, 0, ctypes.byref(params))


def launch_graph(cuda, graph):
    run = ctypes.c_void_p()
    cuda.good("cuGraphInstantiateWithFlags", ctypes.byref(run), graph, ctypes.c_ulonglong(0))
    return cuda.made("cuGraphLaunch", run, None)


def graph(size):
    """Two nodes in two graphs, each of which fits alone."""
    cuda = Driver()

    def make(size):
        own = ctypes.c_void_p()
        cuda.good("cuGraphCreate", ctypes.byref(own), 0)
        return add_node(cuda, own, size) and launch_graph(cuda, own)

    return twice(make, size)


def graph_nodes(size):
    """Two nodes in one graph."""
    cuda, own = Driver(), ctypes.c_void_p()
    cuda.good("cuGraphCreate", ctypes.byref(own), 0)
    held = twice(lambda size: add_node(cuda, own, size), size)
    return held if launch_graph(cuda, own) else size * cuda.plain(size)


def captured(size):
    """Allocations that are recorded, and made when the graph runs."""
    cuda, stream, own = Driver(), ctypes.c_void_p(), ctypes.c_void_p()
    cuda.good("cuStreamCreate", ctypes.byref(stream), 0)
    cuda.good("cuStreamBeginCapture_v2", stream, 0)
    name = "cuMemAllocAsync"
    held = twice(lambda size: cuda.made(name, ctypes.byref(word()), ctypes.c_size_t(size), stream), size)
    cuda.good("cuStreamEndCapture", stream, ctypes.byref(own))
    return held if launch_graph(cuda, own) else size * cuda.plain(size)


def context_ended(size):
    """Memory of the device's pool, asked for in contexts that end."""
    cuda = Driver()

    def make(size):
        own = ctypes.c_void_p()
        cuda.good("cuCtxCreate_v2", ctypes.byref(own), 0, 0)
        is_made = cuda.made("cuMemAllocAsync", ctypes.byref(word()), ctypes.c_size_t(size), None)
        cuda.good("cuCtxDestroy_v2", own)
        cuda.good("cuCtxSetCurrent", cuda.context)
        return is_made

    return twice(make, size)


def green_ended(size):
    """Plain memory, asked for in green contexts that end: it is the primary context's."""
    cuda = Driver()

    def make(size):
        green, own = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.good("cuGreenCtxCreate", ctypes.byref(green), None, 0, 1)
        cuda.good("cuCtxFromGreenCtx", ctypes.byref(own), green)
        cuda.good("cuCtxSetCurrent", own)
        is_made = cuda.plain(size)
        cuda.good("cuCtxSetCurrent", cuda.context)
        cuda.good("cuGreenCtxDestroy", green)
        return is_made

    return twice(make, size)


# --- environment and processes -----------------------------------------------------------------------------------


def command_of(name, size, *more):
    """This program with another attack; `size` is what that asks for at a time."""
    return [sys.executable, "-S", __file__, str(-(-size * 4 // 3)), name, *more]


def again(name, size, env, prefix=()):
    """The same program as a child, with another attack and this environment."""
    done = subprocess.run([*prefix, *command_of(name, size)], env=env, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise NotHereError(f"the child failed: {done.stderr.strip()[-200:]}")
    found = json.loads(done.stdout)
    if found["why"]:
        raise NotHereError(found["why"])
    return found["held_bytes"]


def environment_deleted(size):
    for name in [name for name in os.environ if name.startswith(("CARPOOL_", "LD_PRELOAD"))]:
        if not name.startswith("CARPOOL_STUB"):
            del os.environ[name]
    return plain(size)


def child(size):
    """The child asks while the parent holds."""
    cuda = Driver()
    held = size if cuda.plain(size) else 0
    return held + again("plain", size, dict(os.environ))


def child_unloaded(size):
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return again("plain", size, env)


def child_stripped(size):
    return again("plain", size, {name: os.environ[name] for name in STUB_ONLY if name in os.environ})


def child_unnamed(size):
    """The library is there, the job's account is not named."""
    return again("plain", size, {name: value for name, value in os.environ.items() if name != "CARPOOL_PAGE"})


def exec_unloaded(size):
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    sys.stdout.flush()
    os.execve(sys.executable, command_of("plain", size), env)


def forked(size):
    cuda = Driver()
    held = size if cuda.plain(size) else 0
    pid = os.fork()
    if pid == 0:
        os._exit(0 if cuda("cuMemAlloc_v2", ctypes.byref(word()), ctypes.c_size_t(size)) == 0 else 1)
    return held + (0 if os.waitpid(pid, 0)[1] else size)


def race(size):
    """Six processes ask at the same moment."""
    start, go = os.pipe()
    command = command_of("wait_plain", size, f"fd:{start}")
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[start])
        for _ in range(6)
    ]
    for each in children:
        each.stdout.readline()
    os.close(go)
    held = sum(json.loads(each.stdout.readline())["held_bytes"] for each in children)
    for each in children:
        each.communicate()
    return held


def wait_plain(size):
    cuda = Driver()
    print("ready", flush=True)
    os.read(int(sys.argv[3].removeprefix("fd:")), 1)
    held = size if cuda.plain(size) else 0
    print(json.dumps({"held_bytes": held, "why": ""}), flush=True)
    sys.stdin.read()  # until all have asked
    return held


def killed(size):
    """A process dies with the memory in its hands; its bytes must be free, and no more than those."""
    victim = subprocess.Popen(command_of("hold", size), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    victim.stdout.readline()
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    held = plain(size)
    if not held:
        raise NotHereError("the dead process's bytes are still counted")
    return held


def hold(size):
    held = size if Driver().plain(size) else 0
    print("ready", flush=True)
    sys.stdin.read()
    return held


@contextlib.contextmanager
def opened(size):
    """The driver, and the address of memory that another process of the job made, which ends with this."""
    maker = subprocess.Popen(command_of("share", size), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    text = maker.stdout.readline().strip()
    try:
        if not text.startswith("handle "):
            raise NotHereError("this driver shares no memory by handle")
        cuda, at = Driver(), word()
        handle = Handle.from_buffer_copy(bytes.fromhex(text.partition(" ")[2]))
        cuda.good("cuIpcOpenMemHandle_v2", ctypes.byref(at), handle, 1)
        yield cuda, at
    finally:
        maker.communicate()


def shared(size):
    """Memory of another process of the job, opened by handle: it counts where it was made."""
    with opened(size) as (cuda, _):
        return size + (size if cuda.plain(size) else 0)


def shared_left(size):
    """The same, but who made it ends, and somebody else still has it open."""
    with opened(size) as (cuda, at):
        pass
    held = size if cuda.plain(size) else 0
    is_there = cuda("cuMemsetD8_v2", at, 1, ctypes.c_size_t(size)) == 0
    return held + (size if is_there else 0)


def share(size):
    cuda, at = Driver(), word()
    handle = ctypes.create_string_buffer(64)
    cuda.good("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
    cuda.good("cuIpcGetMemHandle", handle, at)
    print(f"handle {handle.raw.hex()}", flush=True)
    sys.stdin.read()
    return size


def namespaces(size):
    """A process in a pid namespace of its own, as in a container: the pids of the others mean nothing there."""
    for enter in (["--pid", "--fork"], ["--user", "--map-root-user", "--pid", "--fork"]):
        if subprocess.run(["unshare", *enter, "true"], capture_output=True, check=False).returncode == 0:
            break
    else:
        raise NotHereError("this machine allows no pid namespace")
    cuda = Driver()
    held = size if cuda.plain(size) else 0
    return held + again("plain", size, dict(os.environ), prefix=["unshare", *enter])


def ask_carpool(*words):
    """A command of carpool from inside the job; without the driver's library in it, as it computes nothing."""
    command = [sys.executable, "-m", "carpool.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def resized(size):
    """The job asks for a larger cap of its own."""
    ask_carpool("resize", os.environ.get("CARPOOL_JOB", ""), "--memory", str(8 * size))
    return plain(size)


def nested(size):
    """A job inside the job, with a cap of its own, while this one holds what it may."""
    held = size if Driver().plain(size) else 0
    done = ask_carpool("run", "--memory", str(4 * size), "--", *command_of("plain", size))
    return held + (json.loads(done.stdout)["held_bytes"] if done.returncode == 0 else 0)


def page_written(size):
    """The job's page is the program's to write: here it raises its own cap."""
    path = os.environ.get("CARPOOL_PAGE")
    if not path:
        raise NotHereError("there is no page")
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as page:
        page[8 * CAP_WORD : 8 * CAP_WORD + 8] = (1 << 50).to_bytes(8, "little")
        return plain(size)


def find_attack(name):
    for module in (attack_doors, attack_compute, attack_host, attack_members, attack_resize, attack_turns):
        if hasattr(module, name):
            return getattr(module, name)
    return globals()[name]


def attack_alone(cap, name):
    size = cap * 3 // 4 // GRANULARITY * GRANULARITY
    kind = REPORTS.get(name.partition("_")[0], "held_bytes")
    try:
        found = {"attack": name, kind: find_attack(name)(size), "why": ""}
    except NotHereError as error:
        found = {"attack": name, "held_bytes": 0, "why": str(error)}
    if name not in ("wait_plain", "hold", "share", "turn_holding_too_much"):
        print(json.dumps(found), flush=True)


def attack_each(cap, names):
    for name in names:
        command = [sys.executable, "-S", __file__, str(cap), name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            said, line = done.stderr, done.stdout.strip()
        except subprocess.TimeoutExpired:
            said, line = "no answer in 60 s", ""
        print(line or json.dumps({"attack": name, "held_bytes": 0, "why": f"it failed: {said[-200:]}"}), flush=True)


def main():
    cap, names = int(sys.argv[1]), [name for name in sys.argv[2:] if not name.startswith("fd:")]
    if len(names) == 1:
        attack_alone(cap, names[0])
    else:
        attack_each(cap, names)


if __name__ == "__main__":
    main()
