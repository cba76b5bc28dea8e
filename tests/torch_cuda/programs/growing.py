"""Trains, and takes 64 MiB more at each line of its input; says how much it holds, or that it was refused."""

from __future__ import annotations

import sys

import torch

weight = torch.nn.Parameter(torch.zeros(100, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.grad = torch.ones_like(weight)
for _ in range(4):
    optimizer.step()
held: list[torch.Tensor] = []
print("ready", flush=True)
for _ in sys.stdin:
    try:
        held.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        print("refused", flush=True)
    else:
        print(f"held {64 * len(held)} MiB", flush=True)
    optimizer.step()
