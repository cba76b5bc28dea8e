"""nvidia-ml-py: every memory figure of card 0, in MiB, as JSON; with an argument, what it says of that process."""

import json
import sys

import pynvml

pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
first, second = (pynvml.nvmlDeviceGetMemoryInfo(card, version=v) for v in (None, pynvml.nvmlMemory_v2))
same = pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(card))
found = {
    "name": pynvml.nvmlDeviceGetName(card),
    "count": pynvml.nvmlDeviceGetCount(),
    "totals": [first.total >> 20, second.total >> 20, pynvml.nvmlDeviceGetMemoryInfo(same).total >> 20],
    "frees": [first.free >> 20, second.free >> 20],
    "useds": [first.used >> 20, second.used >> 20],
    "processes": [[p.pid, p.usedGpuMemory >> 20] for p in pynvml.nvmlDeviceGetComputeRunningProcesses(card)],
    "busy": [[s.pid, s.smUtil] for s in pynvml.nvmlDeviceGetProcessUtilization(card, 0)] if len(sys.argv) > 1 else [],
}
try:
    pynvml.nvmlDeviceGetFanSpeed(card)
except pynvml.NVMLError_NotSupported:
    found["fan"] = "not supported"
print(json.dumps(found), flush=True)
