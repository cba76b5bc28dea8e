"""The one-line change: a numpy loop that carpool cannot see into takes its turns with `carpool.turn()`."""

import argparse
import hashlib

import numpy as np

import carpool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rng = np.random.default_rng(args.seed)
    weights = rng.standard_normal((256, 1)) / 16
    value = 0.0
    for step in range(1, args.steps + 1):
        with carpool.turn():
            x = rng.standard_normal((2048, 256))
            error = x @ weights - x.sum(axis=1, keepdims=True)
            weights -= 0.1 * x.T @ error / len(x)
            value = float(np.mean(error**2))
        print(f"step={step} loss={value!r}", flush=True)
    sha1 = hashlib.sha1(weights.tobytes()).hexdigest()
    print(f"done steps={args.steps} loss={value!r} weights={sha1}", flush=True)


if __name__ == "__main__":
    main()
