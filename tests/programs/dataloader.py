"""A training script fed by a DataLoader, with worker processes if asked; its epochs are 16 batches long."""

import argparse
import hashlib
from collections.abc import Iterable

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler


class Sums(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """256 rows of 32 numbers and their sums, each row made when it is asked for."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = torch.randn(32, generator=torch.Generator().manual_seed(index))
        return row, row.sum(0, keepdim=True)


def fingerprint(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--context", choices=["fork", "spawn"], default="fork")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    rows = Sums()
    # The order has a generator of its own, so the losses are the same with any number of workers.
    order = RandomSampler(rows, generator=torch.Generator().manual_seed(args.seed))
    loader = DataLoader(
        rows,
        batch_size=16,
        sampler=order,
        num_workers=args.workers,
        multiprocessing_context=args.context if args.workers else None,
        persistent_workers=args.workers > 0,
    )
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step, value = 0, 0.0
    while step < args.steps:
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step, value = step + 1, loss.item()
            print(f"step={step} loss={value!r}", flush=True)
            if step == args.steps:
                break
    print(f"done steps={args.steps} loss={value!r} weights={fingerprint(model.parameters())}", flush=True)


if __name__ == "__main__":
    main()
