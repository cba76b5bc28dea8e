"""tinygrad's CUDA backend: a kernel that it compiles itself, then pieces of so many MiB until it is refused."""

import json
import sys

from tinygrad import Device, Tensor

held = []
total = (Tensor.ones(1000, device="CUDA").contiguous() + 1).realize()
Device["CUDA"].synchronize()
found = {"device": total.device, "refusal": ""}
try:
    while len(held) < 10:
        held.append(Device["CUDA"].allocator.alloc(int(sys.argv[1]) << 20))
except MemoryError as error:
    found["refusal"] = str(error)
print(json.dumps(found | {"held": len(held)}), flush=True)
