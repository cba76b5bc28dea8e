"""A loop whose data workers load images: files are read, unpacked, cropped and turned; a small network learns."""

import argparse
import random
import resource
import tempfile
import zlib
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, CROPPED = 160, 128


def write_images(place: Path, count: int) -> None:
    """Files as PNG has them inside: rows of bytes, each the difference to the row above, and compressed."""
    numbers = numpy.random.default_rng(0)
    for number in range(count):
        coarse = numbers.integers(0, 255, (SIDE // 8, SIDE // 8, 3), dtype=numpy.uint8)
        image = coarse.repeat(8, 0).repeat(8, 1) + numbers.integers(0, 4, (SIDE, SIDE, 3), dtype=numpy.uint8)
        differences = numpy.diff(image, axis=0, prepend=numpy.zeros((1, SIDE, 3), numpy.uint8))
        (place / f"{number}.image").write_bytes(zlib.compress(differences.tobytes()))


class Images(Dataset):
    def __init__(self, place: Path) -> None:
        self.paths = sorted(place.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        rows = numpy.frombuffer(zlib.decompress(self.paths[index].read_bytes()), numpy.uint8)
        image = numpy.cumsum(rows.reshape(SIDE, SIDE, 3), axis=0, dtype=numpy.uint8)
        left, top = random.randrange(SIDE - CROPPED), random.randrange(SIDE - CROPPED)
        image = image[top : top + CROPPED, left : left + CROPPED]
        x = torch.from_numpy(image.copy()).permute(2, 0, 1).float() / 255
        if random.random() < 0.5:
            x = x.flip(2)
        if x.std() > 0.01:  # a read, in the worker
            x = (x - x.mean()) / x.std()
        return x[:, ::2, ::2], index % 10


def seconds() -> float:
    """The processor time of this process and of its workers that ended."""
    whole = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in whole)


def train(loader: DataLoader[tuple[torch.Tensor, ...]], epochs: int) -> float:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [nn.Conv2d(3, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(net.parameters())
    began = 0.0
    for epoch in range(epochs + 1):
        right = 0
        for x, y in loader:
            out = net(x)
            loss = nn.functional.cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (out.argmax(1) == y).sum().item()
        print(f"epoch={epoch} loss={loss.item()!r} right={right}", flush=True)
        began = began or seconds()  # the first epoch is a part of the start
    return seconds() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    random.seed(0)
    with tempfile.TemporaryDirectory() as directory:
        write_images(Path(directory), args.images)
        torch.manual_seed(1)
        loader = DataLoader(Images(Path(directory)), batch_size=16, shuffle=True, num_workers=args.workers)
        print(f"seconds={train(loader, args.epochs)}")


if __name__ == "__main__":
    main()
