"""A job of a scenario: so many turns of so many milliseconds, and nothing else."""

import argparse
import time
from typing import Any

import carpool
from carpool.agent.turns import process


def compute_for(seconds: float) -> None:
    """Busy all the while: a job that sleeps in its turn loses it to whoever waits."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


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
    turns = process.current_turns()
    assert turns is not None, "a scenario's jobs are under carpool"
    turns.state.after_block = 0  # as after many turns: its next one follows at once (T6), so it keeps what it has
    for _ in range(args.steps):
        with carpool.turn():
            compute_for(args.step_ms / 1000)
    assert held is None or held.min() == held.max() == 1, "what it holds is as it was"


if __name__ == "__main__":
    main()
