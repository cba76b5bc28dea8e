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
the sequential arm), so without start-up. With `--together` all jobs of the two arms at once are built first and then
begin together: nobody computes while others start. Then `change_ms` is what a change of turn costs by the stamps of
the iterations, `turn_ms` how long a turn lasts, and `predicted_over_sequential_compute` what the simulator makes of
that cost. `daemon_core_fraction` is the daemon's processor time in the carpool arm by
its wall time, registration of the jobs and two questions for its status included.

Not measured: jobs of different kinds, packing (several lanes), memory pressure, a GPU.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from carpool.bench.node import (
    check_alive,
    open_node,
    python,
    read_stamps,
    run_plain,
    start_plain,
    stolen_ns,
    stop,
    wait_all,
    wait_files,
)
from carpool.bench.report import Report, Say, Target
from carpool.bench.turn_costs import Turns, turns_of
from carpool.core.node.model import JobSpec, Needs
from carpool.sim.node_engine import NodeEngine
from carpool.sim.scripts import Machine, Script

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
    turns: Turns | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What every arm has to do."""

    jobs: int
    steps: int
    is_together: bool = False  # those at once begin when all are built


def run(say: Say, load: Load, *, rounds: int, arms: Sequence[str] = ARMS) -> Report:
    found: dict[str, list[Round]] = {arm: [] for arm in arms}

    def play(number: int, arm: str) -> Round:
        before, began = stolen_ns(), time.monotonic_ns()
        done = _run_arm(arm, load)
        lasted_ns = (time.monotonic_ns() - began) * (os.cpu_count() or 1)
        done = replace(done, stolen_fraction=(stolen_ns() - before) / lasted_ns)
        times = f"{done.whole_s:.2f} s, computing {done.compute_s:.2f} s"
        say(f"throughput: round {number + 1}, {arm}: {times}, {done.stolen_fraction:.1%} stolen")
        return done

    for number in range(rounds):
        is_forward = number % 2 == 0
        played = {arm: play(number, arm) for arm in (arms if is_forward else reversed(arms))}
        for _ in range(TRIES):
            if _stolen(played) <= STOLEN_MAX:
                break
            say(f"throughput: the host took {_stolen(played):.0%} of this machine away; once more")
            again = {arm: play(number, arm) for arm in (PAIR if is_forward else reversed(PAIR))}
            played = min(played, {**played, **again}, key=_stolen)
        for arm in arms:
            found[arm].append(played[arm])
    return _report(found, load)


def _stolen(played: dict[str, Round]) -> float:
    """The most that was taken from one of the arms that are compared."""
    return max(played[arm].stolen_fraction for arm in PAIR)


def _run_arm(arm: str, load: Load) -> Round:
    if arm == "carpool":
        return _run_carpool(load)
    with tempfile.TemporaryDirectory(prefix="cpb-") as directory:
        places = _places(Path(directory), load)
        began = time.monotonic()
        if arm == "sequential":
            for place in places:
                run_plain([_command(place, load)], seconds=ARM_SECONDS)
        else:
            go = Path(directory) / "go" if load.is_together else None
            children = [start_plain(_command(place, load, go)) for place in places]
            _wait(children, places, go)
        whole_s = time.monotonic() - began
        return Round(
            whole_s=whole_s, compute_s=_compute_s(places, in_turn=arm == "sequential"), turns=_turns(places[:1])
        )


def _run_carpool(load: Load) -> Round:
    with open_node(policy="fair") as node:
        places = _places(node.directory, load)
        go = node.directory / "go" if load.is_together else None
        cpu_s = node.cpu_s()
        began = time.monotonic()
        jobs = [node.run(_command(place, load, go), "--memory", MEMORY) for place in places]
        _wait(jobs, places, go)
        whole_s = time.monotonic() - began
        share = (node.cpu_s() - cpu_s) / whole_s
        node.check_jobs()
        compute_s = _compute_s(places, in_turn=False)
        return Round(whole_s=whole_s, compute_s=compute_s, daemon_core_fraction=share, turns=_turns(places))


def _places(directory: Path, load: Load) -> list[Path]:
    return [directory / f"{number}.stamps" for number in range(load.jobs)]


def _command(place: Path, load: Load, go: Path | None = None) -> list[str]:
    options = {} if go is None else {"go": go, "ready": place.with_suffix(".ready")}
    return python("train.py", {**MODEL, "steps": load.steps, "stamps": place, **options})


def _wait(children: Sequence[subprocess.Popen[bytes]], places: Sequence[Path], go: Path | None) -> None:
    """Until all have ended; with a starting signal, that is given when all are built."""
    if go is not None:
        ready = [place.with_suffix(".ready") for place in places]
        try:
            wait_files(ready, lambda: check_alive(children), seconds=ARM_SECONDS)
        except BaseException:
            for child in children:
                stop(child)
            raise
        go.touch()
    wait_all(children, seconds=ARM_SECONDS)


def _turns(places: Sequence[Path]) -> Turns:
    return turns_of([read_stamps(place) for place in places])


def _compute_s(places: list[Path], *, in_turn: bool) -> float:
    spans = [(each[0][0], each[-1][1]) for each in map(read_stamps, places)]
    if in_turn:
        return sum(last - first for first, last in spans) / 1e9
    return (max(last for _, last in spans) - min(first for first, _ in spans)) / 1e9


def predict(load: Load, step_ns: int, change_ns: int) -> float:
    """What the simulator says of the compute ratio, for jobs with such steps to which a change costs so much."""
    needs = Needs(persistent_bytes=64 << 20, ephemeral_bytes=64 << 20)
    scripts = [
        Script(
            id=f"job-{number}",
            submit_ns=0,
            spec=JobSpec(name=f"job-{number}"),
            needs=needs,
            steps=load.steps,
            step_ns=max(1, step_ns),
            change_ns=max(0, change_ns),
        )
        for number in range(load.jobs)
    ]
    outcome = NodeEngine("fair", Machine(devices=(("cpu0", 8 << 30),))).run(scripts)
    return sum(script.work_ns for script in scripts) / outcome.makespan_ns


def _report(found: dict[str, list[Round]], load: Load) -> Report:
    report = Report(bench="throughput")
    carpool, computing = _ratios(found, "carpool")
    report.add("carpool_over_sequential", carpool)
    target = Target(limit=0.97, is_least=True) if load.is_together else None
    if "uncoordinated" in found:
        uncoordinated = _ratios(found, "uncoordinated")
        report.add("uncoordinated_over_sequential", uncoordinated[0])
        report.add("carpool_over_better", carpool / max(1.0, uncoordinated[0]), Target(limit=0.98, is_least=True))
        report.add("uncoordinated_over_sequential_compute", uncoordinated[1])
    report.add("carpool_over_sequential_compute", computing, target)
    _report_turns(report, found, load)
    share = median(each.daemon_core_fraction for each in found["carpool"])
    report.add("daemon_core_fraction", share, Target(limit=0.01))
    report.add("stolen_fraction_max", max(each.stolen_fraction for arm in PAIR for each in found[arm]))
    report.add("jobs", load.jobs)
    report.add("rounds", len(found["carpool"]))
    for arm, rounds in found.items():
        report.add(f"{arm}_s", median(each.whole_s for each in rounds))
    return report


def _report_turns(report: Report, found: dict[str, list[Round]], load: Load) -> None:
    shared = [each.turns for each in found["carpool"] if each.turns is not None]
    alone = [each.turns for each in found["sequential"] if each.turns is not None]
    if not shared or not alone or not load.is_together:
        return
    change_ns, step_ns = median(each.change_ns for each in shared), median(each.step_ns for each in alone)
    report.add("turns", median(each.count for each in shared))
    report.add("turn_ms", median(each.length_ns for each in shared) / 1e6)
    report.add("change_ms", change_ns / 1e6)
    report.add("step_ms", step_ns / 1e6)
    report.add("predicted_over_sequential_compute", predict(load, round(step_ns), round(change_ns)))


def _ratios(found: dict[str, list[Round]], arm: str) -> tuple[float, float]:
    """The arm's work per second by that of the sequential arm of the same round: whole lives, and computing only."""
    pairs = list(zip(found["sequential"], found[arm], strict=True))
    whole = median(plain.whole_s / other.whole_s for plain, other in pairs)
    return whole, median(plain.compute_s / other.compute_s for plain, other in pairs)
