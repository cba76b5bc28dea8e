"""Tensors that others look at too: every alias is printed at every step, and written through now and then."""

import ctypes
import sys
import time

import numpy as np
import torch

COUNT = 1 << 14  # of numbers in each: large enough to be worth a move

torch.manual_seed(0)
net = torch.nn.Linear(400, 400)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
batch = torch.randn(8, 400)
bases = {name: torch.zeros(COUNT) for name in ("array", "tensor", "capsule", "address", "storage", "numpy", "plain")}
kept = torch.utils.dlpack.to_dlpack(bases["capsule"])
read = ctypes.c_float * COUNT
aliases = {
    "array": np.from_dlpack(bases["array"]),
    "tensor": torch.from_dlpack(bases["tensor"]),
    "capsule": torch.from_dlpack(kept),
    "address": read.from_address(bases["address"].data_ptr()),
    "storage": read.from_address(bases["storage"].untyped_storage().data_ptr()),
    "numpy": bases["numpy"].numpy(),
    "plain": bases["plain"].view(128, -1)[0],
}

for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    loss = net(batch).pow(2).mean()
    loss.backward()
    for name, base in bases.items():
        base += 1
        aliases[name][5] += step % 3
    optimizer.step()
    time.sleep(float(sys.argv[2]))
    seen = [f"{name} {base[5].item()} {float(aliases[name][5])}" for name, base in bases.items()]
    print(step, f"{loss.item():.9f}", *seen, flush=True)
