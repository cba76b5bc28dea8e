"""Train a perceptron on a table of numbers and categories, with Adagrad, a DataLoader and validation."""

import argparse
import hashlib
import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

NUMBERS = 24
CATEGORIES = (50, 20, 1_000, 7)


def make_table(rows: int, seed: int) -> TensorDataset:
    """Rows whose target depends on some numbers, one product of two, and the first category."""
    rng = torch.Generator().manual_seed(seed)
    numbers = torch.randn(rows, NUMBERS, generator=rng)
    categories = torch.stack([torch.randint(size, (rows,), generator=rng) for size in CATEGORIES], dim=1)
    effects = torch.randn(CATEGORIES[0], generator=rng)
    slopes = torch.randn(NUMBERS, generator=rng) / math.sqrt(NUMBERS)
    target = numbers @ slopes + numbers[:, 0] * numbers[:, 1] + effects[categories[:, 0]]
    return TensorDataset(numbers, categories, target + 0.1 * torch.randn(rows, generator=rng))


class TabularModel(nn.Module):
    """One embedding per category column beside the numbers, then a deep fully connected network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, 16) for size in CATEGORIES)
        self.layers = nn.Sequential(
            nn.Linear(NUMBERS + 16 * len(CATEGORIES), width),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(width, 1),
        )

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        embedded = [table(categories[:, i]) for i, table in enumerate(self.embeddings)]
        return self.layers(torch.cat([numbers, *embedded], dim=1)).squeeze(1)


@torch.no_grad()
def validation_loss(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]], device: str) -> float:
    model.eval()
    losses = [
        F.mse_loss(model(numbers.to(device), categories.to(device)), target.to(device)).item()
        for numbers, categories, target in loader
    ]
    model.train()
    return sum(losses) / len(losses)


def fingerprint(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="save the weights here at the end")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    order = torch.Generator().manual_seed(args.seed)
    training, validation = torch.utils.data.random_split(make_table(args.rows, args.seed), [0.9, 0.1], order)
    batches = DataLoader(training, args.batch, shuffle=True, num_workers=args.workers, generator=order)
    held_out = DataLoader(validation, 1_000)
    model = TabularModel(args.width).to(device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)

    step, value = 0, math.nan
    while step < args.steps:
        for numbers, categories, target in batches:
            loss = F.mse_loss(model(numbers.to(device), categories.to(device)), target.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0 or step == args.steps:
                value = loss.item()
                print(f"step={step} loss={value!r}", flush=True)
            if step == args.steps:
                break
        print(f"validation step={step} loss={validation_loss(model, held_out, device)!r}", flush=True)
    if args.out:
        torch.save(model.state_dict(), args.out)
    print(f"done steps={args.steps} loss={value!r} weights={fingerprint(model.parameters())}", flush=True)


if __name__ == "__main__":
    main()
