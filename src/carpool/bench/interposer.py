"""What the CUDA guest (native/, gpu.so) costs a call, and how well it keeps a compute share, on the stand-in GPU.

Measured by the probe (native/tests/gpu_probe.c), a CUDA program that calls one function in a tight loop, with the
guest preloaded and without, over the same stand-in driver. The guest's account is a page as the daemon makes it, with
a cap that is not reached; the job holds its turn.
  …_added_ns             the same loop in both arms, interleaved processes, least of all blocks; the difference is the
                         guest's (a busy machine may show less than nothing: the instructions are the better figure)
  …_added_instructions   counted by callgrind inside the loop, so the same in every run on every machine of a kind
  launch                 cuLaunchKernel; `capped` with a compute limit (the limit is so high that nobody waits)
  alloc                  cuMemAlloc and cuMemFree of 4 KiB; `10k_live` while 10,000 others are held, `90_others` while
                         90 other processes of the job have a slot in the page
  unlimited_call         cuEventRecord, which needs no limit
  init_added_us          the first calls of a process, to the end of its first allocation; medians of fresh processes;
                         again also with 90 others
  load_added_us          before that: loading the library and finding its place in the page, of `true`; again also
                         with 90 others
  share_error_points     the worst difference between asked and measured share of the device in any 5 s, of asked 20,
                         50 and 80 % alone and 30 + 70 % side by side, through `carpool run --compute`; measured again
                         where a virtual machine's host took more than 1 % of it away, three times at most
  …_of_reachable         the same, and eight processes at 80 %, where less than asked counts only below what these
                         programs reach without a limit, just before or just after (share_reached_percent_…)
  grids_lost_percent_…   what a program of one kernel in so many grids has less than its limit of 80 %, in percent of
                         that, or of what it reaches without a limit just before or after if that is less
  window_error_points    with --windows only: the same from the first launch on, 1 and 8 processes (windows.py)

Not measured: a GPU. The stand-in's own work is about 25 instructions a launch, the real driver's thousands.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from carpool.bench import shares, windows
from carpool.bench.node import plain_environment
from carpool.bench.report import Report, Say, Target
from carpool.devices import stub
from carpool.devices.libraries import find_library
from carpool.errors import PeerError, UsageError
from carpool.wire import page as wire
from carpool.wire.page import Page, slot_base

LAUNCH, ALLOC, OTHER = 0, 1, 2
ROUNDS = 7
BLOCKS = 20  # in one process
CALLS = {LAUNCH: 100_000, ALLOC: 2_000}
COUNTED = {LAUNCH: 40_000, ALLOC: 2_000, OTHER: 2_000}  # lots decide which launches are measured
LIVE = 10_000
STARTS = 21
OTHERS = 90
CAP_BYTES = 8 << 30
NO_WAIT_PRICE = 1  # a compute limit of 1,024 times the device: every launch pays, nobody waits
PROBE_SECONDS = 120.0
SHARE_SECONDS = 8.0
GRID_SECONDS = 5.0  # one window
# The probe is a library: whoever loads it after the driver calls its main.
LOAD = """
import ctypes, sys
ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)
probe = ctypes.CDLL(sys.argv[1])
sys.exit(probe.main(2, (ctypes.c_char_p * 3)(b"probe", b"link", None)))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """A page, the stand-in's books, and the two environments: with the guest and without."""

    page: Page
    probe: str
    bare: Mapping[str, str]
    guarded: Mapping[str, str]

    def answers(self, env: Mapping[str, str], *lines: str, before: tuple[str, ...] = ()) -> tuple[list[int], str]:
        """What a fresh probe answers to these lines, and what was said on stderr."""
        command = [*before, sys.executable, "-I", "-S", "-c", LOAD, self.probe]  # site costs callgrind seconds
        done = subprocess.run(
            command,
            env=dict(env),
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
        rows = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
        if done.returncode or len(rows) != 1 + len(lines) or any(result for result, _ in rows):
            raise PeerError(f"the probe failed (exit code {done.returncode}): {done.stdout} {done.stderr}")
        return [value for _, value in rows[1:]], done.stderr


def run(say: Say, *, quick: bool) -> Report:
    report = Report(bench="interposer")
    report.notes.append(
        "the GPU is carpool's stand-in: what the guest adds is real, what the driver itself takes is not"
    )
    with open_rig() as rig:
        _time_calls(say, rig, report, rounds=1 if quick else ROUNDS)
        _time_starts(say, rig, report, starts=3 if quick else STARTS)
        if shutil.which("valgrind") is None:
            report.notes.append("no instructions were counted: valgrind is not installed (apt-get install valgrind)")
        elif quick:
            report.notes.append("--quick counts the instructions of one kind of call only")
            report.add("unlimited_call_added_instructions", Counter(rig).added(OTHER), Target(limit=0))
        else:
            _count_calls(say, rig, report)
    if quick:
        report.notes.append("--quick measures no share")
    else:
        _measure_shares(say, report)
        _measure_grids(say, report)
    return report


def run_windows(say: Say, group: str) -> Report:
    """Shares from the first launch on; `group` is one of windows.GROUPS, wake, or all."""
    if group not in (*windows.GROUPS, windows.WAKE, "all"):
        there_are = ", ".join((*windows.GROUPS, windows.WAKE))
        raise UsageError(f"--windows {group}: there is no such group; there are {there_are} and all")
    return windows.run(say, _probe_program(), group)


def _probe_program() -> list[str]:
    probe = find_library("gpu_probe")
    if probe is None:
        raise UsageError("the CUDA guest was not built; install gcc, then reinstall carpool (make native)")
    return [sys.executable, "-I", "-c", LOAD, probe]


def _measure_shares(say: Say, report: Report) -> None:
    program = _probe_program()
    kept = {}
    for name, case in (shares.CASES | shares.CROWDS).items():
        kept[name] = shares.measure_calmly(program, case, seconds=SHARE_SECONDS)
        stolen = f", {kept[name].stolen_fraction:.1%} of the machine stolen meanwhile"
        say(f"interposer: share of {name} % is off by {kept[name].error:.2f} points at worst{stolen}")
    report.add("share_error_points", max(kept[name].error for name in shares.CASES), Target(limit=3))
    of_reachable = max(each.error_of_reachable for each in kept.values())
    report.add("share_error_points_of_reachable", of_reachable, Target(limit=3))
    for name, each in kept.items():
        report.add(f"share_error_points_{name}", each.error)
        if (shares.CASES | shares.CROWDS)[name].is_tight:
            report.add(f"share_error_points_of_reachable_{name}", each.error_of_reachable)
            report.add(f"share_reached_percent_before_{name}", each.reached_percents[0])
            report.add(f"share_reached_percent_after_{name}", each.reached_percents[-1])


def _measure_grids(say: Say, report: Report) -> None:
    program = _probe_program()
    for name, case in shares.GRIDS.items():
        lost = shares.measure_lost(program, case, seconds=GRID_SECONDS)
        say(f"interposer: {name} have {100 - lost:.1f} % of their limit")
        report.add(f"grids_lost_percent_{name}", lost, Target(limit=5))


@contextlib.contextmanager
def open_rig() -> Iterator[Rig]:
    guest, probe = find_library("gpu"), find_library("gpu_probe")
    if guest is None or probe is None:
        raise UsageError("the CUDA guest was not built; install gcc, then reinstall carpool (make native)")
    with tempfile.TemporaryDirectory(prefix="cpb-") as directory:
        page = Page.create(Path(directory) / "page")
        page.words[wire.H_CAP] = CAP_BYTES
        bare = plain_environment() | {
            "LD_LIBRARY_PATH": stub.library_directory(),
            "CARPOOL_STUB": "1x16GiB",
            "CARPOOL_STUB_FILE": str(Path(directory) / "books"),
        }
        bare.pop("LD_PRELOAD", None)
        guarded = bare | {"LD_PRELOAD": guest, "CARPOOL_PAGE": str(page.path), "CARPOOL_IS_CAPPED": "1"}
        try:
            yield Rig(page=page, probe=probe, bare=bare, guarded=guarded)
        finally:
            page.close()


# --- time --------------------------------------------------------------------------------------------------------


def _time_calls(say: Say, rig: Rig, report: Report, *, rounds: int) -> None:
    for name, what in (("launch", LAUNCH), ("alloc", ALLOC)):
        found: dict[str, list[float]] = {"bare": [], "guarded": []}
        for number in range(rounds):
            for arm, env in (("bare", rig.bare), ("guarded", rig.guarded)):
                blocks, _ = rig.answers(env, *[f"bench {what} {CALLS[what]}"] * BLOCKS)
                found[arm] += [passed / CALLS[what] for passed in blocks]
            say(f"interposer: {name} round {number + 1} of {rounds}")
        report.add(f"{name}_added_ns", min(found["guarded"]) - min(found["bare"]))
        report.add(f"{name}_bare_ns", min(found["bare"]))


def _time_starts(say: Say, rig: Rig, report: Report, *, starts: int) -> None:
    """Fresh processes: alone in the job, then with most slots of the page taken."""
    alone = _start_cost(rig, starts)
    loaded = _load_cost(rig, 5 * starts)
    with crowd(rig.page):
        crowded = _start_cost(rig, starts)
        crowded_load = _load_cost(rig, 5 * starts)
    say(f"interposer: {24 * starts} starts of a process")
    report.add("init_added_us", alone, Target(limit=1000))
    report.add("init_added_us_90_others", crowded, Target(limit=1000))
    report.add("load_added_us", loaded, Target(limit=1000))
    report.add("load_added_us_90_others", crowded_load, Target(limit=1000))


@contextlib.contextmanager
def crowd(page: Page) -> Iterator[None]:
    """As if 90 other processes of the job had a slot: they are this process, which lives."""
    before = page.words[wire.H_SLOTS_USED]
    for slot in range(1, 1 + OTHERS):
        page.words[slot_base(slot) + wire.S_PID] = os.getpid()
    page.words[wire.H_SLOTS_USED] = 1 + OTHERS
    try:
        yield
    finally:
        for slot in range(1, 1 + OTHERS):
            page.words[slot_base(slot) + wire.S_PID] = 0
        page.words[wire.H_SLOTS_USED] = before


def _start_cost(rig: Rig, starts: int) -> float:
    found: dict[str, list[int]] = {"bare": [], "guarded": []}
    for _ in range(starts):
        for arm, env in (("bare", rig.bare), ("guarded", rig.guarded)):
            found[arm] += rig.answers(env, "first")[0]
    return (median(found["guarded"]) - median(found["bare"])) / 1000


def _load_cost(rig: Rig, starts: int) -> float:
    """A program that does nothing: what is added is the library's own load, and its place in the page. Not by
    subprocess, which looks for an end in steps of milliseconds."""
    nothing = shutil.which("true") or "/bin/true"
    found: dict[str, list[int]] = {"bare": [], "guarded": []}
    for _ in range(starts):
        for arm, env in (("bare", rig.bare), ("guarded", rig.guarded)):
            began = time.monotonic_ns()
            os.waitpid(os.posix_spawn(nothing, [nothing], dict(env)), 0)
            found[arm].append(time.monotonic_ns() - began)
    return (median(found["guarded"]) - median(found["bare"])) / 1000


# --- instructions ------------------------------------------------------------------------------------------------


def _count_calls(say: Say, rig: Rig, report: Report) -> None:
    counter = Counter(rig)
    report.add("launch_added_instructions", counter.added(LAUNCH), Target(limit=10))
    rig.page.words[wire.H_PRICE] = NO_WAIT_PRICE
    report.add("launch_capped_added_instructions", counter.added(LAUNCH), Target(limit=100))
    rig.page.words[wire.H_PRICE] = 0
    say("interposer: instructions of launches are counted")
    report.add("alloc_added_instructions", counter.added(ALLOC), Target(limit=700))
    report.add("alloc_added_instructions_10k_live", counter.added(ALLOC, live=LIVE), Target(limit=700))
    with crowd(rig.page):
        report.add("alloc_added_instructions_90_others", counter.added(ALLOC))
    report.add("unlimited_call_added_instructions", counter.added(OTHER), Target(limit=0))
    say("interposer: all instructions are counted")


class Counter:
    """Counts instructions by callgrind; remembers what it counted without the guest."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._bare: dict[tuple[int, int], float] = {}

    def added(self, what: int, *, live: int = 0) -> float:
        """Instructions that the guest adds to one call, while so many allocations are held."""
        if (what, live) not in self._bare:
            self._bare[what, live] = self._instructions(self._rig.bare, what, live)
        return self._instructions(self._rig.guarded, what, live) - self._bare[what, live]

    def _instructions(self, env: Mapping[str, str], what: int, live: int) -> float:
        """Of one call. Two lengths: what belongs to the loop's first round or to its frame cancels out."""
        holding = [f"alloc plain {slot} 4096" for slot in range(live)]
        totals = []
        for count in (COUNTED[what], 2 * COUNTED[what]):
            valgrind = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no")
            inside = (*valgrind, "--toggle-collect=probe_bench")
            _, said = self._rig.answers(env, *holding, f"bench {what} {count}", before=inside)
            found = re.search(r"Collected : (\d+)", said)
            if found is None:
                raise PeerError(f"callgrind gave no count: {said[-400:]}")
            totals.append(int(found[1]))
        return (totals[1] - totals[0]) / COUNTED[what]
