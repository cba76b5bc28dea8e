"""How well a compute share is kept: programs under `carpool run --compute` on the stand-in GPU, by its own books.

Each program launches kernels of 1 ms as fast as it is let, waiting after every tenth. The stand-in notes the device
time of every process; the share of any five seconds is compared with the asked one. The first second is left out:
costs are learnt there, and the bucket's burst is spent.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from carpool.bench.node import Lines, Node, open_node, stop
from carpool.errors import PeerError

DEVICE = "stub:16GiB"
KERNEL = "busy_1ms"
WAIT_EVERY = 10
LEARN_S, WINDOW_S, EVERY_S = 1.0, 5.0, 0.1
START_S = 60.0
# As native/fake/books.h: a header, then rows of pid, birth and three words a card.
CARDS, ROWS = 16, 256
HEAD_BYTES, ROW_BYTES = 8 * (3 + 2 * CARDS), 8 * (2 + 3 * CARDS)

Samples = list[tuple[float, int]]


def measure_shares(program: Sequence[str], percents: Sequence[int], *, seconds: float) -> list[float]:
    """The worst error, in points, of each of these shares, asked for side by side."""
    with tempfile.TemporaryDirectory(prefix="cpb-") as directory:
        books = Path(directory) / "books"
        with open_node(policy="fair", device=DEVICE, settings={"CARPOOL_STUB_FILE": str(books)}) as node:
            children = [_start(node, program, percent) for percent in percents]
            try:
                pids = [_first_answer(child) for child in children]
                length_ms = round((LEARN_S + seconds + 1) * 1000)
                for child in children:
                    _tell(child, f"loop {length_ms} {WAIT_EVERY} {KERNEL}")
                samples = _watch(lambda: read_busy_ns(books), pids, seconds)
            finally:
                for child in children:
                    stop(child)
    return [worst_error(each, percent) for each, percent in zip(samples, percents, strict=True)]


def _start(node: Node, program: Sequence[str], percent: int) -> subprocess.Popen[str]:
    carpool = [sys.executable, "-m", "carpool.cli.main", "run", "--memory", "1GiB", "--compute", f"{percent}%", "--"]
    pipe = subprocess.PIPE
    return subprocess.Popen([*carpool, *program], env=node.environment, stdin=pipe, stdout=pipe, text=True)


def _tell(child: subprocess.Popen[str], line: str) -> None:
    assert child.stdin
    child.stdin.write(f"{line}\n")
    child.stdin.flush()


def _first_answer(child: subprocess.Popen[str]) -> int:
    """The program's process id."""
    assert child.stdout
    words = (Lines(child.stdout.fileno()).next(seconds=START_S) or "").split()
    if len(words) != 2 or words[0] != "0":
        raise PeerError(f"the probe did not start: it said '{' '.join(words)}'")
    return int(words[1])


def _watch(look: Callable[[], dict[int, int]], pids: list[int], seconds: float) -> list[Samples]:
    """Device time of these processes every now and then, once all of them have begun and learnt."""
    deadline = time.monotonic() + START_S
    while not all(look().get(pid) for pid in pids):
        if time.monotonic() > deadline:
            raise PeerError(f"not every program had launched a kernel after {START_S:.0f} s")
        time.sleep(EVERY_S / 10)
    time.sleep(LEARN_S)
    samples: list[Samples] = [[] for _ in pids]
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        busy = look()
        for each, pid in zip(samples, pids, strict=True):
            each.append((now, busy.get(pid, 0)))
        time.sleep(EVERY_S)
    return samples


def read_busy_ns(books: Path, card: int = 0) -> dict[int, int]:
    """Device time of every process on a card, by the stand-in's books."""
    raw = books.read_bytes() if books.exists() else b""
    found = {}
    for row in range(ROWS if raw else 0):
        words = struct.unpack_from(f"<{ROW_BYTES // 8}Q", raw, HEAD_BYTES + row * ROW_BYTES)
        if words[0]:
            found[int(words[0])] = int(words[2 + 3 * card + 1])
    return found


def worst_error(samples: Samples, percent: int) -> float:
    """The largest difference from the asked share, in points, over all windows of the samples."""
    worst = 0.0
    last = 0
    for start, (from_s, from_ns) in enumerate(samples):
        last = max(last, start)
        while last < len(samples) and samples[last][0] - from_s < WINDOW_S - EVERY_S:
            last += 1
        if last == len(samples):
            break
        to_s, to_ns = samples[last]
        worst = max(worst, abs((to_ns - from_ns) / 1e9 / (to_s - from_s) * 100 - percent))
    return worst
