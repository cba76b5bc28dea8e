"""A training job that holds as much memory as it is told; its last loss and a hash of its weights go to a file.

It uses one thread, so that carpool's setting for the threads of CPU-device jobs makes no difference to its pace.
"""

import argparse
import hashlib
from pathlib import Path

import torch
from torch import nn

WIDTH = 2048
LAYER_MIB = 3 * WIDTH * WIDTH * 4 >> 20  # its weights, their gradients and momenta


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--mib", type=int, default=256, help="weights, gradients and momenta together")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--out", type=Path, help="write the last loss and the weights' hash here at the end")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = max(1, args.mib // LAYER_MIB)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batch = torch.randn(args.batch, WIDTH)
    loss = torch.zeros(())
    for _ in range(args.steps):
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
    if args.out is not None:
        digest = hashlib.sha1()
        for weight in model.parameters():
            digest.update(weight.detach().numpy().tobytes())
        args.out.write_text(f"{loss.item()!r} {digest.hexdigest()}")


if __name__ == "__main__":
    main()
