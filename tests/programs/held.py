"""Programs that hold memory in every way that parking must bring back: one shape each, chosen by its name."""

import argparse
import copy
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

Step = Callable[[], float]
Shape = tuple[Step, Callable[[], Iterable[torch.Tensor]]]


def fingerprint(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(tensor.detach().reshape(-1).view(torch.uint8).clone().numpy().tobytes())
    return digest.hexdigest()


def network(width: int, depth: int = 2) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(32, width), nn.Tanh()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def error(model: nn.Module, batch: int = 16) -> torch.Tensor:
    x = torch.randn(batch, 32)
    return functional.mse_loss(model(x), x.sum(1, keepdim=True))


def sgd(width: int) -> Shape:
    model = network(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> float:
        loss = error(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, model.parameters


def groups(width: int) -> Shape:
    """Adam with parameter groups, a schedule, and gradients clipped by their norm."""
    model = network(width)
    first, rest = list(model[0].parameters()), list(model[2:].parameters())
    optimizer = torch.optim.Adam([{"params": first, "lr": 1e-2}, {"params": rest, "weight_decay": 0.1}], lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)

    def step() -> float:
        loss = error(model)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss.item()

    return step, model.parameters


def tied(width: int) -> Shape:
    """One weight is the embedding and the output layer, as in a language model."""
    embedding = nn.Embedding(width, 128)
    output = nn.Linear(128, width, bias=False)
    output.weight = embedding.weight
    optimizer = torch.optim.AdamW([embedding.weight], lr=1e-2)

    def step() -> float:
        words = torch.randint(0, width, (64,))
        loss = functional.cross_entropy(output(embedding(words)), words)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, lambda: [embedding.weight, output.weight]


def views(width: int) -> Shape:
    """Parameters, their momenta by hand and a ring of past losses are windows on a few flat tensors."""
    flat = torch.randn(3 * width * width) * 0.02
    weights = [flat[i * width * width : (i + 1) * width * width].view(width, width).t() for i in range(3)]
    for weight in weights:
        weight.requires_grad_(True)
    ring = torch.zeros(4096)
    optimizer = torch.optim.SGD(weights, lr=0.05, momentum=0.9)
    count = 0

    def step() -> float:
        nonlocal count
        x = torch.randn(16, width)
        out = x
        for weight in weights:
            out = torch.tanh(out @ weight)
        loss = functional.mse_loss(out, x) + flat.detach()[::7].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ring[count % 4096 :: 64] += loss.detach()
        count += 1
        return loss.item() + ring.sum().item()

    return step, lambda: [flat, ring]


def half(width: int) -> Shape:
    """Weights in half precision, a copy in full precision that the optimizer works on."""
    model = network(width).to(torch.bfloat16)
    masters = [parameter.detach().float().clone().requires_grad_(True) for parameter in model.parameters()]
    optimizer = torch.optim.Adam(masters, lr=1e-3)

    def step() -> float:
        x = torch.randn(16, 32, dtype=torch.bfloat16)
        loss = functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
            parameter.grad = None
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)
        return loss.item()

    return step, lambda: [*masters, *model.parameters()]


def accumulation(width: int) -> Shape:
    """Two optimizers step in turns, so that at each boundary gradients of the other one are under way."""
    model = network(width)
    half_way = len(list(model.parameters())) // 2
    parameters = list(model.parameters())
    optimizers = [
        torch.optim.Adam(parameters[:half_way], lr=1e-3),
        torch.optim.SGD(parameters[half_way:], lr=1e-2, momentum=0.9),
    ]
    count = 0

    def step() -> float:
        nonlocal count
        loss = error(model) / 2
        loss.backward()
        optimizer = optimizers[count % 2]
        optimizer.step()
        optimizer.zero_grad()
        count += 1
        return loss.item()

    return step, model.parameters


def ema(width: int) -> Shape:
    """A running average of the weights, and a buffer that only the average's hook knows."""
    model = network(width)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.5)
    average = copy.deepcopy(model).eval()
    for parameter in average.parameters():
        parameter.requires_grad_(False)

    def step() -> float:
        loss = error(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(parameter, 0.05)
            x = torch.ones(8, 32)
            return loss.item() + average(x).sum().item()

    return step, lambda: [*model.parameters(), *average.parameters()]


def gan(width: int) -> Shape:
    """Two networks, two optimizers, batch statistics."""
    maker = nn.Sequential(nn.Linear(32, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 32))
    judge = network(width, depth=1)
    makes = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.9))
    judges = torch.optim.Adam(judge.parameters(), lr=1e-3)

    def step() -> float:
        real, noise = torch.randn(16, 32), torch.randn(16, 32)
        fake = maker(noise)
        judged = judge(real).mean() - judge(fake.detach()).mean()
        judges.zero_grad()
        judged.backward()
        judges.step()
        made = judge(fake).mean()
        makes.zero_grad()
        made.backward()
        makes.step()
        return judged.item() + made.item()

    def held() -> Iterator[torch.Tensor]:
        yield from maker.state_dict().values()
        yield from judge.state_dict().values()

    return step, held


SHAPES = {shape.__name__: shape for shape in (sgd, groups, tied, views, half, accumulation, ema, gan)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of rest in each step")
    parser.add_argument("--until", type=Path, help="end after the step that finds this file, if that is earlier")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    step, held = SHAPES[args.shape](args.width)
    count, value = 0, 0.0
    for count in range(1, args.steps + 1):
        value = step()
        if args.pause:
            time.sleep(args.pause)
        print(f"step={count} loss={value!r}", flush=True)
        if args.until is not None and args.until.exists():
            break
    print(f"done steps={count} loss={value!r} weights={fingerprint(held())}", flush=True)


if __name__ == "__main__":
    main()
