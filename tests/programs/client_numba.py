"""numba-cuda: arrays there and back, figures, the refusal; with NVIDIA's compilers a kernel of its own making."""

import json
import sys
import warnings

import numpy
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

size = int(sys.argv[1]) << 20
numbers = numpy.arange(1000)
there = cuda.to_device(numbers)
is_same = bool((there.copy_to_host() == numbers).all())
info = cuda.current_context().get_memory_info()
held = cuda.device_array(size, dtype=numpy.uint8)
left = cuda.current_context().get_memory_info().free
try:
    cuda.device_array(size, dtype=numpy.uint8)
    refusal = 0
except CudaAPIError as error:
    refusal = int(error.code)
try:
    warnings.simplefilter("ignore")

    @cuda.jit
    def add(values):
        at = cuda.grid(1)
        if at < values.size:
            values[at] += 1

    add[8, 128](there)
    cuda.synchronize()
    compiled = "launched"
except RuntimeError as error:  # pathfinder's own class is one
    compiled = "no compilers" if "nvrtc" in str(error) or "nvvm" in str(error) else repr(error)
print(
    json.dumps(
        {
            "is_same": is_same,
            "total": info.total >> 20,
            "free": info.free >> 20,
            "left": left >> 20,
            "refusal": refusal,
            "compiled": compiled,
        }
    ),
    flush=True,
)
