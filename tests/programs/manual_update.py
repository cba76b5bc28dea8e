"""A two-layer network in bare tensors: no Module, no optimizer, only backward and `w -= rate * w.grad`."""

import argparse
import hashlib
from collections.abc import Iterable

import torch


def fingerprint(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    first = (torch.randn(64, 512) / 8).requires_grad_()
    second = (torch.randn(512, 1) / 23).requires_grad_()
    value = 0.0
    for step in range(1, args.steps + 1):
        x = torch.randn(128, 64)
        loss = (((x @ first).relu() @ second - x.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            for weight in (first, second):
                weight -= 1e-3 * weight.grad
                weight.grad = None
        value = loss.item()
        print(f"step={step} loss={value!r}", flush=True)
    print(f"done steps={args.steps} loss={value!r} weights={fingerprint([first, second])}", flush=True)


if __name__ == "__main__":
    main()
