"""A program of the driver's own interface, without torch: takes up to 1 GiB in pieces of 64 MiB; one JSON object."""

from __future__ import annotations

import ctypes
import json

PIECE = 64 << 20

cuda = ctypes.CDLL("libcuda.so.1")
context, total, left, at = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_ulonglong()
for name, *arguments in (
    ("cuInit", 0),
    ("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0),
    ("cuCtxSetCurrent", context),
    ("cuMemGetInfo_v2", ctypes.byref(left), ctypes.byref(total)),
):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name}: {code}"
held = 0
while code == 0 and held < 1 << 30:
    code = cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(PIECE))
    held += PIECE if code == 0 else 0
print(json.dumps({"total": total.value, "held": held, "code": code}), flush=True)
