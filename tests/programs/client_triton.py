"""Triton without torch: a kernel compiled, loaded and launched, then pieces of so many MiB until it is refused."""

import ctypes
import json
import sys

import triton
import triton.language as tl

cuda = ctypes.CDLL("libcuda.so.1")


class Buffer:
    """What Triton takes for a tensor."""

    dtype = "float32"

    def __init__(self, size):
        self.at = ctypes.c_ulonglong()
        self.result = cuda.cuMemAlloc_v2(ctypes.byref(self.at), ctypes.c_size_t(size))

    def data_ptr(self):
        return self.at.value


@triton.jit
def add_one(array, count, BLOCK: tl.constexpr):  # noqa: N803 (Triton's way)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(array + at, tl.load(array + at, mask=at < count) + 1, mask=at < count)


context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0 == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert cuda.cuCtxSetCurrent(context) == 0 == cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
made = add_one[(4,)](Buffer(4096), 1000, BLOCK=256)
assert cuda.cuCtxSynchronize() == 0
found = {
    "backend": triton.runtime.driver.active.get_current_target().backend,
    "free": free.value >> 20,
    "total": total.value >> 20,
    "cubin": len(made.asm["cubin"]),
    "results": [Buffer(int(sys.argv[1]) << 20).result for _ in range(2)],
    "torch": "torch" in sys.modules,
}
print(json.dumps(found), flush=True)
