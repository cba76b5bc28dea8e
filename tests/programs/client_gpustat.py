"""gpustat: what it says of card 0 while this process holds so many MiB, by its API and by its command."""

import ctypes
import json
import os
import subprocess
import sys

import gpustat

cuda = ctypes.CDLL("libcuda.so.1")
context, at = ctypes.c_void_p(), ctypes.c_ulonglong()
assert cuda.cuInit(0) == 0 == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(int(sys.argv[1]) << 20)) == 0
card = gpustat.new_query().gpus[0]
shown = subprocess.run([sys.executable, "-m", "gpustat", "--no-color"], capture_output=True, text=True, timeout=60)
found = {
    "total": card.memory_total,
    "used": card.memory_used,
    "own": [each["gpu_memory_usage"] for each in card.processes if each["pid"] == os.getpid()],
    "shown": shown.stdout,
    "errors": shown.stderr,
}
print(json.dumps(found), flush=True)
