"""Small Python programs that talk to the driver by ctypes: what a test runs where the probe has no command for it."""

from __future__ import annotations

import subprocess
import sys

PRELUDE = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, module, kernel, at = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_ulonglong()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0

def find(name):
    assert cuda.cuModuleLoadData(ctypes.byref(module), b"any image") == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, name) == 0
    return kernel

def allocate(size):
    return cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size))

def launch(name, *values):
    places = (ctypes.c_void_p * len(values))(*[ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values])
    return cuda.cuLaunchKernel(find(name), 2, 3, 1, 4, 1, 1, 0, None, places, None)

def wait():
    print("ready", flush=True)
    return sys.stdin.readline()
"""


class Script:
    """A running Python program that talks to the stand-in; it says `ready` and reads a line at each wait()."""

    def __init__(self, env: dict[str, str], text: str) -> None:
        command = [sys.executable, "-c", PRELUDE + text]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def line(self) -> str:
        assert self.process.stdout and self.process.stderr
        found = self.process.stdout.readline().strip()
        assert found, self.process.stderr.read()
        return found

    def go(self, text: str = "") -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=20)

    def end(self, *, warned: str = "") -> str:
        """Everything it still says, once it has ended by itself; on stderr one line that begins so, or nothing."""
        out, err = self.process.communicate(timeout=60)
        assert (self.process.returncode, err.count("\n")) == (0, 1 if warned else 0), err
        assert err.startswith(warned)
        return out
