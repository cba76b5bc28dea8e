"""A training script as people write them: shuffled data, noise, dropout, clipping, a schedule, evaluation."""

import argparse
import random
import time

import numpy
import torch
from held import fingerprint
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Noisy(Dataset):
    """Every sample is disturbed by another random number, as augmentation does it."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(count, 32, generator=generator)
        self.y = (self.x.sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        x = self.x[index]
        if random.random() < 0.5:
            x = x.flip(0)
        return x + float(numpy.random.normal()) * 0.1, int(self.y[index])


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3))
        self.out = nn.Linear(width, 2)
        self.calls = 0  # plain Python state that a skipped call would not change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.out(self.layers(x))


def evaluate(model: Net, loader: DataLoader[tuple[torch.Tensor, ...]]) -> float:
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in loader:
            right += (model(x).argmax(1) == y).sum().item()
    model.train()
    return right / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--every", type=int, default=2, help="micro batches in a step")
    parser.add_argument("--unseeded", action="store_true", help="begin with the random numbers of the day")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of rest in each step")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not args.unseeded:
        torch.manual_seed(1)
        random.seed(1)
        numpy.random.seed(1)
    model = Net(args.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
    loader = DataLoader(Noisy(256), batch_size=8, shuffle=True, num_workers=args.workers)
    tests = Noisy(64)
    best, share, mean = 0.0, 0.0, torch.zeros(())
    for epoch in range(args.epochs):
        total = 0.0
        for count, (x, y) in enumerate(loader, start=1):
            out = model(x)
            share += x[out.argmax(1) == y].shape[0] / 100  # a shape that depends on values
            loss = nn.functional.cross_entropy(out, y) / args.every
            loss.backward()
            total += loss.item()
            if count % args.every == 0:
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                time.sleep(args.pause)
                mean = 0.9 * mean + 0.1 * loss.detach()
                print(
                    f"epoch={epoch} count={count} loss={total!r} share={share!r} norm={norm:.6f} mean={mean}",
                    flush=True,
                )
                if norm > 0.5:
                    print(f"steep {random.random()!r}", flush=True)
        schedule.step()
        accuracy = evaluate(model, DataLoader(TensorDataset(tests.x, tests.y), batch_size=16))
        if accuracy > best:
            best = accuracy
            torch.save(model.state_dict(), "/dev/null")
        print(f"epoch={epoch} accuracy={accuracy!r} best={best!r} rate={schedule.get_last_lr()}", flush=True)
    print(f"done calls={model.calls} weights={fingerprint(model.state_dict().values())}", flush=True)


if __name__ == "__main__":
    main()
