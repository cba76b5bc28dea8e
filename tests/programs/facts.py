"""Prints everything that a program can tell of how it was started, one fact a line: a cold and a warm start agree."""

import atexit
import json
import locale
import logging
import multiprocessing
import os
import pickle
import resource
import signal
import stat
import sys
import threading
import time
import traceback
import warnings

LIBC = 3 << 31  # signals 32 and 33 are the C library's own
BEFORE = sorted(name for name in sys.modules if name.partition(".")[0] in ("torch", "numpy", "sympy", "networkx"))


class Thing:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(self) is type(other) and self.value == other.value


def double(number):
    return 2 * number


def in_workers(method):
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map(double, [1, 2, 3])


def status(name):
    with open("/proc/self/status") as lines:
        return next((line.split(":")[1].strip() for line in lines if line.startswith(name + ":")), None)


def kind(number):
    mode = os.fstat(number).st_mode
    return f"{stat.S_IFMT(mode):o} {os.get_inheritable(number)}"


def stream(name):
    found = getattr(sys, name)
    names = ("name", "mode", "encoding", "errors", "line_buffering", "write_through", "newlines")
    kept = found is getattr(sys, f"__{name}__")
    return [
        *(getattr(found, each) for each in names),
        found.isatty(),
        found.fileno(),
        type(found.buffer).__name__,
        kept,
    ]


def start():
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "flags": str(sys.flags),
        "warnoptions": sys.warnoptions,
        "executable": [sys.executable, sys._base_executable, sys.prefix, sys.exec_prefix, sys.base_prefix],
        "main": [__name__, __file__, __package__, repr(__spec__), type(__loader__).__name__, __loader__.path],
        "main names": sorted(name for name in globals() if name.startswith("__")),
        "main module": sys.modules["__main__"].__dict__ is globals(),
        "modules at the start": BEFORE,
        "excepthook": sys.excepthook is sys.__excepthook__,
        "recursion": sys.getrecursionlimit(),
        "threads": [threading.current_thread() is threading.main_thread(), threading.active_count()],
        "tasks": len(os.listdir("/proc/self/task")),
        "filters": [str(each) for each in warnings.filters],
        "gc": __import__("gc").get_threshold(),
    }


def process():
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    numbers = sorted(signal.valid_signals())
    return {
        "cwd": os.getcwd(),
        "umask": status("Umask"),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "scheduler": os.sched_getscheduler(0),
        "cpus": sorted(os.sched_getaffinity(0)),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in names},
        "handlers": {number: str(signal.getsignal(number)) for number in numbers},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "signals": [int(status(name), 16) & ~LIBC for name in ("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd")],
        "wakeup": signal.set_wakeup_fd(-1),
        "rights": [status(name) for name in ("Uid", "Gid", "Groups", "CapEff", "Seccomp", "NoNewPrivs")],
        "name": status("Name"),
        "files": {name: kind(int(name)) for name in os.listdir("/proc/self/fd") if int(name) < 50 and exists(name)},
        "streams": [stream(name) for name in ("stdin", "stdout", "stderr")],
        "environment": {name: value for name, value in os.environ.items() if "CARPOOL" not in name},
        "carpool's": sorted(name for name in os.environ if "CARPOOL" in name),
        "bytes": os.environb[b"HOME"].decode(),
        "locale": [locale.getlocale(), locale.getpreferredencoding(False), sys.getfilesystemencoding(), time.tzname],
        "logging": abs(time.time() - logging._startTime) < 60,
        "used": time.process_time() < 60,
    }


def exists(name):
    return os.path.exists(f"/proc/self/fd/{name}")


def frames():
    try:
        raise ValueError("seen")
    except ValueError:
        return traceback.format_exc()


def after_torch():
    import torch

    torch.manual_seed(7)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.ones(4, 8)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {
        "weights": float(sum(parameter.double().detach().sum() for parameter in model.parameters())),
        "threads of torch": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "settings": torch.__config__.parallel_info().splitlines()[:8],
        "torch": [name in sys.modules for name in ("torch", "torch.nn", "torch._dynamo", "numpy", "torch.fx")],
        "filters then": [str(each) for each in warnings.filters],
        "spec": [str(torch.__spec__.loader).partition(" object")[0], torch.__spec__.origin, torch.__file__],
        "pickled model": type(pickle.loads(pickle.dumps(model))).__name__,
    }


if __name__ == "__main__":
    facts = {**start(), **process(), "frames": frames(), "pickled": pickle.loads(pickle.dumps(Thing(3))) == Thing(3)}
    facts["fork"], facts["spawn"] = in_workers("fork"), in_workers("spawn")
    facts["session"] = os.fork() == 0 and (os.setsid(), os._exit(0))
    os.wait()
    facts |= after_torch()
    for name, fact in facts.items():
        print(f"{name}: {json.dumps(fact, sort_keys=True, default=str)}")
    atexit.register(print, "at its end")
    os.setsid()
    sys.exit(5)
