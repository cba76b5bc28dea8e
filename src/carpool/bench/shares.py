"""How well a compute share is kept: programs under `carpool run --compute` on the stand-in GPU, by its own books.

Each job is one or more processes that launch as fast as they are let. The stand-in notes the device time of every
process; the share of any five seconds is compared with the asked one. The first second is left out: costs are learnt
there, and the bucket's burst is spent. A program that waits for its kernels leaves the device idle while it wakes up,
so it may not reach what is asked, limit or not: such a case is run without a limit before and after, and the less of
what these two reach is where the range of what it may have begins, which ends at what is asked: how soon a sleeping
thread is woken decides, and runs of the same program differ by points.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from carpool.bench.node import Lines, Node, open_node, stolen_ns, stop
from carpool.errors import PeerError

DEVICE = "stub:16GiB"
TENTH_WAITED = "loop {ms} 10 busy_1ms"  # the probe's words: kernels of 1 ms, a wait after every tenth
LEARN_S, WINDOW_S, EVERY_S = 1.0, 5.0, 0.1
START_S = 60.0
TRIES, STOLEN_MAX = 3, 0.01  # of the time of all processors
# As native/fake/books.h: a header, then rows of pid, birth and some words a card.
CARDS, ROWS = 16, 256
CARD_WORDS = 6
HEAD_BYTES, ROW_BYTES = 8 * (3 + 2 * CARDS), 8 * (2 + CARD_WORDS * CARDS)
# A job of several processes: this one starts the others, hands on what it is told and says what they answer.
CROWD = """
import subprocess, sys
pipe = subprocess.PIPE
crowd = [subprocess.Popen(sys.argv[2:], stdin=pipe, stdout=pipe, text=True) for _ in range(int(sys.argv[1]))]
print(0, *(each.stdout.readline().split()[1] for each in crowd), flush=True)
for line in sys.stdin:
    for each in crowd:
        each.stdin.write(line)
        each.stdin.flush()
"""

Samples = list[tuple[float, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Jobs side by side, each with this share (100: no limit) and so many processes that all do this work."""

    percents: tuple[int, ...]
    processes: int = 1
    work: str = TENTH_WAITED
    is_tight: bool = False  # it may ask for more than its programs reach without a limit


CASES = {
    "20": Case(percents=(20,)),
    "50": Case(percents=(50,)),
    "80": Case(percents=(80,)),
    "30_and_70": Case(percents=(30, 70), is_tight=True),
}
CROWDS = {
    "8x80_sync_10us": Case(percents=(80,), processes=8, work="loop {ms} 1 busy_10us", is_tight=True),
    "8x80_async_10us": Case(percents=(80,), processes=8, work="loop {ms} 1000000000 busy_10us"),
    "8x80_graphs_4ms": Case(percents=(80,), processes=8, work="graphs {ms} 1 busy_1ms"),
    "8x80_sync_20ms": Case(percents=(80,), processes=8, work="loop {ms} 1 busy_20ms"),
}

GRIDS = {  # a server with changing batch and sequence lengths has many; a wait after every fiftieth kernel
    f"{kernel}_{count}_grids": Case(percents=(80,), work=f"grids {{ms}} {count} busy_{kernel}", is_tight=True)
    for kernel in ("1ms", "100us")
    for count in (1, 500, 3000, 10_000)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How well the shares of a case were kept, in points: by what was asked, and by what there was to share."""

    error: float
    error_of_reachable: float
    reached_percents: tuple[float, ...]  # of the device, by the same processes without a limit, before and after
    stolen_fraction: float = 0.0


def measure_calmly(program: Sequence[str], case: Case, *, seconds: float) -> Kept:
    """Once, and again while a virtual machine's host took too much of it away; the least disturbed counts."""
    tries: list[Kept] = []
    while not tries or (len(tries) < TRIES and tries[-1].stolen_fraction > STOLEN_MAX):
        before, began = stolen_ns(), time.monotonic_ns()
        kept = measure_case(program, case, seconds=seconds)
        lasted_ns = (time.monotonic_ns() - began) * (os.cpu_count() or 1)
        tries.append(replace(kept, stolen_fraction=(stolen_ns() - before) / lasted_ns))
    return min(tries, key=lambda kept: kept.stolen_fraction)


def measure_case(program: Sequence[str], case: Case, *, seconds: float) -> Kept:
    free = [measure_reach(program, case, seconds=seconds)] if case.is_tight else []
    found = measure_shares(program, case, seconds=seconds)
    free += [measure_reach(program, case, seconds=seconds)] if case.is_tight else []
    pairs = list(zip(found, case.percents, strict=True))
    part = reachable_part(free, sum(case.percents))
    return Kept(
        error=max(worst_error(samples, percent, percent) for samples, percent in pairs),
        error_of_reachable=max(worst_error(samples, percent * part, percent) for samples, percent in pairs),
        reached_percents=tuple(free),
    )


def measure_lost(program: Sequence[str], case: Case, *, seconds: float) -> float:
    """What a job of one share gets less than its limit, in percent of it, or of what it reaches without one, just
    before or just after: a machine that becomes busier meanwhile takes from the second what the first one had."""
    before = measure_reach(program, case, seconds=seconds)
    [found] = measure_shares(program, case, seconds=seconds)
    after = measure_reach(program, case, seconds=seconds)
    return max(0.0, 100 - 100 * mean_percent(found) / min(before, after, case.percents[0]))


def measure_reach(program: Sequence[str], case: Case, *, seconds: float) -> float:
    """What the processes of a case reach without a limit, in percent of the device."""
    [free] = measure_shares(program, replace(case, percents=(100,)), seconds=seconds)
    return mean_percent(free)


def reachable_part(reached_percents: Sequence[float], asked_percent: float) -> float:
    """The least part of what is asked that was reached without a limit: at most all of it, which is also what counts
    where nothing was measured."""
    return min([1.0, *(reached / asked_percent for reached in reached_percents)])


def measure_shares(program: Sequence[str], case: Case, *, seconds: float) -> list[Samples]:
    """Device time of each job of a case, every now and then."""
    with tempfile.TemporaryDirectory(prefix="cpb-") as directory:
        books = Path(directory) / "books"
        with open_node(policy="fair", device=DEVICE, settings={"CARPOOL_STUB_FILE": str(books)}) as node:
            children = [start_job(node, program, case.processes, percent) for percent in case.percents]
            try:
                pids = [first_answer(child) for child in children]
                line = case.work.format(ms=round((LEARN_S + seconds + 1) * 1000))
                for child in children:
                    tell(child, line)
                return _watch(lambda: read_busy_ns(books), pids, seconds)
            finally:
                for child in children:
                    stop(child)


def start_job(node: Node, program: Sequence[str], processes: int, percent: int) -> subprocess.Popen[str]:
    limit = [] if percent == 100 else ["--compute", f"{percent}%"]
    crowd = [sys.executable, "-I", "-c", CROWD, str(processes), *program]
    carpool = [sys.executable, "-m", "carpool.cli.main", "run", "--memory", "1GiB", *limit, "--"]
    pipe = subprocess.PIPE
    return subprocess.Popen([*carpool, *crowd], env=node.environment, stdin=pipe, stdout=pipe, text=True)


def tell(child: subprocess.Popen[str], line: str) -> None:
    assert child.stdin
    child.stdin.write(f"{line}\n")
    child.stdin.flush()


def first_answer(child: subprocess.Popen[str]) -> list[int]:
    """The ids of the job's processes."""
    assert child.stdout
    words = (Lines(child.stdout.fileno()).next(seconds=START_S) or "").split()
    if len(words) < 2 or words[0] != "0":
        raise PeerError(f"the probe did not start: it said '{' '.join(words)}'")
    return [int(word) for word in words[1:]]


def _watch(look: Callable[[], dict[int, int]], jobs: list[list[int]], seconds: float) -> list[Samples]:
    """Device time of these jobs every now and then, once all their processes have begun and learnt."""
    deadline = time.monotonic() + START_S
    while not all(look().get(pid) for pids in jobs for pid in pids):
        if time.monotonic() > deadline:
            raise PeerError(f"not every program had launched a kernel after {START_S:.0f} s")
        time.sleep(EVERY_S / 10)
    time.sleep(LEARN_S)
    samples: list[Samples] = [[] for _ in jobs]
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        busy = look()
        for each, pids in zip(samples, jobs, strict=True):
            each.append((now, sum(busy.get(pid, 0) for pid in pids)))
        time.sleep(EVERY_S)
    return samples


def read_books(books: Path, card: int = 0) -> dict[int, tuple[int, ...]]:
    """What the stand-in's books have of every process on a card: bytes, their peak, device time in ns, launches …"""
    raw = books.read_bytes() if books.exists() else b""
    found = {}
    for row in range(ROWS if raw else 0):
        words = struct.unpack_from(f"<{ROW_BYTES // 8}Q", raw, HEAD_BYTES + row * ROW_BYTES)
        if words[0]:
            found[int(words[0])] = words[2 + CARD_WORDS * card :][:CARD_WORDS]
    return found


def read_busy_ns(books: Path, card: int = 0) -> dict[int, int]:
    """Device time of every process on a card, by the stand-in's books."""
    return {pid: busy_ns for pid, (_, _, busy_ns, *_) in read_books(books, card).items()}


def mean_percent(samples: Samples) -> float:
    (from_s, from_ns), (to_s, to_ns) = samples[0], samples[-1]
    return (to_ns - from_ns) / 1e7 / (to_s - from_s)


def worst_error(samples: Samples, least_percent: float, most_percent: float) -> float:
    """The largest distance of any window's share from the range it should be in, in points."""
    worst, last = 0.0, 0
    for start, (from_s, from_ns) in enumerate(samples):
        last = max(last, start)
        while last < len(samples) and samples[last][0] - from_s < WINDOW_S - EVERY_S:
            last += 1
        if last == len(samples):
            break
        to_s, to_ns = samples[last]
        share = (to_ns - from_ns) / 1e7 / (to_s - from_s)
        worst = max(worst, least_percent - share, share - most_percent)
    return worst
