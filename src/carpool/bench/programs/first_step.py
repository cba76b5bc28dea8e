"""Make one training step and say when it began and when it was over; then wait. It knows nothing of carpool."""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn

POLL_SECONDS = 0.005


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--begun", type=Path, required=True)
    parser.add_argument("--stepped", type=Path, required=True)
    parser.add_argument("--go", type=Path, required=True)
    args = parser.parse_args()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(32, 64)
    note(args.begun)
    model(batch).square().mean().backward()
    optimizer.step()
    note(args.stepped)
    while not args.go.exists():
        time.sleep(POLL_SECONDS)


def note(path: Path) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps({"at_ns": time.monotonic_ns(), "cpu_ns": time.process_time_ns()}))
    draft.replace(path)


if __name__ == "__main__":
    main()
