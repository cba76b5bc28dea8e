"""Training scripts of unusual shape, as text; a test writes them to a file and runs them unmodified."""

from __future__ import annotations

from pathlib import Path

# Cross-validation: each fold evaluates, then trains with an optimizer of its own. Like many libraries it asks first
# whether torch could be found. L-BFGS calls backward twenty times inside its very first step.
FOLDS = """
import importlib.util
assert importlib.util.find_spec("torch") is not None
import torch
from torch import nn

torch.manual_seed(0)
kinds = [
    lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    lambda parameters: torch.optim.LBFGS(parameters, lr=0.5, max_iter=20),
    lambda parameters: torch.optim.Adam(parameters),
]
data = torch.randn(128, 32)
for fold, make in enumerate(kinds):
    model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 1))
    optimizer = make(model.parameters())
    with torch.no_grad():
        print("before", [nn.functional.mse_loss(model(data), data.sum(1, keepdim=True)).item() for _ in range(3)])

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(data), data.sum(1, keepdim=True))
        loss.backward()
        return loss

    for step in range(15):
        print(fold, step, repr(optimizer.step(closure).item()), flush=True)
"""

# A whole step compiled as one graph (a hook that breaks the graph would be an error), evaluated now and then.
ONE_GRAPH = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.AdamW(model.parameters())


@torch.compile(backend="eager", fullgraph=True)
def loss_of(x):
    return nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))


for step in range(40):
    loss = loss_of(torch.randn(64, 32))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
    if step % 10 == 9:
        with torch.no_grad():
            print("evaluated", repr(sum(model(torch.randn(64, 32)).mean().item() for _ in range(5))), flush=True)
"""

# Two ranks that read their own data, one of them slower than the other: both must stop at the same step.
RANKS_WITH_DATA = """
import os, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 8 * 100

    def __getitem__(self, index):
        if index % 40 == 8 * rank:
            time.sleep(0.004)
        return torch.randn(32, generator=torch.Generator().manual_seed(index))


os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1)))
optimizer = torch.optim.Adam(model.parameters())
for step, x in enumerate(DataLoader(Rows(), batch_size=8), start=1):
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"rank={rank} step={step} loss={loss.item()!r}\\n", end="", flush=True)
dist.destroy_process_group()
"""

# Knows its own numbers: 128 MiB of weights, as many gradients and momenta, and ten saved activations of 16 MiB.
KNOWN_SIZES = """
import torch

torch.manual_seed(0)
weights = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(1024, 4096)) for _ in range(8))
optimizer = torch.optim.SGD(weights, lr=0.01, momentum=0.9)
for step in range(6):
    x = weights[0] + 1.0
    for _ in range(9):
        x = torch.tanh(x)
    loss = x.mean() + sum(weight.mean() for weight in weights)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
held = [*weights, *(weight.grad for weight in weights)]
held += [state["momentum_buffer"] for state in optimizer.state.values()]
print(sum(tensor.nbytes for tensor in held), flush=True)
"""

# Trains for a moment, then only sleeps: what a script does while it uploads its results.
TRAINS_THEN_SLEEPS = """
import time
import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.Adam(model.parameters())
for step in range(10):
    optimizer.zero_grad()
    model(torch.randn(64, 32)).mean().backward()
    optimizer.step()
print("trained", flush=True)
time.sleep(60)
"""


def write(directory: Path, name: str, text: str) -> str:
    """Put a script into a file; returns its path."""
    path = directory / f"{name}.py"
    path.write_text(text)
    return str(path)


ACCUMULATES = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
data = torch.randn(20, 512, 64)
for step in range(8):
    optimizer.zero_grad()
    for x in [*data, *data]:  # no loader: nothing but the backwards is between two steps
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
"""

NO_GRAD_INSIDE = """
import torch
from torch import nn


class Served(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512))

    @torch.no_grad()
    def forward(self, x):
        return {"out": self.layers(x), "also": [x]}


torch.manual_seed(0)
model = Served()
for step in range(90):
    print(step, repr(model(torch.randn(2048, 64))["out"].sum().item()), flush=True)
"""

GRAD_FORGOTTEN = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512))
for step in range(106):
    print(step, repr(model(torch.randn(1024, 64)).sum().item()), flush=True)
"""

# Trains from a loader, then evaluates on tensors it has: no loader and no optimizer tells where a turn may go.
EVALUATES = """
import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(torch.randn(1024, 64), batch_size=64):
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(repr(loss.item()), flush=True)
del x, loss
optimizer.zero_grad()
with torch.no_grad():
    total = 0.0
    for each in range(800):
        total += model(torch.full((512, 64), each / 800)).mean().item()
print("evaluated", repr(total), flush=True)
"""
