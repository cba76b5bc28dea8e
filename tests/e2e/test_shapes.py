"""Programs of every shape share the device with another job: same numbers, exact step counts, many hand-overs.

All shapes run once, a few at a time, beside a companion that trains from the first to the last (and rests in each
step: the others mostly import torch); the tests look at what came of it. The quantum is so short that nearly every
step is a turn of its own.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from carpool.errors import PeerError
from carpool.wire import page as pages
from tests.e2e import scripts
from tests.e2e.alone import Alone
from tests.e2e.node import PYTHON, Ended, Node, Started, wait_until, with_environment
from tests.eager import with_compiler

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

AT_ONCE = 4
COMPANION = ["held.py", "sgd", "--width", "64", "--pause", "0.015"]
COMPANION_LINES = 600
TURNS_MIN = 4
TORCHRUN = str(Path(PYTHON).parent / "torchrun")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A program, what it is compared with, and what carpool must have seen of it."""

    name: str
    command: list[str]
    alone: list[str]
    steps: int
    ranks: int = 1
    takers: int = 1  # processes that take turns
    processes: int = 1  # at least so many processes had the byte meter
    has_compiler: bool = True  # its torch is whole; false where another shape shows the same with all of it


def script(name: str, *program: str, steps: int, alone: list[str] | None = None, processes: int = 1) -> Shape:
    """A script of tests/programs; a name of its own where the same script runs in several ways."""
    return Shape(name=name, command=list(program), alone=alone or list(program), steps=steps, processes=processes)


def eager(shape: Shape) -> Shape:
    return replace(shape, has_compiler=False)


def torchrun(ranks: int, name: str, program: list[str], *, steps: int) -> Shape:
    return Shape(
        name=f"torchrun_{ranks}_{name}",
        command=[TORCHRUN, "--standalone", "--nproc-per-node", str(ranks), *program],
        alone=program,
        steps=steps,
        ranks=ranks,
        takers=ranks,
        processes=ranks + 1,
    )


def written(name: str, text: str, *, steps: int) -> Shape:
    program = [scripts.write(WRITTEN, name, text)]
    return Shape(name=name, command=program, alone=program, steps=steps)


HELD = tempfile.TemporaryDirectory(prefix="cp-scripts-")  # until this process ends
WRITTEN = Path(HELD.name)
DATALOADER = ["dataloader.py", "--steps", "48"]
WORKERS = ["--workers", "2"]
SHAPES = [
    script("plain_loop", "plain_loop.py", "--steps", "80", steps=80),
    eager(script("accumulate", "accumulate.py", "--steps", "160", steps=40)),
    eager(script("accumulate_16", "accumulate.py", "--steps", "320", "--every", "16", steps=20)),
    script("two_optimizers", "two_optimizers.py", "--steps", "40", "--batch", "128", steps=40),
    script("inference", "inference.py", "--steps", "60", steps=60),
    eager(script("loader", *DATALOADER, steps=48)),
    eager(script("loader_fork", *DATALOADER, *WORKERS, steps=48, alone=DATALOADER, processes=3)),
    eager(
        script("loader_spawn", *DATALOADER, *WORKERS, "--context", "spawn", steps=48, alone=DATALOADER, processes=3)
    ),
    eager(script("reexec", "reexec.py", "--steps", "80", steps=80)),
    script("compiled", "compiled.py", "--steps", "60", steps=60),
    script("manual_update", "manual_update.py", "--steps", "80", steps=80),
    eager(script("closure", "closure.py", "--steps", "30", steps=30)),
    script("explicit_turn", "explicit_turn.py", "--steps", "60", steps=60),
    # Nine of its forty updates overflow and are skipped.
    eager(script("grad_scaler_like", "grad_scaler_like.py", "--steps", "40", steps=31)),
    eager(script("package", PYTHON, "-m", "package", "--steps", "80", alone=["package", "--steps", "80"], steps=80)),
    eager(written("folds", scripts.FOLDS, steps=45)),
    written("one_graph", scripts.ONE_GRAPH, steps=40),
    eager(written("accumulates", scripts.ACCUMULATES, steps=8)),
    eager(written("no_grad_inside", scripts.NO_GRAD_INSIDE, steps=90)),
    eager(written("grad_forgotten", scripts.GRAD_FORGOTTEN, steps=90)),  # 16 of 106 might have gone backward
    # Its steps are short: without a rest all of them may fit between two of the companion's.
    torchrun(1, "ddp", ["ddp.py", "--steps", "200", "--pause", "0.003"], steps=200),
    # Two ranks without a loader: tests/e2e/test_restart.py.
    torchrun(2, "data", [scripts.write(WRITTEN, "ranks", scripts.RANKS_WITH_DATA)], steps=100),
]


@dataclass(kw_only=True)
class Outcome:
    """What a shape's shared run left behind."""

    ended: Ended
    state: str
    steps: int
    turns: int
    takers: int
    processes: int


@dataclass(kw_only=True)
class Running:
    shape: Shape
    started: Started
    page: pages.Page | None = None  # stays readable when the job's directory is gone
    takers: set[int] = field(default_factory=set)
    pids: set[int] = field(default_factory=set)


class Shared:
    """The one session in which all shapes ran."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.outcomes: dict[str, Outcome] = {}
        self.companion = node.run(
            *COMPANION, "--steps", "1000000", options=["--name", "companion", "--memory", "300MiB"]
        )
        node.wait_steps("companion", 5)
        waiting, running = list(SHAPES), list[Running]()
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                running.append(self._start(waiting.pop(0)))
            wait_until(lambda: self._look(running), "a shape ends", seconds=300)
            for each in [each for each in running if each.started.process.poll() is not None]:
                running.remove(each)
                self.outcomes[each.shape.name] = self._outcome(each)
        self.companion_turns = node.turns("companion")
        self.companion.process.terminate()
        self.companion.wait()

    def _start(self, shape: Shape) -> Running:
        options = ["--name", shape.name, "--memory", "700MiB"]
        environment = with_compiler(self.node.environment) if shape.has_compiler else self.node.environment
        # torchrun would choose one thread for two ranks.
        # A rank may be aborted from C++ at its end (CONTRIBUTING.md): then Python's stacks are in the message.
        added = {**environment, "OMP_NUM_THREADS": "2", "PYTHONFAULTHANDLER": "1"}
        with with_environment(self.node, added):
            return Running(shape=shape, started=self.node.run(*shape.command, options=options))

    def _look(self, running: list[Running]) -> bool:
        """Note which processes of each job take turns; True when a job has ended."""
        for each in running:
            for path in self.node.places.jobs.glob(f"{each.shape.name}-[0-9]*/page"):
                if each.page is None:
                    with contextlib.suppress(PeerError):  # it is not whole yet, or ended just now
                        each.page = pages.Page.open(path)
            self._look_at(each)
        return any(each.started.process.poll() is not None for each in running)

    def _look_at(self, running: Running) -> None:
        if running.page is None:
            return
        for slot, pid in running.page.pids().items():
            running.pids.add(pid)
            base = pages.slot_base(slot)
            if running.page.words[base + pages.S_STEPS] or running.page.words[base + pages.S_LEASE]:
                running.takers.add(pid)

    def _outcome(self, running: Running) -> Outcome:
        name = running.shape.name
        self._look_at(running)  # what it looked like at its end
        if running.page is not None:
            running.page.close()
        job = self.node.wait_state(name, "finished", "failed", "cancelled")
        return Outcome(
            ended=running.started.wait(),
            state=job["state"],
            steps=job["steps"],
            turns=self.node.turns(name),
            takers=len(running.takers),
            processes=len(running.pids),
        )


@pytest.fixture(scope="module")
def shared(module_node: Node) -> Iterator[Shared]:
    module_node.start(quantum="1ms")
    yield Shared(module_node)
    shutil.rmtree(WRITTEN)


each_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


def comparable(output: bytes) -> list[bytes]:
    """The lines, those of each rank together, without process ids."""
    lines = [re.sub(rb"pid=\d+", b"pid=", line) for line in output.splitlines(keepends=True)]
    return sorted(lines, key=lambda line: line[:6] if line.startswith(b"rank=") else b"")


@each_shape
def test_the_numbers_are_bit_identical_to_running_alone(shared: Shared, alone: Alone, shape: Shape) -> None:
    outcome = shared.outcomes[shape.name]
    assert (outcome.ended.code, outcome.state) == (0, "finished"), outcome.ended.err
    assert comparable(outcome.ended.out) == comparable(alone.output(*shape.alone, ranks=shape.ranks))
    assert "carpool" not in outcome.ended.err


@each_shape
def test_carpool_saw_every_iteration_once(shared: Shared, shape: Shape) -> None:
    assert shared.outcomes[shape.name].steps == shape.steps


@each_shape
def test_the_turn_went_back_and_forth_many_times(shared: Shared, shape: Shape) -> None:
    assert shared.outcomes[shape.name].turns >= TURNS_MIN
    assert shared.companion_turns >= TURNS_MIN * len(SHAPES)


@each_shape
def test_only_the_processes_that_train_take_turns(shared: Shared, shape: Shape) -> None:
    outcome = shared.outcomes[shape.name]
    assert outcome.takers == shape.takers
    assert outcome.processes >= shape.processes


def test_the_companion_never_noticed_anybody(shared: Shared, alone: Alone) -> None:
    expected = alone.output(*COMPANION, "--steps", str(COMPANION_LINES)).splitlines()[:COMPANION_LINES]
    assert shared.companion.out.splitlines()[:COMPANION_LINES] == expected
    assert shared.companion.err == ""
