"""A script that starves for input: its Dataset sleeps `--sleep` seconds for every batch of four."""

import argparse
import hashlib
import time
from collections.abc import Iterable

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 4


class SlowRows(Dataset[torch.Tensor]):
    """Rows that take their time, as if read from a slow disk."""

    def __init__(self, rows: int, sleep_s: float) -> None:
        self.rows, self.sleep_s = rows, sleep_s

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.sleep_s)
        return torch.randn(32, generator=torch.Generator().manual_seed(index))


def fingerprint(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sleep", type=float, default=0.1, help="seconds per batch")
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    rows = SlowRows(args.steps * BATCH, args.sleep / BATCH)
    loader = DataLoader(rows, batch_size=BATCH, num_workers=args.workers)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    value = 0.0
    for step, x in enumerate(loader, start=1):
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        print(f"step={step} loss={value!r}", flush=True)
    print(f"done steps={args.steps} loss={value!r} weights={fingerprint(model.parameters())}", flush=True)


if __name__ == "__main__":
    main()
