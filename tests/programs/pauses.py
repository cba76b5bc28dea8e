"""A notebook-like job: trains `--steps` steps, sleeps with no batch or graph alive, trains as many again."""

import argparse
import hashlib
import time
from collections.abc import Iterable

import torch
from torch import nn


def fingerprint(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> float:
    value = 0.0
    for step in range(first, last + 1):
        x = torch.randn(64, 32)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        print(f"step={step} loss={value!r}", flush=True)
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="before the pause, and again after it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(model, optimizer, 1, args.steps)
    print("pause", flush=True)
    time.sleep(args.pause)
    print("resume", flush=True)
    value = train(model, optimizer, args.steps + 1, 2 * args.steps)
    print(f"done steps={2 * args.steps} loss={value!r} weights={fingerprint(model.parameters())}", flush=True)


if __name__ == "__main__":
    main()
