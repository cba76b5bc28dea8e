"""Train a variational autoencoder on 28x28 pictures of soft discs, with Adam and hand-made batches."""

import argparse
import hashlib
import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

SIDE = 28


def make_discs(count: int, seed: int) -> Tensor:
    """`count` flattened pictures of one disc each, of random place, size and softness."""
    rng = torch.Generator().manual_seed(seed)
    axis = torch.linspace(-1, 1, SIDE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    place = torch.rand(count, 2, 1, 1, generator=rng) * 1.2 - 0.6
    radius = torch.rand(count, 1, 1, generator=rng) * 0.4 + 0.1
    softness = torch.rand(count, 1, 1, generator=rng) * 20 + 10
    distance = torch.sqrt((x - place[:, 0]) ** 2 + (y - place[:, 1]) ** 2)
    return torch.sigmoid((radius - distance) * softness).flatten(1)


class VAE(nn.Module):
    """Two fully connected halves around a small Gaussian code."""

    def __init__(self, hidden: int, code: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(SIDE * SIDE, hidden), nn.ReLU(), nn.Linear(hidden, 2 * code))
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, SIDE * SIDE))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decoder(code), mean, log_variance


def negative_elbo(logits: Tensor, x: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    reconstruction = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    divergence = -0.5 * torch.sum(1 + log_variance - mean**2 - log_variance.exp())
    return (reconstruction + divergence) / len(x)


def fingerprint(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--code", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="save the weights here at the end")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    pictures = make_discs(4_096, args.seed).to(device)
    model = VAE(args.hidden, args.code).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    value = math.nan
    for step in range(1, args.steps + 1):
        x = pictures[torch.randint(len(pictures), (args.batch,))]
        logits, mean, log_variance = model(x)
        loss = negative_elbo(logits, x, mean, log_variance)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == args.steps:
            value = loss.item()
            print(f"step={step} loss={value!r}", flush=True)
    if args.out:
        torch.save(model.state_dict(), args.out)
    print(f"done steps={args.steps} loss={value!r} weights={fingerprint(model.parameters())}", flush=True)


if __name__ == "__main__":
    main()
