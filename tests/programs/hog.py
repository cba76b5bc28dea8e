"""Trains, then multiplies matrices for `--seconds` with no boundary in sight, then trains again."""

import argparse
import hashlib
import time
from collections.abc import Iterable
from pathlib import Path

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
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        print(f"step={step} loss={value!r}", flush=True)
    return value


@torch.no_grad()
def burn(seconds: float, until: Path | None) -> int:
    """Keep every core busy; the number of products depends on the clock and touches no weight."""
    matrix = torch.eye(256)
    products, end = 0, time.monotonic() + seconds
    while time.monotonic() < end and not (until is not None and until.exists()):
        matrix = matrix @ matrix
        products += 1
    return products


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5, help="before the long section, and again after it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--until", type=Path, help="no longer than until this file is there")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(model, optimizer, 1, args.steps)
    print("hogging", flush=True)
    print(f"hogged products={burn(args.seconds, args.until)}", flush=True)
    value = train(model, optimizer, args.steps + 1, 2 * args.steps)
    print(f"done steps={2 * args.steps} loss={value!r} weights={fingerprint(model.parameters())}", flush=True)


if __name__ == "__main__":
    main()
