"""Loss scaling that overflows now and then, so some iterations never call the optimizer.

The scale starts near the top of float32 and doubles after every third good step, so it keeps overflowing.
"""

import argparse
import hashlib
from collections.abc import Iterable

import torch
from torch import nn


def fingerprint(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=3)
    skipped, value = 0, 0.0
    for step in range(1, args.steps + 1):
        x = torch.randn(64, 32)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        stepped = scaler.get_scale() >= scale
        skipped += not stepped
        value = loss.item()
        print(f"step={step} loss={value!r} stepped={stepped}", flush=True)
    print(f"skipped={skipped}", flush=True)
    print(f"done steps={args.steps} loss={value!r} weights={fingerprint(model.parameters())}", flush=True)


if __name__ == "__main__":
    main()
