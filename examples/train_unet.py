"""Train a small U-Net to find discs in noisy pictures, with RMSprop and gradients summed over micro-batches.

A step is one optimizer step, so it is `--accumulate` forward and backward passes.
"""

import argparse
import hashlib
import math
from collections.abc import Iterable
from itertools import chain

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def make_discs(count: int, side: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noisy grey pictures with three discs each, and the mask that a perfect model would answer."""
    axis = torch.linspace(-1, 1, side)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    place = torch.rand(count, 3, 2, 1, 1, generator=rng) * 1.6 - 0.8
    radius = torch.rand(count, 3, 1, 1, generator=rng) * 0.25 + 0.1
    inside = (x - place[:, :, 0]) ** 2 + (y - place[:, :, 1]) ** 2 < radius**2
    mask = inside.any(dim=1, keepdim=True).float()
    return mask + 0.7 * torch.randn(mask.shape, generator=rng), mask


def double_conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Three levels down, three levels up, each level joined to its twin."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(map(double_conv, [1, *widths[:-1]], widths))
        self.bottom = double_conv(widths[-1], 2 * widths[-1])
        self.widen = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths))
        self.up = nn.ModuleList(double_conv(2 * w, w) for w in reversed(widths))
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        twins = []
        for block in self.down:
            x = block(x)
            twins.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for widen, block in zip(self.widen, self.up, strict=True):
            x = block(torch.cat([twins.pop(), widen(x)], dim=1))
        return self.head(x)


def segmentation_loss(logits: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy of each pixel plus one minus the soft Dice overlap."""
    guess = torch.sigmoid(logits)
    overlap = (2 * (guess * mask).sum() + 1) / (guess.sum() + mask.sum() + 1)
    return F.binary_cross_entropy_with_logits(logits, mask) + 1 - overlap


def fingerprint(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=2, help="pictures per micro-batch")
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="save the weights here at the end")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    rng = torch.Generator().manual_seed(args.seed)
    model = UNet(args.width).to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)

    total = math.nan
    for step in range(1, args.steps + 1):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(args.accumulate):
            pictures, mask = make_discs(args.batch, args.side, rng)
            loss = segmentation_loss(model(pictures.to(device)), mask.to(device)) / args.accumulate
            loss.backward()
            total += loss.item()
        optimizer.step()
        if step % 5 == 0 or step == args.steps:
            print(f"step={step} loss={total!r}", flush=True)
    if args.out:
        torch.save(model.state_dict(), args.out)
    weights = fingerprint(chain(model.parameters(), model.buffers()))
    print(f"done steps={args.steps} loss={total!r} weights={weights}", flush=True)


if __name__ == "__main__":
    main()
