"""A linear model with momentum, and a table it only keeps; prints each loss, then a hash of all its bytes."""

from __future__ import annotations

import argparse
import hashlib
import time
import warnings

import torch

warnings.filterwarnings("ignore", "Attempting to run cuBLAS")  # torch's word for the first product of a thread

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--pause", type=float, default=0.0)
parser.add_argument("--table", type=int, default=8, help="MiB")
parser.add_argument("--graph", action="store_true", help="capture a CUDA graph first")
options = parser.parse_args()

torch.manual_seed(0)
device = torch.device(options.device)
table = torch.randint(0, 256, (options.table << 20,), dtype=torch.uint8).to(device)
weight = torch.nn.Parameter(torch.randn(256, 128).to(device))
optimizer = torch.optim.SGD([weight], lr=1e-4, momentum=0.9, foreach=False)
if options.graph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        table + 1
for step in range(options.steps):
    inputs, wanted = torch.randn(64, 256).to(device), torch.randn(64, 128).to(device)
    result = inputs @ weight
    error = result.detach() - wanted
    optimizer.zero_grad()
    result.backward(error)
    del result
    optimizer.step()
    print(f"step {step} {error.cpu().square().sum().item():.6f}", flush=True)
    time.sleep(options.pause)
momentum = optimizer.state[weight]["momentum_buffer"]
digest = hashlib.sha256()
for tensor in (table, weight, weight.grad, momentum):
    digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
print(f"hash {digest.hexdigest()}", flush=True)
time.sleep(0.5)  # for torch's autograd thread: who ends while it tidies up may be aborted (docs/interposer.md)
