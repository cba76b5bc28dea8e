"""Train a ResNet-18 (half width) on CIFAR-sized images of coloured stripes, with SGD and a DataLoader."""

import argparse
import hashlib
import math
from collections.abc import Iterable
from itertools import chain

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 10


class Stripes(Dataset[tuple[Tensor, int]]):
    """Noisy 32x32 images; the class is the angle of the stripes. Made on demand, the same every time."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        axis = torch.linspace(-math.pi, math.pi, 32)
        self.y, self.x = torch.meshgrid(axis, axis, indexing="ij")

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        rng = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        label = index % CLASSES
        angle = math.pi * label / CLASSES
        phase = torch.rand(3, 1, 1, generator=rng) * 2 * math.pi
        image = torch.sin(3 * (self.x * math.cos(angle) + self.y * math.sin(angle)) + phase)
        return image + 0.5 * torch.randn(3, 32, 32, generator=rng), label


class Block(nn.Module):
    """Two 3x3 convolutions around a residual."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet18(width: int) -> nn.Sequential:
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    blocks, inputs = [], width
    for stage in range(4):
        outputs = width * 2**stage
        blocks += [Block(inputs, outputs, 1 if stage == 0 else 2), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


def fingerprint(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="save the weights here at the end")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    order = torch.Generator().manual_seed(args.seed)
    data = Stripes(4_800, args.seed)
    loader = DataLoader(data, args.batch, shuffle=True, num_workers=args.workers, generator=order)
    model = resnet18(args.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=args.steps + 1)

    step, value = 0, math.nan
    while step < args.steps:
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if step % 5 == 0 or step == args.steps:
                value = loss.item()
                accuracy = (logits.argmax(1) == labels).float().mean().item()
                print(f"step={step} loss={value!r} accuracy={accuracy!r}", flush=True)
            if step == args.steps:
                break
    if args.out:
        torch.save(model.state_dict(), args.out)
    weights = fingerprint(chain(model.parameters(), model.buffers()))
    print(f"done steps={args.steps} loss={value!r} weights={weights}", flush=True)


if __name__ == "__main__":
    main()
