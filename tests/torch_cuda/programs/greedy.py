"""Trains a little, then takes 64 MiB after 64 MiB until it is refused."""

from __future__ import annotations

import torch

weight = torch.nn.Parameter(torch.zeros(100, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.grad = torch.ones_like(weight)
for _ in range(4):
    optimizer.step()
held = []
while True:
    held.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
    print(f"held {64 * len(held)} MiB", flush=True)
