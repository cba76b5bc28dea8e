"""Replaces itself by exec once, as launchers do to set an environment variable, and then trains.

With `--before K` it first trains K steps of a throw-away model, so it has used the device when it execs.
"""

import argparse
import hashlib
import os
import sys
from collections.abc import Iterable

import torch
from torch import nn

MARKER = "PROGRAM_REEXECED"


def fingerprint(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


def train(steps: int, seed: int, label: str) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    value = 0.0
    for step in range(1, steps + 1):
        x = torch.randn(64, 32)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        print(f"{label}step={step} loss={value!r}", flush=True)
    print(f"{label}done steps={steps} loss={value!r} weights={fingerprint(model.parameters())}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--before", type=int, default=0)
    args = parser.parse_args()

    if MARKER not in os.environ:
        if args.before:
            train(args.before, args.seed, label="before ")
        print(f"exec pid={os.getpid()}", flush=True)
        os.environ[MARKER] = "1"
        os.execv(sys.executable, [sys.executable, __file__, *sys.argv[1:]])
    print(f"after exec pid={os.getpid()}", flush=True)
    train(args.steps, args.seed, label="")


if __name__ == "__main__":
    main()
