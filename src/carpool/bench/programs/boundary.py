"""Measure, inside a job that is alone, what the hooks in this process cost an iteration.

The hooks are found where they were put (torch's own lists and names) and are taken off and put back between short
blocks, so both arms run in one process, on the same objects, milliseconds apart. Two measurements:
  in a tight loop   each hooked call by itself, with warm caches: the least that it can cost
  in place          the hooked places of real training iterations, where the iteration's own work has emptied the
                    caches; only the places are timed, since the work between them varies by more than hooks cost
"""

import argparse
import json
import time
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

WIDTH = 128
INNER_CALLS = 5  # modules inside the root module of `make_model`
CALLS = 256  # of one kind a block; a multiple of 32, so that each block pays its share of the rare work too
BLOCK_NS = 40_000_000
WARM_UP = 8
AIMS, AIMS_AGREED = 40, 4  # looks at how long an iteration takes

clock = time.perf_counter_ns


class Hooks:
    """Every hook that is in this process now, and the way to take all of them off and back on."""

    def __init__(self) -> None:
        self._lists = [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]
        self._hooks = [dict(each) for each in self._lists]
        names = [(_BaseDataLoaderIter, "__next__"), (torch.autograd, "backward"), (nn.Module, "__call__")]
        self._names = [(owner, name) for owner, name in names if hasattr(getattr(owner, name), "__wrapped__")]
        self._hooked = [getattr(owner, name) for owner, name in self._names]
        if not self._hooks[1] or not self._names:
            raise SystemExit("no hooks are installed: run this under carpool")

    def set(self, *, on: bool) -> None:
        for where, hooks in zip(self._lists, self._hooks, strict=True):
            where.clear()
            where.update(hooks if on else {})
        for (owner, name), hooked in zip(self._names, self._hooked, strict=True):
            wanted = hooked if on else hooked.__wrapped__
            if getattr(owner, name) is not wanted:
                setattr(owner, name, wanted)


class Optimizer(torch.optim.SGD):
    """Notes when the update began and ended. Does nothing while idle: what is left is the call and its hooks."""

    is_idle = False
    entered = left = 0

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        if self.is_idle:
            return None
        self.entered = clock()
        result = super().step(closure)
        self.left = clock()
        return result


class Batches(Dataset[Tensor]):
    def __init__(self, batch: Tensor) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> Tensor:
        return self._batch


class Passing(nn.Module):
    """Hands its input through so many modules that do nothing."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.inner = nn.ModuleList(Passing(0) for _ in range(inner))

    def forward(self, value: Tensor) -> Tensor:
        for module in self.inner:
            value = module(value)
        return value


def make_model() -> nn.Module:
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)]
    assert len(layers) == INNER_CALLS
    return nn.Sequential(*layers)


def cost_ns(hooks: Hooks, action: Callable[[], Any], repeats: int) -> float:
    """How much one call costs more with the hooks: least over blocks, arms in the order A B B A.

    In this thread's processor time: nothing here waits, and the load of the machine is not the hooks' cost.
    """
    least = {True: 1 << 62, False: 1 << 62}
    for on in chain.from_iterable(repeat((True, False, False, True), repeats)):
        hooks.set(on=on)
        for _ in range(WARM_UP):
            action()
        began = time.thread_time_ns()
        for _ in repeat(None, CALLS):
            action()
        least[on] = min(least[on], time.thread_time_ns() - began)
    hooks.set(on=True)
    return (least[True] - least[False]) / CALLS


class Root(nn.Module):
    """Some layers, then modules that do nothing; notes when its forward began and ended, and when the layers did."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_model()
        self.passing = Passing(INNER_CALLS - 1)
        self.stamps = [0, 0, 0]

    def forward(self, batch: Tensor) -> Tensor:
        entered = clock()
        result = self.layers(batch)
        done = clock()
        self.passing(result)
        self.stamps = [entered, done, clock()]
        return result


class Trainer:
    """One model, one optimizer, and iterations of a chosen length that note how long the hooked places took."""

    def __init__(self) -> None:
        self.model = Root()
        self.optimizer = Optimizer(self.model.layers.parameters(), lr=1e-4)
        self.batch = torch.randn(1, WIDTH)
        self.places: dict[str, list[int]] = {}

    def forget(self) -> None:
        self.places = {"root_call": [], "inner_calls": [], "step": [], "iteration": []}

    def iterate(self) -> None:
        began = clock()
        result = self.model(self.batch)
        returned = clock()
        entered, done, left = self.model.stamps
        loss = result.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        stepping = clock()
        self.optimizer.step()
        ended = clock()
        self.places["root_call"].append(entered - began + returned - left)
        self.places["inner_calls"].append(left - done)
        self.places["step"].append(self.optimizer.entered - stepping + ended - self.optimizer.left)
        self.places["iteration"].append(ended - began)

    def run(self, count: int) -> dict[str, float]:
        """So many iterations; the median of each place."""
        self.forget()
        for _ in range(count):
            self.iterate()
        return {name: median(spans) for name, spans in self.places.items()}

    def aim_at(self, length_ns: int) -> float:
        """Choose the batch so that an iteration takes about this long; returns how long it takes. A hiccup of the
        machine makes one look too long: what was found is looked at again, and may be made longer or shorter."""
        rows, took, agreed = 1, 0.0, 0
        for _ in range(AIMS):
            self.batch = torch.randn(rows, WIDTH)
            self.run(2)
            took = min(self.run(3)["iteration"] for _ in range(4))
            agreed = agreed + 1 if 0.85 < took / length_ns < 1.2 else 0
            if agreed == AIMS_AGREED:
                break
            if not agreed:
                rows = max(1, rows // 4, min(rows * 4, int(rows * length_ns / took)))
        return took


def cost_in_place(hooks: Hooks, trainer: Trainer, length_ns: int, repeats: int) -> dict[str, float]:
    """What the hooks cost inside real iterations: the hooked places, timed where they are, with and without hooks."""
    took = trainer.aim_at(length_ns)
    count = max(5, int(BLOCK_NS / took))
    extra: dict[str, list[float]] = {name: [] for name in ("root_call", "inner_calls", "step", "all")}
    bare = []
    for _ in range(repeats):
        runs: dict[bool, list[dict[str, float]]] = {True: [], False: []}
        for on in (True, False, False, True):
            hooks.set(on=on)
            trainer.run(3)  # the change makes Python look everything up again
            runs[on].append(trainer.run(count))
        costs = {
            name: (sum(each[name] for each in runs[True]) - sum(each[name] for each in runs[False])) / 2
            for name in ("root_call", "inner_calls", "step")
        }
        for name, cost in [*costs.items(), ("all", sum(costs.values()))]:
            extra[name].append(cost)
        bare += [each["iteration"] for each in runs[False]]
    hooks.set(on=True)
    low, _, high = quantiles(extra["all"], n=4)
    return {
        **{f"{name}_ns": median(costs) for name, costs in extra.items()},
        "halfwidth_ns": 1.57 * (high - low) / repeats**0.5,  # the notch of a box plot: about 95 % of the median
        "iteration_ns": median(bare),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    trainer = Trainer()
    trainer.run(WARM_UP)  # carpool takes off what this program does not need
    hooks = Hooks()

    # Without a DataLoader first: it is the DataLoader that lets the hooks give up the module calls.
    parts = {}
    trainer.optimizer.is_idle = True
    parts["step"] = cost_ns(hooks, trainer.optimizer.step, args.repeats)
    trainer.optimizer.is_idle = False
    leaf = torch.ones((), requires_grad=True)
    parts["backward"] = cost_ns(hooks, lambda: torch.autograd.backward(leaf), args.repeats)
    root, tree = Passing(0), Passing(INNER_CALLS)
    parts["root_call"] = cost_ns(hooks, lambda: root(leaf), args.repeats)
    parts["inner_calls"] = cost_ns(hooks, lambda: tree(leaf), args.repeats) - parts["root_call"]
    loops = {f"{ms}": cost_in_place(hooks, trainer, ms * 1_000_000, args.repeats) for ms in (1, 20)}
    batches = iter(DataLoader(Batches(leaf.detach()), batch_size=None))
    parts["data"] = cost_ns(hooks, lambda: next(batches), args.repeats)
    args.out.write_text(json.dumps({"parts": parts, "loops": loops}))


if __name__ == "__main__":
    main()
