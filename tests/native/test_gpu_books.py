"""Our books against the stand-in's truth: random walks of several processes of two jobs over every kind of memory,
also shared between them, with a driver that refuses now and then, processes that are killed, and caps that move."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from carpool.wire import page as wire
from carpool.wire.page import Page
from tests.native.gpu import CHUNK, MIB, OUT_OF_MEMORY, Built, Probe, environment, live_bytes, true_bytes

pytestmark = pytest.mark.slow
INVALID = 1
IN_CHUNKS = ["vmm", "mapped", "twice", "host_vmm", "shareable"]  # any other size the driver refuses
KINDS = ["plain", "pitch", "managed", "async", "pool", "own_pool", "exported", "array", "mipmap", "external", "graph"]
KINDS += ["host_pool", "captured", "beside", "under", *IN_CHUNKS]
ODD_SIZES = [1, 511, 512, 513, 4095, 65537, (512 << 10) + 1, CHUNK - 1, CHUNK + 1, 3 * CHUNK + 12345]
SHARED_MAX = 8 * CHUNK  # the stand-in copies what becomes shared
DOORS = ["link", "dlsym", "proc", "thread"]
STEPS, SLOTS = 600, 24
JOBS = [0, 0, 0, 1]  # which job each process is of


@dataclass
class Process:
    page: Page
    probe: Probe
    held: dict[int, tuple[str, int]] = field(default_factory=dict)  # slot to kind and size

    def free_slot(self) -> int | None:
        return next((slot for slot in range(SLOTS) if slot not in self.held), None)


class Walk:
    """Some processes of two jobs on one card, what each holds, and the dice."""

    def __init__(self, built: Built, pages: list[Page], place: Path, seed: int, stack: ExitStack) -> None:
        self.pages, self.books, self.dice = pages, place / "books", random.Random(seed)
        self._built, self._place, self._stack, self._made = built, place, stack, 0
        self._sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for each in self._sockets:
            stack.enter_context(each)
        self.all = [self._start(pages[job]) for job in JOBS]
        self.shared = {True: 0, False: 0}  # how often memory went to another process: of the same job, or not

    def _start(self, page: Page) -> Process:
        self._made += 1
        env = environment(self._built, self.books, page=page.path) | {"CARPOOL_STUB_FAIL_ALLOC": "-11"}
        log, door = self._place / f"log{self._made}", self.dice.choice(DOORS)
        return Process(page, self._stack.enter_context(Probe(self._built, env, log, door, sockets=self._sockets)))

    def step(self) -> None:
        who, what = self.dice.randrange(len(self.all)), self.dice.random()
        process = self.all[who]
        if what < 0.02:
            process.probe.kill()
            process = self.all[who] = self._start(process.page)
        elif what < 0.05:
            process.page.words[wire.H_CAP] = self.dice.randint(300, 1500) * MIB
        elif what < 0.1:
            assert process.probe.ask(f"context {self._size()}")[0] in (0, OUT_OF_MEMORY)
        elif what < 0.25:
            self._share(process)
        else:
            self._change(process)
        assert process.probe.ask("sync")[0] == 0

    def _size(self) -> int:
        return self.dice.choice(ODD_SIZES) if self.dice.random() < 0.4 else self.dice.randint(1, 60) * CHUNK

    def _change(self, process: Process) -> None:
        slot = self.dice.randrange(SLOTS)
        if slot in process.held:
            self._give_back(process, slot)
            return
        how, size = self.dice.choice(KINDS), self._size()
        may_be_refused = size % CHUNK and how in (*IN_CHUNKS, "pitch")  # a pitch of no lines is none
        result = process.probe.alloc(how, slot, size)
        assert result in ((0, OUT_OF_MEMORY, INVALID) if may_be_refused else (0, OUT_OF_MEMORY)), (how, size)
        if result == 0:
            process.held[slot] = how, size

    def _give_back(self, process: Process, slot: int) -> None:
        how, _ = process.held[slot]
        if how == "captured" and self.dice.random() < 0.7:  # its bytes come with the launch
            assert process.probe.ask(f"run {slot}")[0] in (0, OUT_OF_MEMORY)
            return
        if how == "mapped" and self.dice.random() < 0.5:
            result, handle = process.probe.ask(f"retain {slot}")
            assert result == 0
            assert process.probe.free(slot) == 0
            assert live_bytes(process.page, process.probe.pid) == true_bytes(self.books)[process.probe.pid] > 0
            assert process.probe.ask(f"release {handle}")[0] == 0
        else:
            assert process.probe.free(slot, is_async=self.dice.random() < 0.5) == 0, how
        del process.held[slot]

    def _share(self, giver: Process) -> None:
        """One process exports what it holds, another one opens it: it stays where it was made, in our books too."""
        taker = self.dice.choice([each for each in self.all if each is not giver])
        slot, free = self._shareable_slot(giver), taker.free_slot()
        if slot is None or free is None:
            return
        size = giver.held[slot][1]
        assert giver.probe.ask(f"export {slot}")[0] == 0
        how = self.dice.choice(["mapped", "kept"])
        assert taker.probe.ask(f"import {free} {size} {how}")[0] == 0
        taker.held[free] = "imported", size
        self.shared[taker.page is giver.page] += 1

    def _shareable_slot(self, giver: Process) -> int | None:
        """Something it holds that others can open: what is there, or something new."""
        kinds = {"plain": self.dice.choice(ODD_SIZES), "shareable": self.dice.randint(1, 4) * CHUNK}
        slots = [s for s, (how, size) in giver.held.items() if how in kinds and size <= SHARED_MAX]
        if slots and self.dice.random() < 0.7:
            return self.dice.choice(slots)
        slot, how = giver.free_slot(), self.dice.choice(list(kinds))
        if slot is None or giver.probe.alloc(how, slot, kinds[how]) != 0:
            return None
        giver.held[slot] = how, kinds[how]
        return slot

    def check(self) -> None:
        """Every process's bytes are what the driver says, and each job sees the sum of its own."""
        truth = true_bytes(self.books)
        for process in self.all:
            counted = max(0, live_bytes(process.page, process.probe.pid))
            assert counted == truth[process.probe.pid], (process.held, process.probe.said())
        for page in self.pages:
            members = [process.probe for process in self.all if process.page is page]
            used, cap = sum(truth[probe.pid] for probe in members), page.words[wire.H_CAP]
            assert members[0].info() == (max(0, cap - used), cap)


@contextmanager
def two_jobs(place: Path) -> Iterator[list[Page]]:
    with ExitStack() as stack:
        pages = [stack.enter_context(closing(Page.create(place / f"page{job}"))) for job in range(2)]
        for page in pages:
            page.words[wire.H_CAP] = 1000 * MIB
        yield pages


@pytest.mark.parametrize("seed", range(6))
def test_random_walks_of_several_processes_keep_our_books_equal_to_the_drivers(
    built: Built, tmp_path: Path, seed: int
) -> None:
    with two_jobs(tmp_path) as pages, ExitStack() as stack:
        walk = Walk(built, pages, tmp_path, seed, stack)
        for _ in range(STEPS):
            walk.step()
            walk.check()
        assert all(process.probe.said() == "" for process in walk.all)
        assert min(walk.shared.values()) > 0, "the walk never shared memory: its dice are of no use"
