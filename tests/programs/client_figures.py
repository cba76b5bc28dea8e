"""nvidia-ml-py: every query that tells bytes of a card, by the name of NVML's function, in MiB, as JSON. Arguments:
the card's number, then processes whose accounts are asked for. What nvidia-ml-py does not offer is called as it
calls."""

import ctypes
import json
import sys

import pynvml as n

MIB = 20
n.nvmlInit()
card, pids = n.nvmlDeviceGetHandleByIndex(int(sys.argv[1])), [int(pid) for pid in sys.argv[2:]]


class FirstInfo(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong)]


class ThirdProfile(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("counts", ctypes.c_uint * 9),
        ("memorySizeMB", ctypes.c_ulonglong),
        ("name", ctypes.c_char * 96),
        ("capabilities", ctypes.c_uint),
    ]


def call(name, *arguments):
    function = n._nvmlGetFunctionPointer(name)
    result = function(*arguments)
    assert result == 0, (name, result)


def first_list(name):
    count, room = ctypes.c_uint(64), (FirstInfo * 64)()
    call(name, card, ctypes.byref(count), room)
    return room[: count.value]


def shown(processes):
    return sorted([process.pid, process.usedGpuMemory >> MIB] for process in processes)


def memory(figures, *more):
    return [getattr(figures, name) >> MIB for name in ("total", "free", "used", *more)]


found = {
    "nvmlDeviceGetMemoryInfo": memory(n.nvmlDeviceGetMemoryInfo(card)),
    "nvmlDeviceGetMemoryInfo_v2": memory(n.nvmlDeviceGetMemoryInfo(card, version=n.nvmlMemory_v2), "reserved"),
    "nvmlDeviceGetConfComputeProtectedMemoryUsage": memory(n.nvmlDeviceGetConfComputeProtectedMemoryUsage(card)),
}

sizes = n.nvmlDeviceGetConfComputeMemSizeInfo(card)
found["nvmlDeviceGetConfComputeMemSizeInfo"] = [
    sizes.protectedMemSizeKib >> 10,
    sizes.unprotectedMemSizeKib >> 10,
]
window = n.nvmlDeviceGetBAR1MemoryInfo(card)
found["nvmlDeviceGetBAR1MemoryInfo"] = [window.bar1Total >> MIB, window.bar1Free >> MIB, window.bar1Used >> MIB]
limits = n.c_nvmlGetMemoryLimits_v1_t()
n.nvmlDeviceGetMemoryLimits_v1(card, limits)
found["nvmlDeviceGetMemoryLimits_v1"] = [limits.softLimit >> MIB, limits.hardLimit >> MIB, limits.currentUsed >> MIB]

attributes = n.c_nvmlDeviceAttributes()
call("nvmlDeviceGetAttributes", card, ctypes.byref(attributes))
found["nvmlDeviceGetAttributes"] = [attributes.memorySizeMB]
found["nvmlDeviceGetAttributes_v2"] = [n.nvmlDeviceGetAttributes(card).memorySizeMB]

third = ThirdProfile(version=ctypes.sizeof(ThirdProfile) | 3 << 24)
call("nvmlDeviceGetGpuInstanceProfileInfoV", card, 0, ctypes.byref(third))
by_id = ThirdProfile(version=ctypes.sizeof(ThirdProfile) | 3 << 24)
call("nvmlDeviceGetGpuInstanceProfileInfoByIdV", card, 0, ctypes.byref(by_id))
profile = n.nvmlDeviceGetGpuInstanceProfileInfo
found["nvmlDeviceGetGpuInstanceProfileInfo"] = [profile(card, 0, version=1).memorySizeMB]
found["nvmlDeviceGetGpuInstanceProfileInfoV"] = [profile(card, 0).memorySizeMB, third.memorySizeMB]
found["nvmlDeviceGetGpuInstanceProfileInfoByIdV"] = [
    n.nvmlDeviceGetGpuInstanceProfileInfoById(card, 0).memorySizeMB,
    by_id.memorySizeMB,
]

for name in ("nvmlDeviceGetAccountingStats", "nvmlDeviceGetAccountingStats_v2"):
    found[name] = [getattr(n, name)(card, pid).maxMemoryUsage >> MIB for pid in pids]

for kind in ("Compute", "Graphics", "MPSCompute"):
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    found[name] = shown(first_list(name))
    for version in ("_v2", "_v3"):
        found[name + version] = shown(getattr(n, name + version)(card))
details = n.nvmlDeviceGetRunningProcessDetailList(card, n.nvmlProcessDetailList_v1, n.NVML_PROCESS_MODE_COMPUTE)
found["nvmlDeviceGetRunningProcessDetailList"] = shown(details)
assert all(process.usedGpuCcProtectedMemory == process.usedGpuMemory for process in details)
print(json.dumps(found), flush=True)
