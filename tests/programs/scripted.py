"""A job of a scenario: so many turns of so many milliseconds, and nothing else."""

import argparse
import time

import carpool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-ms", type=int, required=True)
    args = parser.parse_args()
    for _ in range(args.steps):
        with carpool.turn():
            end = time.monotonic() + args.step_ms / 1000
            while time.monotonic() < end:  # busy: a job that sleeps in its turn would lose it
                pass


if __name__ == "__main__":
    main()
