"""Train a small transformer to copy noise: the job the benchmarks run. It knows nothing of carpool.

It stamps each iteration with the monotonic clock: the first operation at the start of the model's forward, the
last one at the end of the optimizer's update. What passes between the end of one iteration and the start of the
next is not the program's own work. The stamps are written at the end, two 64-bit numbers an iteration.
"""

import argparse
import gc
import time
from array import array
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

POLL_SECONDS = 0.002
HOLD_SECONDS = 0.05
SEQUENCE = 32


class Model(nn.Module):
    """A stack of transformer layers that notes when it is first asked to work in an iteration."""

    def __init__(self, width: int, depth: int, stamps: array) -> None:
        super().__init__()
        self._stamps = stamps
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, max(1, width // 32), 4 * width, dropout=0.0, batch_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, width)

    def forward(self, batch: Tensor) -> Tensor:
        self._stamps.append(time.monotonic_ns())
        for layer in self.layers:
            batch = layer(batch)
        return self.head(batch)


class StampedSGD(torch.optim.SGD):
    """Notes when the iteration's last operation is over."""

    stamps: array

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        result = super().step(closure)
        self.stamps.append(time.monotonic_ns())
        return result


class SlowInput(IterableDataset[Tensor]):
    """Input that takes its time: nothing is computed for it, as where it comes over a network."""

    def __init__(self, batch: Tensor, seconds: float) -> None:
        self._batch = batch
        self._seconds = seconds

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            time.sleep(self._seconds)
            yield self._batch


def wait_for(go: Path, ready: Path) -> None:
    """Say that everything is built, then wait for the starting signal."""
    ready.touch()
    while not go.exists():
        time.sleep(POLL_SECONDS)


def write_whole(path: Path, data: bytes) -> None:
    """Whoever sees the file sees all of it."""
    draft = path.with_name(f"{path.name}.new")
    draft.write_bytes(data)
    draft.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--go", type=Path, help="begin when this file appears")
    parser.add_argument("--ready", type=Path, help="make this file before waiting for GO")
    parser.add_argument("--stamps", type=Path, help="write the stamps here at the end")
    parser.add_argument("--first", type=Path, help="write the time of the very first operation here, at once")
    parser.add_argument("--stall", type=float, default=0.0, help="seconds that the input of each iteration takes")
    parser.add_argument("--hold", type=Path, help="make no step while this file is there")
    parser.add_argument("--until", type=Path, help="end when this file is there")
    parser.add_argument(
        "--short-end",
        action="store_true",
        help="leave out the search for garbage at the end: with torch it is half a second of a core",
    )
    args = parser.parse_args()

    torch.manual_seed(0)
    stamps = array("q")
    model = Model(args.width, args.depth, stamps)
    optimizer = StampedSGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer.stamps = stamps
    batch = torch.randn(args.batch, SEQUENCE, args.width)
    if args.go is not None:
        wait_for(args.go, args.ready)
    inputs = iter(DataLoader(SlowInput(batch, args.stall), batch_size=None)) if args.stall else repeat(batch)
    for step in range(args.steps):
        while args.hold is not None and args.hold.exists():
            time.sleep(HOLD_SECONDS)
        if args.until is not None and args.until.exists():
            break
        batch = next(inputs)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 0 and args.first is not None:
            write_whole(args.first, str(stamps[0]).encode())
    if args.stamps is not None:
        write_whole(args.stamps, stamps.tobytes())
    if args.short_end:
        gc.freeze()


if __name__ == "__main__":
    main()
