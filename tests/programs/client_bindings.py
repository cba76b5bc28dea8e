"""cuda-bindings: figures before and after, all kinds of memory past the card, a kernel that really counts; as JSON.

The argument is how many MiB one allocation asks for: two of them are more than the card has.
"""

import ctypes
import json
import sys

import numpy
from cuda.bindings import driver


def good(answer):
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]


size = int(sys.argv[1]) << 20
good(driver.cuInit(0))
device = good(driver.cuDeviceGet(0))
good(driver.cuCtxSetCurrent(good(driver.cuDevicePrimaryCtxRetain(device))))
stream = good(driver.cuStreamCreate(0))


def virtual(bytes_):
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = 0
    return driver.cuMemCreate(bytes_, prop, 0)


def array(bytes_):
    text = driver.CUDA_ARRAY_DESCRIPTOR()
    text.Width, text.Height, text.NumChannels = 1024, bytes_ // 4096, 1
    text.Format = driver.CUarray_format.CU_AD_FORMAT_FLOAT
    return driver.cuArrayCreate(text)


pool = good(driver.cuDeviceGetDefaultMemPool(device))
attach = driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value
kinds = {
    "plain": (lambda: driver.cuMemAlloc(size), driver.cuMemFree),
    "pitch": (lambda: driver.cuMemAllocPitch(1024, size // 1024, 4)[:2], driver.cuMemFree),
    "managed": (lambda: driver.cuMemAllocManaged(size, attach), driver.cuMemFree),
    "async": (lambda: driver.cuMemAllocAsync(size, stream), lambda at: driver.cuMemFreeAsync(at, stream)),
    "pool": (lambda: driver.cuMemAllocFromPoolAsync(size, pool, stream), driver.cuMemFree),
    "virtual": (lambda: virtual(size), driver.cuMemRelease),
    "array": (lambda: array(size), driver.cuArrayDestroy),
}
seconds = {}
for kind, (make, end) in kinds.items():
    first = good(make())
    seconds[kind] = make()[0].name
    good(end(first))
    good(driver.cuCtxSynchronize())

numbers = numpy.arange(1000, dtype=numpy.int32)
at = good(driver.cuMemAlloc(numbers.nbytes))
good(driver.cuMemcpyHtoD(at, numbers.ctypes.data, numbers.nbytes))
function = good(driver.cuModuleGetFunction(good(driver.cuModuleLoadData(b"any image\0")), b"increment"))
values = ((int(at), len(numbers)), (ctypes.c_void_p, ctypes.c_int))
good(driver.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, values, 0))
good(driver.cuStreamSynchronize(stream))
back = numpy.zeros_like(numbers)
good(driver.cuMemcpyDtoH(back.ctypes.data, at, back.nbytes))
good(driver.cuMemFree(at))
free, total = good(driver.cuMemGetInfo())
print(
    json.dumps(
        {
            "totals": [total >> 20, good(driver.cuDeviceTotalMem(device)) >> 20],
            "free": free >> 20,
            "seconds": seconds,
            "sum": int((back - numbers).sum()),
        }
    ),
    flush=True,
)
