"""Work per second of identical training jobs: one after another, all at once, and all at once under carpool.

Measured: the wall time from the start of the first process to the end of the last, start-up of interpreter and torch
included, for the same number of equal jobs (`programs/train.py`) in three arms:
  sequential      plain Python, one after another
  uncoordinated   plain Python, all at once; nobody sets the threads' wait policy, as people's programs do
  carpool         `carpool run` for each, all at once, policy fair; the daemon's own start is not in it
Rounds are interleaved, the order of arms alternates, figures are medians over rounds; a ratio above 1 means more work
per second than the sequential arm of the same round. The two arms that are compared run one right after the other;
they are run again, TRIES times at most, where the host of a virtual machine took more than STOLEN_MAX of it away; the
pair it took least from counts (`stolen_fraction_max`). The uncoordinated arm, far from both, is not run again.
`…_compute` is the same for the time from the first operation of any job to the last of all (of each job, summed, in
the sequential arm), so without start-up. `daemon_core_fraction` is the daemon's processor time in the carpool arm by
its wall time, registration of the jobs and two questions for its status included.

Not measured: jobs of different kinds, packing (several lanes), memory pressure, a GPU.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from carpool.bench.node import open_node, python, read_stamps, run_plain, stolen_ns, wait_all
from carpool.bench.report import Report, Say, Target

MODEL = {"width": 192, "depth": 2, "batch": 8}
MEMORY = "1GiB"
ARM_SECONDS = 1800.0
ARMS = ("uncoordinated", "sequential", "carpool")
PAIR = ("sequential", "carpool")
STOLEN_MAX = 0.03
TRIES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one arm took in one round."""

    whole_s: float
    compute_s: float
    daemon_core_fraction: float = 0.0
    stolen_fraction: float = 0.0  # of the time of all processors


def run(say: Say, *, jobs: int, steps: int, rounds: int) -> Report:
    found: dict[str, list[Round]] = {arm: [] for arm in ARMS}

    def play(number: int, arm: str) -> Round:
        before, began = stolen_ns(), time.monotonic_ns()
        done = _run_arm(arm, jobs, steps)
        lasted_ns = (time.monotonic_ns() - began) * (os.cpu_count() or 1)
        done = replace(done, stolen_fraction=(stolen_ns() - before) / lasted_ns)
        times = f"{done.whole_s:.2f} s, computing {done.compute_s:.2f} s"
        say(f"throughput: round {number + 1}, {arm}: {times}, {done.stolen_fraction:.1%} stolen")
        return done

    for number in range(rounds):
        is_forward = number % 2 == 0
        played = {arm: play(number, arm) for arm in (ARMS if is_forward else reversed(ARMS))}
        for _ in range(TRIES):
            if _stolen(played) <= STOLEN_MAX:
                break
            say(f"throughput: the host took {_stolen(played):.0%} of this machine away; once more")
            again = {arm: play(number, arm) for arm in (PAIR if is_forward else reversed(PAIR))}
            played = min(played, {**played, **again}, key=_stolen)
        for arm in ARMS:
            found[arm].append(played[arm])
    return _report(found, jobs)


def _stolen(played: dict[str, Round]) -> float:
    """The most that was taken from one of the arms that are compared."""
    return max(played[arm].stolen_fraction for arm in PAIR)


def _run_arm(arm: str, jobs: int, steps: int) -> Round:
    if arm == "carpool":
        return _run_carpool(jobs, steps)
    with tempfile.TemporaryDirectory(prefix="cpb-") as directory:
        places = [Path(directory) / f"{number}.stamps" for number in range(jobs)]
        commands = [_command(place, steps) for place in places]
        began = time.monotonic()
        if arm == "sequential":
            for command in commands:
                run_plain([command], seconds=ARM_SECONDS)
        else:
            run_plain(commands, seconds=ARM_SECONDS)
        whole_s = time.monotonic() - began
        return Round(whole_s=whole_s, compute_s=_compute_s(places, in_turn=arm == "sequential"))


def _run_carpool(jobs: int, steps: int) -> Round:
    with open_node(policy="fair") as node:
        places = [node.directory / f"{number}.stamps" for number in range(jobs)]
        cpu_s = node.cpu_s()
        began = time.monotonic()
        wait_all([node.run(_command(place, steps), "--memory", MEMORY) for place in places], seconds=ARM_SECONDS)
        whole_s = time.monotonic() - began
        share = (node.cpu_s() - cpu_s) / whole_s
        node.check_jobs()
        return Round(whole_s=whole_s, compute_s=_compute_s(places, in_turn=False), daemon_core_fraction=share)


def _command(place: Path, steps: int) -> list[str]:
    return python("train.py", {**MODEL, "steps": steps, "stamps": place})


def _compute_s(places: list[Path], *, in_turn: bool) -> float:
    spans = [(each[0][0], each[-1][1]) for each in map(read_stamps, places)]
    if in_turn:
        return sum(last - first for first, last in spans) / 1e9
    return (max(last for _, last in spans) - min(first for first, _ in spans)) / 1e9


def _report(found: dict[str, list[Round]], jobs: int) -> Report:
    report = Report(bench="throughput")
    ratios = {arm: _ratios(found, arm) for arm in ("carpool", "uncoordinated")}
    carpool, uncoordinated = ratios["carpool"][0], ratios["uncoordinated"][0]
    report.add("carpool_over_sequential", carpool)
    report.add("uncoordinated_over_sequential", uncoordinated)
    report.add("carpool_over_better", carpool / max(1.0, uncoordinated), Target(limit=0.98, is_least=True))
    report.add("carpool_over_sequential_compute", ratios["carpool"][1])
    report.add("uncoordinated_over_sequential_compute", ratios["uncoordinated"][1])
    share = median(each.daemon_core_fraction for each in found["carpool"])
    report.add("daemon_core_fraction", share, Target(limit=0.01))
    report.add("stolen_fraction_max", max(each.stolen_fraction for arm in PAIR for each in found[arm]))
    report.add("jobs", jobs)
    report.add("rounds", len(found["carpool"]))
    for arm in ARMS:
        report.add(f"{arm}_s", median(each.whole_s for each in found[arm]))
    return report


def _ratios(found: dict[str, list[Round]], arm: str) -> tuple[float, float]:
    """The arm's work per second by that of the sequential arm of the same round: whole lives, and computing only."""
    pairs = list(zip(found["sequential"], found[arm], strict=True))
    whole = median(plain.whole_s / other.whole_s for plain, other in pairs)
    return whole, median(plain.compute_s / other.compute_s for plain, other in pairs)
