"""Two layers and AdamW; prints what torch's allocator held at the second step, and the most until then, as JSON."""

from __future__ import annotations

import json

import torch

model = torch.nn.Sequential(torch.nn.Linear(1024, 2048, bias=False), torch.nn.ReLU()).cuda()
optimizer = torch.optim.AdamW(model.parameters())
found = {}


def at_boundary(step: int) -> None:
    """Exactly where the agent looks: after the step, before anything else is freed."""
    stats = torch.cuda.memory_stats()
    if step == 1:
        found["held_bytes"] = stats["allocated_bytes.all.current"] + stats["inactive_split_bytes.all.current"]
        found["peak_bytes"] = stats["allocated_bytes.all.peak"]


for step in range(6):
    inputs = torch.randn(2048, 1024).cuda()
    model(inputs).mean().backward()
    del inputs
    optimizer.step()
    at_boundary(step)
    optimizer.zero_grad(set_to_none=False)
print(json.dumps(found))
