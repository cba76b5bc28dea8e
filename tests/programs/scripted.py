"""A job of a scenario: so many turns of so many milliseconds, and nothing else."""

import argparse
import time
from typing import Any

import carpool

BUSY_SECONDS = 0.005


def compute_for(seconds: float) -> None:
    """Busy for a quarter of the time, again and again: a job that only sleeps in its turn would lose it."""
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        while time.monotonic() < min(end, now + BUSY_SECONDS):
            pass
        time.sleep(max(0.0, min(3 * BUSY_SECONDS, end - time.monotonic())))


def holding(mib: int) -> Any:
    """So much memory, all the time: a tensor."""
    import torch

    return torch.ones(mib << 18)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-ms", type=int, required=True)
    parser.add_argument("--hold-mib", type=int, default=0)
    args = parser.parse_args()
    held = holding(args.hold_mib) if args.hold_mib else None
    for _ in range(args.steps):
        with carpool.turn():
            compute_for(args.step_ms / 1000)
    assert held is None or held.min() == held.max() == 1, "what it holds is as it was"


if __name__ == "__main__":
    main()
