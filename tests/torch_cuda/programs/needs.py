"""8 MiB of weights, AdamW, 48 MiB of scratch; says what torch's allocator held at the second step, as JSON."""

from __future__ import annotations

import json
import time

import torch

weight = torch.nn.Parameter(torch.randn(2 << 20).cuda())
optimizer = torch.optim.AdamW([weight])
found = {}
for step in range(6):
    scratch = torch.empty(48 << 20, dtype=torch.uint8, device="cuda")
    weight.square().mean().backward()
    del scratch
    optimizer.step()
    if step == 1:  # when the agent has learnt; nothing was freed since it looked
        stats = torch.cuda.memory_stats()
        found["held_bytes"] = stats["allocated_bytes.all.current"] + stats["inactive_split_bytes.all.current"]
        found["peak_bytes"] = stats["allocated_bytes.all.peak"]
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        found["left_bytes"] = total - free
    optimizer.zero_grad(set_to_none=False)
print(json.dumps(found))
time.sleep(0.5)  # for torch's autograd thread: who ends while it tidies up may be aborted (docs/interposer.md)
