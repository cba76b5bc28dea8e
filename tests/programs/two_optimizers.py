"""A GAN with Adam and RMSprop; the generator's graph is alive when the first optimizer steps."""

import argparse
import hashlib
from collections.abc import Iterable
from itertools import chain

import torch
from torch import nn
from torch.nn.functional import softplus


def fingerprint(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=512, help="more makes the generator's graph larger")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    generator = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
    generator.append(nn.Linear(256, 32))
    discriminator = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
    discriminator_optimizer = torch.optim.RMSprop(discriminator.parameters(), lr=1e-3)
    value = 0.0
    for step in range(1, args.steps + 1):
        real = torch.randn(args.batch, 32).sin()
        fake = generator(torch.randn(args.batch, 8))

        judged = softplus(-discriminator(real)).mean() + softplus(discriminator(fake.detach())).mean()
        discriminator_optimizer.zero_grad()
        judged.backward()
        discriminator_optimizer.step()

        loss = softplus(-discriminator(fake)).mean()
        generator_optimizer.zero_grad()
        loss.backward()
        generator_optimizer.step()

        value = loss.item()
        print(f"step={step} loss={value!r} discriminator={judged.item()!r}", flush=True)
    weights = fingerprint(chain(generator.parameters(), discriminator.parameters()))
    print(f"done steps={args.steps} loss={value!r} weights={weights}", flush=True)


if __name__ == "__main__":
    main()
