"""Mean completion time of a heavy-tailed burst of jobs under fifo, srtf and fair, beside the zero-overhead ideal.

*learnt* is srtf of jobs that declare nothing of their length: the agent reads it from their loops.

The jobs: one real PyTorch training script (`programs/train.py`), lengths drawn lognormal with sigma 1.55 from a
seed and scaled to a given sum of device time; a short calibration finds this machine's step time. Each policy gets
a daemon of its own that knows nothing of earlier runs. All jobs are submitted in the same order, declare their steps
(--steps) and a memory cap (so that all are resident at once), import torch, build their model, and wait for one
starting signal.

Measured: completion time of a job, from the starting signal to the end of its last iteration as it stamped it
itself. Start-up of the programs is not in it, nor are their ends, which are kept short, for the next job computes
beside them: the search for garbage with which Python ends takes a torch program half a second of a core. A job's size
is its own device time, first to last operation of each iteration, summed; for the ideal it is taken from the fifo
run, where each job runs alone.
The ideal is computed from these sizes: fifo one after the other in order of arrival, srtf in order of size, fair as
processor sharing, with no cost of switching and, for srtf, lengths known from the start (carpool must first learn
each job's step time). `share_of_ideal` is the achieved ratio fifo/srtf by the ideal one.

A machine's speed drifts within minutes, so each of srtf, learnt and fair runs at once with a fifo of its own, with
which it is compared: each on one half of the cores, and ten times a second they change sides. What differs all the
same is told apart: `work_srtf_over_fifo` is all jobs' device time under srtf by that under fifo,
`share_of_ideal_own_sizes` measures each policy against the ideal of the sizes seen in its own run, and `idle_…` is
the share of a run's time in which no job computed: turns changing hands, jobs ending, the start.

`--workload FILE` takes the jobs of a file that `carpool sim --generate` made instead: its first jobs, their lengths
and arrivals scaled alike to the given sum of device time. A job that comes later gets its starting signal later.

`predicted_over_live_…` is the simulator's mean completion time by the live one: the same scheduler in virtual time,
told each job's arrival, its steps, and how long they took in that very run (so that a change of the machine's speed
between runs is in neither).
`prediction_error` is the worst of them, as a distance from 1.

Not measured: memory pressure (all fit), a GPU. The ratio is a property of the seed: read it only beside its ideal.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

from carpool.bench.node import Node, Side, open_node, python, read_stamps, run_at_once, wait_all, wait_files
from carpool.bench.report import Report, Say, Target, percentile
from carpool.core.node.model import JobSpec, Needs
from carpool.errors import PeerError, UsageError
from carpool.sim.ideal import Work, mean_completion_least, shared_completions
from carpool.sim.node_engine import NodeEngine
from carpool.sim.scripts import Machine, Script
from carpool.sim.traces import read_user
from carpool.units import GIB, MIB, parse_bytes

LEARNT = "learnt"
ROUNDS = (("fifo", "srtf"), ("fifo", "fair"), ("fifo", LEARNT))  # at once, each on a half of the cores
SIGMA = 1.55
STEPS_MIN = 3  # two are needed to measure a job at all
MODEL = {"width": 128, "depth": 2, "batch": 4}
MEMORY = "400MiB"
DEVICE_BYTES = 8 * GIB
NEEDS = Needs(persistent_bytes=16 * MIB, ephemeral_bytes=16 * MIB)  # about what the model takes; all fit anyhow
SWITCH_NS = 50_000  # what a change of turn costs in a prediction: the median of `carpool bench handover`, rounded up
CALIBRATION_STEPS = 40
START_SECONDS = 300.0
RUN_SECONDS = 1200.0
ENDED_SECONDS = 0.2  # between looks at jobs that end; each is a start of Python


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """The jobs: how many steps each makes, and when it comes, in seconds after the first."""

    steps: list[int]
    arrivals: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One policy's run; all in seconds, jobs in order of arrival."""

    completions: list[float]
    sizes: list[float]
    makespan: float
    daemon_core_fraction: float
    turns: int  # how often the device went from one job to another

    @property
    def jct(self) -> float:
        return mean(self.completions)


def run(say: Say, *, jobs: int, seed: int, steps: int, step_s: float = 0.0, workload: Path | None = None) -> Report:
    """`steps` is the sum over all jobs; `steps_for` finds one for this machine, and the time of one step."""
    if workload is not None:
        burst = read_workload(workload, jobs, steps, step_s)
    else:
        burst = Burst(steps=draw_steps(jobs, seed, steps), arrivals=[0.0] * jobs)
    lengths = burst.steps
    say(f"jct: {len(lengths)} jobs of {min(lengths)} to {max(lengths)} steps, {sum(lengths)} in all")
    rounds = {arms[-1]: _run_round(say, arms, burst) for arms in ROUNDS}
    return _report(rounds, burst, seed)


def _run_round(say: Say, arms: Sequence[str], burst: Burst) -> dict[str, Outcome]:
    runs = [partial(_run_arm, arm, burst) for arm in arms]
    outcomes = dict(zip(arms, run_at_once(runs, seconds=RUN_SECONDS), strict=True))
    for arm, found in outcomes.items():
        predicted = predict(arm, burst, found.sizes)
        say(
            f"jct: {arm}: mean completion {found.jct:.2f} s (predicted {predicted:.2f} s),"
            f" all done in {found.makespan:.2f} s, work {sum(found.sizes):.2f} s, {found.turns} changes of turn"
        )
    return outcomes


def steps_for(say: Say, *, work_s: float) -> tuple[int, float]:
    """How many steps make so many seconds of device time on this machine, and the seconds of one."""
    step_s = mean(run_at_once([_calibrate, _calibrate], seconds=START_SECONDS))
    say(f"jct: a step takes {step_s * 1000:.1f} ms here")
    return round(work_s / step_s), step_s


def read_workload(path: Path, jobs: int, steps: int, step_s: float) -> Burst:
    """The first jobs of a file, with so many steps in all; arrivals are scaled as the lengths are."""
    trace = read_user(path)
    if trace.bad_rows:
        bad = trace.bad_rows[0]
        raise UsageError(f"{path} line {bad.line}: {bad.reason} ({len(trace.bad_rows)} bad rows)")
    chosen = trace.jobs[:jobs]
    work_ns = sum(job.service_ns for job in chosen)
    lengths = [max(STEPS_MIN, round(job.service_ns / work_ns * steps)) for job in chosen]
    begin_ns = chosen[0].submit_ns
    arrivals = [(job.submit_ns - begin_ns) / work_ns * steps * step_s for job in chosen]
    return Burst(steps=lengths, arrivals=arrivals)


def draw_steps(jobs: int, seed: int, total: int) -> list[int]:
    """Heavy-tailed lengths in steps that sum to about the total; the same for the same seed."""
    source = random.Random(seed)
    sizes = [source.lognormvariate(0, SIGMA) for _ in range(jobs)]
    return [max(STEPS_MIN, round(size / sum(sizes) * total)) for size in sizes]


# --- the ideal -------------------------------------------------------------------------------------------------


def mean_in_turn(sizes: Sequence[float]) -> float:
    """Mean completion time when jobs that all arrived at once run one after the other in this order."""
    done, total = 0.0, 0.0
    for size in sizes:
        done += size
        total += done
    return total / len(sizes)


def mean_shared(sizes: Sequence[float]) -> float:
    """Mean completion time under ideal processor sharing."""
    ordered = sorted(sizes)
    return sum(size * (2 * (len(ordered) - place) - 1) for place, size in enumerate(ordered)) / len(ordered)


def ideal_means(sizes: Sequence[float], arrivals: Sequence[float]) -> tuple[float, float, float]:
    """Mean completion times without any overhead: in order of arrival, shortest remaining first, equal shares."""
    if not any(arrivals):
        return mean_in_turn(sizes), mean_in_turn(sorted(sizes)), mean_shared(sizes)
    works = [Work(round(at * 1e9), round(size * 1e9)) for at, size in zip(arrivals, sizes, strict=True)]
    done, total = 0, 0
    for work in works:
        done = max(done, work.submit_ns) + work.service_ns
        total += done - work.submit_ns
    count = len(works) * 1e9
    return total / count, mean_completion_least(works, 1) / 1e9, sum(shared_completions(works, 1)) / count


# --- the prediction --------------------------------------------------------------------------------------------


def policy_of(arm: str) -> str:
    return "srtf" if arm == LEARNT else arm


def predict(arm: str, burst: Burst, sizes: Sequence[float]) -> float:
    """The simulator's mean completion time for jobs of these sizes, which say of themselves what the live ones do."""
    is_declared = arm != LEARNT
    scripts = [
        Script(
            id=f"job-{number}",
            submit_ns=round(arrival * 1e9),
            spec=JobSpec(name=f"job-{number}", steps=steps if is_declared else None, cap_bytes=parse_bytes(MEMORY)),
            needs=NEEDS,
            steps=steps,
            step_ns=max(1, round(size / steps * 1e9)),
            tells_length=not is_declared,
        )
        for number, (steps, arrival, size) in enumerate(zip(burst.steps, burst.arrivals, sizes, strict=True))
    ]
    engine = NodeEngine(policy_of(arm), Machine(devices=(("cpu", DEVICE_BYTES),), switch_ns=SWITCH_NS))
    return mean(job.completion_ns for job in engine.run(scripts).jobs) / 1e9


# --- the live runs ---------------------------------------------------------------------------------------------


def _calibrate(_side: Side) -> float:
    """Seconds a step takes in a job alone on its cores. The quick ones count: a hiccup would make all runs short."""
    with open_node(policy="fifo") as node:
        stamps = node.directory / "stamps"
        options = {**MODEL, "steps": CALIBRATION_STEPS, "stamps": stamps}
        wait_all([node.run(python("train.py", options))], seconds=START_SECONDS)
        return percentile([last - first for first, last in read_stamps(stamps)], 10) / 1e9


def _run_arm(arm: str, burst: Burst, side: Side) -> Outcome:
    with open_node(policy=policy_of(arm)) as node:
        places = [node.directory / f"{number}" for number in range(len(burst.steps))]
        signals = [Path(f"{place}.go") if any(burst.arrivals) else node.directory / "go" for place in places]
        for place, go, count in zip(places, signals, burst.steps, strict=True):
            options = {**MODEL, "steps": count, "go": go, "ready": f"{place}.ready", "stamps": f"{place}.stamps"}
            command = [*python("train.py", options), "--short-end"]
            node.submit(command, *([] if arm == LEARNT else ["--steps", str(count)]), "--memory", MEMORY)
        wait_files([Path(f"{place}.ready") for place in places], node.check_jobs, seconds=START_SECONDS)
        side.pids = [pid for job in node.jobs() for pid in job["pids"]]
        side.meet()
        cpu_s = node.cpu_s()
        go_ns = time.monotonic_ns()
        came_ns = [go_ns + round(at * 1e9) for at in burst.arrivals]
        for go, at_ns in zip(signals, came_ns, strict=True):
            time.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)
            go.touch()
        files = [Path(f"{place}.stamps") for place in places]
        wait_files(files, lambda: _check_alive(side.pids, files), seconds=RUN_SECONDS)
        wall_s = (time.monotonic_ns() - go_ns) / 1e9
        share = (node.cpu_s() - cpu_s) / wall_s
        side.meet()
        _wait_ended(node)
        stamps = [read_stamps(path) for path in files]
    return Outcome(
        completions=[(each[-1][1] - came) / 1e9 for each, came in zip(stamps, came_ns, strict=True)],
        sizes=[sum(last - first for first, last in each) / 1e9 for each in stamps],
        makespan=(max(each[-1][1] for each in stamps) - go_ns) / 1e9,
        daemon_core_fraction=share,
        turns=count_turns(stamps),
    )


def _check_alive(pids: list[int], files: list[Path]) -> None:
    """Looks at the kernel only: the daemon is being measured."""
    alive = sum(Path(f"/proc/{pid}").exists() for pid in pids)
    if alive + sum(path.exists() for path in files) < len(files):
        raise PeerError("a job ended before its last step; run the benchmark again with CARPOOL_LOG=debug")


def _wait_ended(node: Node) -> None:
    deadline = time.monotonic() + START_SECONDS
    while node.status()["jobs"]:
        if time.monotonic() > deadline:
            raise PeerError("the jobs finished their steps but did not end")
        time.sleep(ENDED_SECONDS)


def count_turns(jobs: list[list[tuple[int, int]]]) -> int:
    """How often an iteration of one job was followed by one of another."""
    owners = [owner for _, owner in sorted((first, owner) for owner, each in enumerate(jobs) for first, _ in each)]
    return sum(before != after for before, after in zip(owners, owners[1:], strict=False))


# --- the figures -----------------------------------------------------------------------------------------------


def _share(found: dict[str, Outcome], arm: str, burst: Burst) -> tuple[float, float]:
    """How many times sooner than under fifo jobs ended on average, achieved and ideal."""
    ideal_fifo, ideal_shortest, _ = ideal_means(found["fifo"].sizes, burst.arrivals)
    return found["fifo"].jct / found[arm].jct, ideal_fifo / ideal_shortest


def _report(rounds: dict[str, dict[str, Outcome]], burst: Burst, seed: int) -> Report:
    fifo, srtf = rounds["srtf"]["fifo"], rounds["srtf"]["srtf"]
    fifo_beside_fair, fair = rounds["fair"]["fifo"], rounds["fair"]["fair"]
    outcomes = {**rounds["fair"], **rounds[LEARNT], **rounds["srtf"]}
    ideal_fifo = ideal_means(fifo.sizes, burst.arrivals)[0]
    ideal_beside, _, ideal_shared = ideal_means(fifo_beside_fair.sizes, burst.arrivals)
    achieved, ideal_srtf = _share(rounds["srtf"], "srtf", burst)
    learnt, ideal_learnt = _share(rounds[LEARNT], LEARNT, burst)
    report = Report(bench="jct")
    report.add("jct_fifo_over_srtf", achieved)
    report.add("ideal_fifo_over_srtf", ideal_srtf)
    report.add("share_of_ideal", achieved / ideal_srtf, Target(limit=0.95, is_least=True))
    report.add("jct_fifo_over_learnt", learnt)
    report.add("ideal_fifo_over_learnt", ideal_learnt)
    report.add("share_of_ideal_learnt", learnt / ideal_learnt, Target(limit=0.95, is_least=True))
    report.add("makespan_srtf_over_fifo", srtf.makespan / fifo.makespan, Target(limit=1.01))
    report.add("jct_fifo_over_fair", fifo_beside_fair.jct / fair.jct)
    report.add("ideal_fifo_over_fair", ideal_beside / ideal_shared)
    worst = max(outcome.daemon_core_fraction for outcome in outcomes.values())
    report.add("daemon_core_fraction", worst, Target(limit=0.01))
    report.add("work_srtf_over_fifo", sum(srtf.sizes) / sum(fifo.sizes))
    own = ideal_means(srtf.sizes, burst.arrivals)[1]
    report.add("share_of_ideal_own_sizes", (fifo.jct / ideal_fifo) / (srtf.jct / own))
    report.add("seed", seed)
    report.add("jobs", len(fifo.sizes))
    report.add("total_work_s", sum(fifo.sizes))
    errors = []
    for arm, outcome in outcomes.items():
        predicted = predict(arm, burst, outcome.sizes)
        errors.append(abs(predicted / outcome.jct - 1))
        report.add(f"jct_s_{arm}", outcome.jct)
        report.add(f"predicted_s_{arm}", predicted)
        report.add(f"predicted_over_live_{arm}", predicted / outcome.jct)
        report.add(f"idle_{arm}", 1 - sum(outcome.sizes) / outcome.makespan)
        report.add(f"turns_{arm}", outcome.turns)
    report.add("prediction_error", max(errors), Target(limit=0.10))
    report.notes.append("one seed proves nothing by itself: the ideal beside it is for the same sizes")
    return report
