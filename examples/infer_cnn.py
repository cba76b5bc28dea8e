"""Classify batches of 96x96 pictures with a fixed convolutional network: inference only, no optimizer."""

import argparse
import hashlib
import math
from collections.abc import Iterable
from itertools import chain

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

CLASSES = 100


def separable(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """A depthwise then a pointwise convolution, as in MobileNet."""
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False),
        nn.BatchNorm2d(inputs),
        nn.ReLU6(),
        nn.Conv2d(inputs, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    )


def make_network(width: int) -> nn.Sequential:
    stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6())
    widths = [width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width, 16 * width]
    strides = [1, 2, 1, 2, 1, 2]
    layers = [separable(*shape) for shape in zip(widths, widths[1:], strides, strict=False)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES)]
    return nn.Sequential(stem, *layers, *head)


def fingerprint(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="batches to classify")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="save the predicted classes here at the end")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    rng = torch.Generator().manual_seed(args.seed)
    model = make_network(args.width).to(device).eval()

    predictions: list[Tensor] = []
    value = math.nan
    for step in range(1, args.steps + 1):
        pictures = torch.rand(args.batch, 3, 96, 96, generator=rng).to(device)
        labels = torch.randint(CLASSES, (args.batch,), generator=rng).to(device)
        with torch.inference_mode():
            logits = model(pictures)
            loss = F.cross_entropy(logits, labels)
        predictions.append(logits.argmax(1).cpu())
        if step % 10 == 0 or step == args.steps:
            value = loss.item()
            print(f"step={step} loss={value!r}", flush=True)
    if args.out:
        torch.save(torch.cat(predictions), args.out)
    weights = fingerprint(chain(model.parameters(), model.buffers()))
    print(f"done steps={args.steps} loss={value!r} weights={weights}", flush=True)


if __name__ == "__main__":
    main()
