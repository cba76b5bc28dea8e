"""Programs that stall for input beside others: `carpool bench throughput --stalls`.

Measured: three trainings (`programs/train.py`) are jobs of one daemon under `fair`. Two of them stall: each of their
iterations waits for a DataLoader without workers that sleeps, about as long as the iteration then computes. The third
only computes; its iterations are a quarter as long. In each window some of them run, while the others make no step
and sleep:
  stalling alone, computing alone, stalling beside computing, both that stall
Windows follow each other in the same processes, in changing order. The speed of a job is its iterations a second;
figures are medians, over the cycles, of its speed in a window over its speed alone in the same cycle. A job that
waits for the end of another's iteration cannot reach 1: with iterations as long as its own it would wait for half of
one each time. The simulator is given what was measured alone (how long an iteration computes, and stalls) and what a
change of turn cost each job, as the daemon knows it, and says what the speeds beside each other will be
(`predicted_…`, and the largest difference as `prediction_error`). Beside that stands what it says if changes of turn
are free (`bound_…`): what is above that, no bell and no quantum can win.

Not measured: input with workers (which goes on while the job waits for its turn, and so loses less), a GPU.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from subprocess import Popen

from carpool.bench.node import Node, open_node, python, read_stamps, run_plain, steps_per_s, wait_all, wait_files
from carpool.bench.report import Report, Say, Target
from carpool.core.node.model import JobSpec, Needs
from carpool.sim.node_engine import NodeEngine
from carpool.sim.scripts import Machine, Script
from carpool.units import GIB, MIB, SECOND

COMPUTING = {"width": 192, "depth": 2, "batch": 8}
STALLING = {**COMPUTING, "batch": 32}
WINDOWS = {
    "stalling alone": ("first",),
    "computing alone": ("computing",),
    "mixed": ("first", "computing"),
    "stalling": ("first", "second"),
}
ENDLESS = 1_000_000_000
START_SECONDS = 180.0
SETTLE_SECONDS = 0.5
PLAIN_STEPS = 30
HAND_OVER_NS = 200_000  # in the simulation: from a grant to the first operation
SIMULATED_NS = 20 * SECOND
PHASES = (0.94, 0.97, 1.0, 1.03, 1.06)  # of the other's iteration: whose ends would else meet an ask always or never

Stamps = list[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    kind: str
    cycle: int
    from_ns: int
    to_ns: int


def run(say: Say, *, cycles: int, seconds: float) -> Report:
    stall_s = _plain_step_s()
    say(f"stalls: an iteration takes {stall_s * 1e3:.0f} ms, and so does its input")
    with open_node(policy="fair") as node:
        started = {name: _start(node, name, stall_s) for name in ("first", "second", "computing")}
        wait_files([node.directory / f"{name}.first" for name in started], node.check_jobs, seconds=START_SECONDS)
        cpu_s, began = node.cpu_s(), time.monotonic()
        windows = _watch(node.directory, say, list(started), cycles=cycles, seconds=seconds)
        share = (node.cpu_s() - cpu_s) / (time.monotonic() - began)
        change_ns = {name: max(0, node.client.job(name).change_ns or 0) for name in started}
        (node.directory / "until").touch()
        _hold(node.directory, list(started), list(started))
        wait_all(list(started.values()), seconds=START_SECONDS)
        stamps = {name: read_stamps(node.directory / f"{name}.stamps") for name in started}
    return make_report(windows, stamps, change_ns, share)


def _plain_step_s() -> float:
    """How long an iteration of the job that stalls takes, outside carpool."""
    with tempfile.TemporaryDirectory(prefix="cpb-") as directory:
        place = Path(directory) / "stamps"
        run_plain([python("train.py", {**STALLING, "steps": PLAIN_STEPS, "stamps": place})], seconds=START_SECONDS)
        return median(last - first for first, last in read_stamps(place)[5:]) / 1e9


def _start(node: Node, name: str, stall_s: float) -> Popen[bytes]:
    places = {each: node.directory / f"{name}.{each}" for each in ("hold", "stamps", "first")}
    shape = {**COMPUTING} if name == "computing" else {**STALLING, "stall": stall_s}
    options = {**shape, **places, "steps": ENDLESS, "until": node.directory / "until"}
    return node.run(python("train.py", options), "--name", name, "--memory", "1GiB")


def _hold(directory: Path, names: Sequence[str], running: Sequence[str]) -> None:
    """Let these make steps, and no others."""
    for name in names:
        hold = directory / f"{name}.hold"
        if name in running:
            hold.unlink(missing_ok=True)
        else:
            hold.touch()


def _watch(directory: Path, say: Say, names: list[str], *, cycles: int, seconds: float) -> list[Window]:
    windows: list[Window] = []
    for cycle in range(cycles):
        for kind in WINDOWS if cycle % 2 == 0 else reversed(WINDOWS):
            _hold(directory, names, WINDOWS[kind])
            time.sleep(SETTLE_SECONDS)
            from_ns = time.monotonic_ns()
            time.sleep(seconds)
            windows.append(Window(kind=kind, cycle=cycle, from_ns=from_ns, to_ns=time.monotonic_ns()))
        say(f"stalls: cycle {cycle + 1} of {cycles}")
    return windows


# --- figures -----------------------------------------------------------------------------------------------------


def make_report(
    windows: list[Window], stamps: dict[str, Stamps], change_ns: dict[str, int], daemon_core_fraction: float
) -> Report:
    report = Report(bench="throughput --stalls")
    live = {
        "stalling_beside_computing": _over_alone(windows, stamps, "mixed", "first", "stalling alone"),
        "computing_beside_stalling": _over_alone(windows, stamps, "mixed", "computing", "computing alone"),
        "stalling_beside_stalling": min(
            _over_alone(windows, stamps, "stalling", name, "stalling alone") for name in ("first", "second")
        ),
    }
    step_ns, period_ns = _alone(windows, stamps["first"], "stalling alone")
    other_ns, _ = _alone(windows, stamps["computing"], "computing alone")
    stall_ns = max(0, period_ns - step_ns)
    foreseen = predict(step_ns=step_ns, stall_ns=stall_ns, computing_ns=other_ns, change_ns=change_ns)
    bound = predict(step_ns=step_ns, stall_ns=stall_ns, computing_ns=other_ns)
    for name in ("stalling_beside_computing", "stalling_beside_stalling"):
        report.add(name, live[name], Target(limit=0.9, is_least=True))
        report.add(f"predicted_{name}", foreseen[name])
        report.add(f"bound_{name}", bound[name])
    report.add("computing_beside_stalling", live["computing_beside_stalling"])
    worst = max(abs(foreseen[name] / live[name] - 1) for name in foreseen)
    report.add("prediction_error", worst, Target(limit=0.1))
    report.add("daemon_core_fraction", daemon_core_fraction, Target(limit=0.01))
    report.add("stalled_part_alone", 1 - step_ns / period_ns)
    report.add("stalling_step_ms", step_ns / 1e6)
    report.add("computing_step_ms", other_ns / 1e6)
    for name, cost_ns in change_ns.items():
        report.add(f"change_ms_{name}", cost_ns / 1e6)
    report.notes.append(f"{os.getloadavg()[0]:.1f} programs wanted a processor at the end")
    return report


def _over_alone(windows: list[Window], stamps: dict[str, Stamps], kind: str, name: str, alone: str) -> float:
    """A job's speed in the windows of one kind, over that of its like alone in the same cycle: the median."""
    own = "first" if name == "second" else name  # of two equal ones the first is watched alone
    base = {each.cycle: steps_per_s(stamps[own], each.from_ns, each.to_ns) for each in windows if each.kind == alone}
    beside = [each for each in windows if each.kind == kind]
    return median(steps_per_s(stamps[name], each.from_ns, each.to_ns) / base[each.cycle] for each in beside)


def _alone(windows: list[Window], stamps: Stamps, kind: str) -> tuple[int, int]:
    """How long an iteration computes alone, and how long it is from the begin of one to that of the next."""
    spans, periods = [], []
    for window in (each for each in windows if each.kind == kind):
        inside = [each for each in stamps if window.from_ns <= each[0] and each[1] <= window.to_ns]
        spans += [last - first for first, last in inside]
        periods += [later[0] - earlier[0] for earlier, later in zip(inside, inside[1:], strict=False)]
    return round(median(spans)), round(median(periods))


def predict(
    *, step_ns: int, stall_ns: int, computing_ns: int, change_ns: Mapping[str, int] | None = None
) -> dict[str, float]:
    """What the simulator says of the speeds beside each other, over alone; without `change_ns` changes are free."""
    cost = change_ns or {}
    machine = Machine(devices=(("card", 16 * GIB),), switch_ns=HAND_OVER_NS if change_ns else 0)
    each = SIMULATED_NS // (step_ns + stall_ns)
    pairs, mixed = [], []
    for phase in PHASES:
        other_ns = round(computing_ns * phase)
        first = _script("first", step_ns, stall_ns, each, cost.get("first", 0))
        second = _script("second", step_ns, round(stall_ns * phase), each, cost.get("second", 0))
        computing = _script("computing", other_ns, 0, 4 * SIMULATED_NS // other_ns, cost.get("computing", 0))
        mixed.append(_speed([first, computing], machine))
        pairs.append(min(_speed([first, second], machine), _speed([second, first], machine)))
    return {"stalling_beside_computing": mean(mixed), "stalling_beside_stalling": mean(pairs)}


def _script(name: str, step_ns: int, stall_ns: int, steps: int, change_ns: int) -> Script:
    return Script(
        id=name,
        submit_ns=0,
        spec=JobSpec(name=name, steps=steps, fingerprint=name),
        needs=Needs(persistent_bytes=MIB, ephemeral_bytes=MIB),
        steps=steps,
        step_ns=step_ns,
        stall_ns=stall_ns,
        change_ns=change_ns,
        is_known=True,
    )


def _speed(scripts: list[Script], machine: Machine) -> float:
    """Of the first of these jobs, beside the others, over alone."""
    done = NodeEngine("fair", machine).run(scripts).jobs[0]
    return done.service_ns / done.completion_ns
