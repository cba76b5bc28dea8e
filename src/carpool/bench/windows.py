"""A compute share from a job's very first kernel on: every window of five seconds, by the stand-in's own books.

A job of one or of eight processes that begin together launches kernels of one length as fast as it is let: waited for
one by one (sync), never waited for (async), or as graphs of four that take as long together. Nothing is left out: the
first window begins with the first launch. A window's share is the time in which the card was busy.

A kernel cannot be cut, so no limiter keeps a share finer than one kernel: with kernels of 1 s at 50 % a window holds
two to three of them, as its phase is. What an ideal one would show is a range (`ideal_range`), for all but long
kernels a point; `error` is the distance from it. A program that waits for its kernels leaves the device idle while it
wakes up; where it would not reach what is asked without a limit either, the range begins at what it reaches
just before or just after, whichever is less.

A virtual machine's host may take its processors away for a while; a program that waits for its kernels launches none
meanwhile, and no limiter can give it that time back. Windows in which the kernel counted more than STOLEN_NS_MAX of
stolen time are left out; a case without any other window is measured again, TRIES times at most, and then all count.

The group `wake` is another question: how long a job that slept waits for its first kernel's end, beside one without a
limit that never stops launching.
"""

from __future__ import annotations

import math
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from carpool.bench import shares
from carpool.bench.node import open_node, stolen_ns, stop
from carpool.bench.report import Report, Say, Target
from carpool.bench.shares import Case
from carpool.errors import PeerError

KERNELS = {"10us": 10_000, "1ms": 1_000_000, "100ms": 100_000_000, "1s": 1_000_000_000}  # in ns
PROCESSES = (1, 8)
PERCENTS, FREE = (20, 50, 80), 100  # 100: no limit
PERCENTS_AND_FREE = (20, 50, FREE, 80, FREE)  # on both sides of what may not be reached: it differs from run to run
GROUPS = tuple(f"{processes}x{kernel}" for kernel in KERNELS for processes in PROCESSES)
WINDOW_NS = 5_000_000_000
SECONDS = 7.0  # from the first launch: windows that begin in the first two seconds
EVERY_S = 0.005
ALONE_BELOW_NS = 10_000_000  # launching shorter kernels than this is work for the machine: one case at a time
SIDE_BY_SIDE = 5
POINTS_MAX = 3
WAKE, WAKES, WAKE_MS_MAX = "wake", 10, 100
SLEEPER_PERCENT = 30

STOLEN_NS_MAX, TRIES = 100_000_000, 4
STOLEN_EVERY = 10  # looks at the card between two looks at the stolen time: that is dear

Line = list[tuple[int, int, int]]  # when; for how long the card had been busy by then; what the host had taken; ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The least and the largest share of any window, in percent, and what there was to compare with."""

    least: float
    most: float
    ideal: tuple[float, float]
    is_disturbed: bool = False  # the host took too much in every window: all count

    @property
    def error(self) -> float:
        return max(self.ideal[0] - self.least, self.most - self.ideal[1], 0.0)


def works(kernel_ns: int) -> dict[str, str]:
    """How such kernels are launched, in the probe's words."""
    return {
        "sync": f"loop {{ms}} 1 busy_{kernel_ns}ns",
        "async": f"loop {{ms}} 1000000000 busy_{kernel_ns}ns",
        "graphs": f"graphs {{ms}} 1 busy_{kernel_ns // 4}ns",
    }


def run(say: Say, program: Sequence[str], group: str) -> Report:
    """All cases of one group (`8x100ms`: eight processes, kernels of 100 ms), or of all of them."""
    report = Report(bench="interposer")
    if group in (WAKE, "all"):
        woken = measure_wakes(program)
        say(f"interposer: a job that woke had its kernel done after {', '.join(f'{ms:.0f}' for ms in woken)} ms")
        report.add("wake_ms", max(woken), Target(limit=WAKE_MS_MAX))
    groups = [name for name in GROUPS if group in (name, "all")]
    worst = 0.0
    for name in groups:
        for case, kept in measure_group(program, name).items():
            low, high = kept.ideal
            say(
                f"interposer: {case}: {kept.least:.2f} to {kept.most:.2f} % in any 5 s, ideal {low:.2f} to "
                f"{high:.2f}, off by {kept.error:.2f} points"
            )
            report.add(f"window_error_points_{case}", kept.error)
            if kept.is_disturbed:
                report.notes.append(
                    f"{case}: in every window the host took away more than {STOLEN_NS_MAX // 10**6} ms"
                )
            worst = max(worst, kept.error)
    if groups:
        report.add("window_error_points", worst, Target(limit=POINTS_MAX))
    return report


def measure_group(program: Sequence[str], group: str) -> dict[str, Kept]:
    processes, _, kernel = group.partition("x")
    kernel_ns = KERNELS[kernel]
    is_short = kernel_ns < ALONE_BELOW_NS
    cases = [
        (how, percent, Case(percents=(percent,), processes=int(processes), work=work))
        for how, work in works(kernel_ns).items()
        for percent in (PERCENTS_AND_FREE if is_short and how != "async" else PERCENTS)
    ]
    with ThreadPoolExecutor(1 if is_short else SIDE_BY_SIDE) as pool:
        lines = list(pool.map(lambda case: watch_undisturbed(program, case[-1]), cases))
    reached: dict[str, float] = {}
    for (how, percent, _), line in zip(cases, lines, strict=True):
        if percent == FREE:
            reached[how] = min(reached.get(how, 100.0), kept_of(line, (0.0, 100.0)).least)
    found = {}
    for (how, percent, _), line in zip(cases, lines, strict=True):
        if percent != FREE:
            least, most = ideal_range(kernel_ns, percent)
            found[f"{processes}x{percent}_{how}_{kernel}"] = kept_of(
                line, (min(least, reached.get(how, 100.0)), most)
            )
    return found


def watch_undisturbed(program: Sequence[str], case: Case) -> Line:
    """The last of several tries, if the host takes the machine away in all of them."""
    line: Line = []
    for _ in range(TRIES):
        line = watch(program, case)
        if window_percents(line, STOLEN_NS_MAX):
            break
    return line


def watch(program: Sequence[str], case: Case) -> Line:
    """The card's busy time from just before the job's first launch on."""
    with tempfile.TemporaryDirectory(prefix="cpb-") as directory:
        books = Path(directory) / "books"
        with open_node(policy="fair", device=shares.DEVICE, settings={"CARPOOL_STUB_FILE": str(books)}) as node:
            [percent] = case.percents
            child = shares.start_job(node, program, case.processes, percent)
            try:
                shares.first_answer(child)
                shares.tell(child, case.work.format(ms=round((SECONDS + 1) * 1000)))
                return _follow(books)
            finally:
                stop(child)


def _follow(books: Path) -> Line:
    deadline, line, stolen = time.monotonic() + shares.START_S, [(time.monotonic_ns(), 0, 0)], 0
    while line[-1][0] - line[0][0] < SECONDS * 1e9:
        when, launched, done = read_card(books)
        stolen = stolen_ns() if len(line) % STOLEN_EVERY == 1 else stolen
        line = [*line, (when, max(done, line[-1][1]), stolen)] if launched else [(when, 0, stolen)]
        if not launched and time.monotonic() > deadline:
            raise PeerError(f"the program had launched no kernel after {shares.START_S:.0f} s")
        time.sleep(EVERY_S)
    return line


def read_card(books: Path) -> tuple[int, int, int]:
    """Now, and what the first card was given to do and has done by now; all in ns."""
    raw = books.read_bytes()[: shares.HEAD_BYTES] if books.exists() else b""
    words = struct.unpack(f"<{len(raw) // 8}Q", raw) or (0,) * (shares.HEAD_BYTES // 8)
    idle_at, launched, now = words[3], words[3 + shares.CARDS], time.monotonic_ns()
    return now, launched, launched - max(0, idle_at - now)


def window_percents(line: Line, stolen_ns_max: float = math.inf) -> list[float]:
    """The share of every window that begins with one of these moments and had no more than this stolen."""
    found, last = [], 0
    for begin, done, stolen in line:
        while last < len(line) and line[last][0] < begin + WINDOW_NS:
            last += 1
        if last == len(line):
            break
        (before, done_before, _), (after, done_after, stolen_after) = line[last - 1], line[last]
        done_at_end = done_before + (done_after - done_before) * (begin + WINDOW_NS - before) / (after - before)
        if stolen_after - stolen <= stolen_ns_max:
            found.append((done_at_end - done) / WINDOW_NS * 100)
    return found


def kept_of(line: Line, ideal: tuple[float, float]) -> Kept:
    quiet = window_percents(line, STOLEN_NS_MAX)
    found = quiet or window_percents(line)
    return Kept(least=min(found), most=max(found), ideal=ideal, is_disturbed=not quiet)


def ideal_range(kernel_ns: int, percent: int) -> tuple[float, float]:
    """The least and the largest share of any window, if kernels that cannot be cut begin exactly in their time."""
    period = kernel_ns * 100 // percent
    whole, rest = divmod(WINDOW_NS, period)
    least, most = (whole * kernel_ns + part for part in (max(0, rest - (period - kernel_ns)), min(rest, kernel_ns)))
    return least / WINDOW_NS * 100, most / WINDOW_NS * 100


def measure_wakes(program: Sequence[str]) -> list[float]:
    """From the word to a job that slept for a second to the end of the kernel it launches then, in ms."""
    with tempfile.TemporaryDirectory(prefix="cpb-") as directory:
        books = Path(directory) / "books"
        with open_node(policy="fair", device=shares.DEVICE, settings={"CARPOOL_STUB_FILE": str(books)}) as node:
            busy = shares.start_job(node, program, 1, FREE)
            sleeper = shares.start_job(node, program, 1, SLEEPER_PERCENT)
            try:
                shares.first_answer(busy)
                [pid] = shares.first_answer(sleeper)
                shares.tell(busy, f"loop {(WAKES + 5) * 1000} 10 busy_1ms")
                return [_wake(sleeper, pid, books) for _ in range(WAKES)]
            finally:
                stop(sleeper)
                stop(busy)


def _wake(sleeper: subprocess.Popen[str], pid: int, books: Path) -> float:
    time.sleep(1)
    before, began = shares.read_busy_ns(books).get(pid, 0), time.monotonic_ns()
    shares.tell(sleeper, "launch plain busy_1ms")
    shares.tell(sleeper, "sync")
    while shares.read_busy_ns(books).get(pid, 0) == before:
        if time.monotonic_ns() - began > shares.START_S * 1e9:
            raise PeerError(f"a job that woke up had launched no kernel after {shares.START_S:.0f} s")
        time.sleep(0.001)
    now, launched, done = read_card(books)
    return (now - began + launched - done) / 1e6
