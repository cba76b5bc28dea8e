"""Train a small DCGAN on 32x32 pictures of coloured gradients, with two Adam optimizers.

Each step updates the discriminator, then the generator, whose graph stays alive across the first update.
"""

import argparse
import hashlib
import math
from collections.abc import Iterable
from itertools import chain

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def make_gradients(count: int, rng: torch.Generator) -> Tensor:
    """Pictures in which each colour rises along its own random direction, in the range -1 to 1."""
    axis = torch.linspace(-1, 1, 32)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    angle = torch.rand(count, 3, 1, 1, generator=rng) * 2 * math.pi
    return torch.tanh(2 * (x * angle.cos() + y * angle.sin()))


def make_generator(noise: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.ConvTranspose2d(noise, 4 * width, 4, 1, 0, bias=False),
        nn.BatchNorm2d(4 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 3, 4, 2, 1),
        nn.Tanh(),
    )


def make_discriminator(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1, bias=False),
        nn.BatchNorm2d(4 * width),
        nn.LeakyReLU(0.2),
        nn.Conv2d(4 * width, 1, 4, 1, 0),
        nn.Flatten(0),
    )


def real_or_fake_loss(logits: Tensor, *, is_real: bool) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(is_real)))


def fingerprint(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--noise", type=int, default=64)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="save the generator's weights here at the end")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    rng = torch.Generator().manual_seed(args.seed)
    generator = make_generator(args.noise, args.width).to(device)
    discriminator = make_discriminator(args.width).to(device)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=5e-4, betas=(0.5, 0.999))
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-4, betas=(0.5, 0.999))

    value = math.nan
    for step in range(1, args.steps + 1):
        real = make_gradients(args.batch, rng).to(device)
        fake = generator(torch.randn(args.batch, args.noise, 1, 1, device=device))

        discriminator_optimizer.zero_grad()
        real_loss = real_or_fake_loss(discriminator(real), is_real=True)
        fake_loss = real_or_fake_loss(discriminator(fake.detach()), is_real=False)
        discriminator_loss = real_loss + fake_loss
        discriminator_loss.backward()
        discriminator_optimizer.step()

        generator_optimizer.zero_grad()
        generator_loss = real_or_fake_loss(discriminator(fake), is_real=True)
        generator_loss.backward()
        generator_optimizer.step()

        if step % 5 == 0 or step == args.steps:
            value = generator_loss.item()
            print(f"step={step} loss={value!r} discriminator={discriminator_loss.item()!r}", flush=True)
    if args.out:
        torch.save(generator.state_dict(), args.out)
    networks = (generator, discriminator)
    weights = fingerprint(chain.from_iterable(chain(net.parameters(), net.buffers()) for net in networks))
    print(f"done steps={args.steps} loss={value!r} weights={weights}", flush=True)


if __name__ == "__main__":
    main()
