"""The package's entry: trains the model of `package.model`, found by a relative import."""

import argparse

import torch
from torch import nn

from .model import Regressor, fingerprint


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m package", description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = Regressor(32, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    value = 0.0
    for step in range(1, args.steps + 1):
        x = torch.randn(64, 32)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        print(f"step={step} loss={value!r}", flush=True)
    print(f"done steps={args.steps} loss={value!r} weights={fingerprint(model)}", flush=True)


if __name__ == "__main__":
    main()
