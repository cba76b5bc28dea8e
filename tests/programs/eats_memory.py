"""Trains while it hoards one more tensor of `--mib` MiB every step; with `--catch` it survives being refused.

After a refusal it keeps what it has, asks for no more, and trains on to the end. `--first` MiB are there before the
first step; with `--after FILE` that comes only once the file is there; `--thread` keeps a thread of its own. With
`--when FILE` it hoards only once that file is there.
"""

import argparse
import hashlib
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn


def fingerprint(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(tensor.detach().numpy())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mib", type=int, default=16, help="MiB hoarded per step")
    parser.add_argument("--first", type=int, default=0, help="MiB held from the start")
    parser.add_argument("--catch", action="store_true")
    parser.add_argument("--after", default="")
    parser.add_argument("--when", default="")
    parser.add_argument("--thread", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    hoard: list[torch.Tensor] = []
    if args.thread:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("ready", flush=True)
    while args.after and not Path(args.after).exists():
        time.sleep(0.02)
    held = [torch.ones(args.first, 1024, 1024, dtype=torch.uint8)]
    refused, value = False, 0.0
    for step in range(1, args.steps + 1):
        if not refused and (not args.when or Path(args.when).exists()):
            try:
                hoard.append(torch.ones(args.mib, 1024, 1024, dtype=torch.uint8))
            except RuntimeError as error:
                if not args.catch:
                    raise
                print(f"caught: {str(error).splitlines()[0]}", flush=True)
                refused = True
        x = torch.randn(64, 32)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        print(f"step={step} loss={value!r} hoard_mib={args.mib * len(hoard)}", flush=True)
    print(f"done steps={args.steps} loss={value!r} weights={fingerprint([*model.parameters(), *held])}", flush=True)


if __name__ == "__main__":
    main()
