"""Data-parallel training over loopback: `torchrun --nproc-per-node 2 ddp.py`; each line names its rank."""

import argparse
import gc
import hashlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def fingerprint(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


def say(line: str) -> None:
    """Print in one write: torchrun starts Python unbuffered, and the ranks share one stdout."""
    print(f"{line}\n", end="", flush=True)


def is_enough(until: Path | None) -> bool:
    """Whether the file is there, as the first rank sees it: all end after the same step."""
    if until is None:
        return False
    seen = torch.tensor([until.exists()])
    dist.broadcast(seen, src=0)
    return bool(seen)


def train(rank: int, steps: int, seed: int, pause_s: float, until: Path | None) -> None:
    torch.manual_seed(seed)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    rng = torch.Generator().manual_seed(seed + rank)
    value, step = 0.0, 0
    for step in range(1, steps + 1):
        x = torch.randn(64, 32, generator=rng)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        say(f"rank={rank} step={step} loss={value!r}")
        time.sleep(pause_s)
        if is_enough(until):
            break
    weights = fingerprint(model.parameters())
    say(f"rank={rank} done steps={step} loss={value!r} weights={weights}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of rest in each step")
    parser.add_argument("--until", type=Path, help="end after the step that finds this file, if that is earlier")
    args = parser.parse_args()

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    try:
        train(dist.get_rank(), args.steps, args.seed, args.pause, args.until)
    finally:
        # DDP modules are cycles and keep the group alive: its threads would outlive the interpreter and abort
        # (pytorch pull request 179291), in one of a hundred runs on a busy machine.
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
