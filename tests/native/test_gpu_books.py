"""Our books against the stand-in's truth: random walks of several processes of one job over every kind of memory,
with a driver that refuses now and then, processes that are killed, and a cap that moves."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from carpool.wire import page as wire
from carpool.wire.page import Page
from tests.native.gpu import CHUNK, MIB, OUT_OF_MEMORY, Built, Probe, environment, live_bytes, true_bytes

pytestmark = pytest.mark.slow
KINDS = ["plain", "pitch", "managed", "async", "pool", "own_pool", "exported", "array", "mipmap", "external", "graph"]
KINDS += ["vmm", "mapped", "twice", "host_vmm", "host_pool"]
DOORS = ["link", "dlsym", "proc", "thread"]
STEPS, SLOTS, PROCESSES = 150, 24, 3


class Walk:
    """Some processes of a job, what each holds, and the dice."""

    def __init__(self, built: Built, page: Page, place: Path, seed: int, stack: ExitStack) -> None:
        self.page, self.books, self.dice = page, place / "books", random.Random(seed)
        self._built, self._place, self._stack, self._made = built, place, stack, 0
        self.probes = [self._start() for _ in range(PROCESSES)]
        self.held: list[dict[int, str]] = [{} for _ in range(PROCESSES)]

    def _start(self) -> Probe:
        self._made += 1
        env = environment(self._built, self.books, page=self.page.path) | {"CARPOOL_STUB_FAIL_ALLOC": "-11"}
        door = self.dice.choice(DOORS)
        return self._stack.enter_context(Probe(self._built, env, self._place / f"log{self._made}", door))

    def step(self) -> None:
        who, what = self.dice.randrange(PROCESSES), self.dice.random()
        if what < 0.02:
            self.probes[who].kill()
            self.probes[who], self.held[who] = self._start(), {}
        elif what < 0.05:
            self.page.words[wire.H_CAP] = self.dice.randint(300, 1500) * MIB
        elif what < 0.1:
            assert self.probes[who].ask(f"context {self.dice.randint(1, 60) * CHUNK}")[0] in (0, OUT_OF_MEMORY)
        else:
            self._change(self.probes[who], self.held[who])
        assert self.probes[who].ask("sync")[0] == 0

    def _change(self, probe: Probe, held: dict[int, str]) -> None:
        slot = self.dice.randrange(SLOTS)
        if slot in held:
            if held[slot] == "mapped" and self.dice.random() < 0.5:
                result, handle = probe.ask(f"retain {slot}")
                assert result == 0
                assert probe.free(slot) == 0
                assert live_bytes(self.page, probe.pid) == true_bytes(self.books)[probe.pid] > 0
                assert probe.ask(f"release {handle}")[0] == 0
            else:
                assert probe.free(slot, is_async=self.dice.random() < 0.5) == 0, held[slot]
            del held[slot]
            return
        how = self.dice.choice(KINDS)
        result = probe.alloc(how, slot, self.dice.randint(1, 60) * CHUNK)
        assert result in (0, OUT_OF_MEMORY), how
        if result == 0:
            held[slot] = how

    def check(self) -> None:
        """Every process's bytes are what the driver says, and the job sees the sum."""
        truth = true_bytes(self.books)
        for probe, held in zip(self.probes, self.held, strict=True):
            counted = max(0, live_bytes(self.page, probe.pid))
            assert counted == truth[probe.pid], (held, probe.said())
        used = sum(truth[probe.pid] for probe in self.probes)
        cap = self.page.words[wire.H_CAP]
        assert self.probes[0].info() == (max(0, cap - used), cap)


@pytest.mark.parametrize("seed", range(4))
def test_random_walks_of_several_processes_keep_our_books_equal_to_the_drivers(
    built: Built, tmp_path: Path, seed: int
) -> None:
    page = Page.create(tmp_path / "page")
    page.words[wire.H_CAP] = 1000 * MIB
    try:
        with ExitStack() as stack:
            walk = Walk(built, page, tmp_path, seed, stack)
            for _ in range(STEPS):
                walk.step()
                walk.check()
            assert all(probe.said() == "" for probe in walk.probes)
    finally:
        page.close()
