"""`carpool bench`: measure carpool on this machine."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.table import Table

from carpool.bench.report import Report, device_title
from carpool.cli.groups import HelpfulGroup
from carpool.cli.tables import console, show
from carpool.cli.values import between
from carpool.errors import UsageError

# Each bench is loaded when it is run: `carpool run` starts through this file too and should not pay for it.


@click.group(cls=HelpfulGroup, short_help="Measure carpool on this machine.")
def bench() -> None:
    """Measure carpool on this machine's cores; each bench has its own daemon and leaves nothing behind.

    \b
    carpool bench handover
    carpool bench jct --seed 3 --json
    """
    # Ended from outside, a bench still ends its jobs and its daemon.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options every bench has."""
    json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
    quick_option = click.option("--quick", is_flag=True, help="The smallest form: shows that it runs, not how fast.")
    return json_option(quick_option(command))


def finish(report: Report, *, as_json: bool, quick: bool) -> int:
    """Print the report; 1 if a promise was broken. A missed target is shown, and is no failure of the bench."""
    report.is_quick = quick
    if quick:
        report.notes.append("--quick shows that it runs, not how fast")
    if as_json:
        print(json.dumps(report.as_json()))
    else:
        show_report(report)
    for note in report.notes:
        say(f"note: {note}")
    if report.failure:
        say(f"carpool: {report.failure}")
    return 1 if report.failure else 0


def show_report(report: Report) -> None:
    console().print(f"{report.bench} on the {device_title()}", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("metric", no_wrap=True)
    table.add_column("figure", justify="right", no_wrap=True)
    table.add_column("target", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name, figure, target, verdict in report.rows():
        colour = {"met": "green", "MISSED": "red"}.get(verdict)
        table.add_row(name, figure, target, f"[{colour}]{verdict}[/]" if colour else verdict)
    show(table)


@bench.command()
@common_options
@click.option("--repeats", type=click.IntRange(2), default=60, show_default=True, help="Interleaved blocks an arm.")
def boundary(as_json: bool, quick: bool, repeats: int) -> int:
    """What an iteration pays while its job is alone.

    \b
    carpool bench boundary --repeats 120
    """
    from carpool.bench import boundary as boundary_bench

    return finish(boundary_bench.run(say, repeats=2 if quick else repeats), as_json=as_json, quick=quick)


@bench.command(short_help="How long the device is idle when a turn changes hands.")
@common_options
@click.option("--handovers", type=click.IntRange(1), default=3000, show_default=True, help="At least so many.")
@click.option("--restarts", type=click.IntRange(1), default=6, show_default=True, help="Of the other arm.")
def handover(as_json: bool, quick: bool, handovers: int, restarts: int) -> int:
    """How long the device is idle when a turn changes hands, against kill and restart.

    \b
    carpool bench handover --handovers 10000 --json
    """
    from carpool.bench import handover as handover_bench

    if quick:
        return finish(handover_bench.run(say, handovers=1, restarts=1, steps=100), as_json=as_json, quick=quick)
    return finish(
        handover_bench.run(say, handovers=handovers, restarts=restarts, steps=3000), as_json=as_json, quick=quick
    )


@bench.command(short_help="What it costs that one daemon serves all users. Needs root.")
@common_options
@click.option("--rounds", type=click.IntRange(1), default=6, show_default=True, help="Pairs of jobs an arm.")
@click.option("--jobs", type=click.IntRange(8), default=200, show_default=True, help="Jobs of up to 50 tenants.")
def users(as_json: bool, quick: bool, rounds: int, jobs: int) -> int:
    """Hand-overs between users and containers, and what the machine's daemon costs with many jobs. Needs root.

    \b
    carpool bench users --json
    """
    from carpool.bench import users as users_bench

    if quick:
        report = users_bench.run(say, rounds=1, steps=100, jobs=10, seconds=1)
    else:
        report = users_bench.run(say, rounds=rounds, steps=1500, jobs=jobs, seconds=60)
    return finish(report, as_json=as_json, quick=quick)


@bench.command(short_help="Mean completion time of a burst of jobs, by policy.")
@common_options
@click.option("--jobs", type=click.IntRange(2, 19), default=14, show_default=True, help="How many programs.")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws the jobs' lengths.")
@click.option(
    "--work", type=float, default=30.0, show_default=True, help="Seconds of device time, all jobs together."
)
@click.option("--workload", type=click.Path(path_type=Path), help="Jobs of a file made by carpool sim --generate.")
def jct(as_json: bool, quick: bool, jobs: int, seed: int, work: float, workload: Path | None) -> int:
    """Mean completion time of a burst of jobs under fifo, srtf and fair, beside the ideal.

    \b
    carpool bench jct --jobs 8 --seed 3
    """
    from carpool.bench import jct as jct_bench

    if quick:
        found = jct_bench.run(say, jobs=2, seed=seed, steps=30, step_s=0.01, workload=workload)
        return finish(found, as_json=as_json, quick=quick)
    steps, step_s = jct_bench.steps_for(say, work_s=between("--work", work, 1.0, 86400.0))
    found = jct_bench.run(say, jobs=jobs, seed=seed, steps=steps, step_s=step_s, workload=workload)
    return finish(found, as_json=as_json, quick=quick)


@bench.command(short_help="Work per second, shared and one after another.")
@common_options
@click.option("--jobs", type=click.IntRange(2, 7), default=3, show_default=True, help="How many programs.")
@click.option("--steps", type=click.IntRange(3), default=200, show_default=True, help="Iterations of each.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Of all arms.")
@click.option("--together", is_flag=True, help="Jobs at once begin when all are built: no start-ups beside them.")
@click.option("--pair", is_flag=True, help="Only the two arms that are compared: not those without carpool at once.")
@click.option("--stalls", is_flag=True, help="Instead: programs that stall for their input, beside others.")
def throughput(as_json: bool, quick: bool, jobs: int, steps: int, rounds: int, **flags: bool) -> int:
    """Work per second: one after another, all at once, and under carpool.

    With --stalls: how much of its speed alone a program keeps that waits half of the time for its input, and what
    the simulator says of it.

    \b
    carpool bench throughput --jobs 2 --rounds 5
    carpool bench throughput --together --pair --steps 1000
    carpool bench throughput --stalls
    """
    from carpool.bench import stalls as stalls_bench
    from carpool.bench import throughput as throughput_bench

    if flags["stalls"]:
        cycles, seconds = (1, 1.0) if quick else (rounds, 10.0)
        return finish(stalls_bench.run(say, cycles=cycles, seconds=seconds), as_json=as_json, quick=quick)
    arms = throughput_bench.PAIR if flags["pair"] else throughput_bench.ARMS
    load = throughput_bench.Load(
        jobs=2 if quick else jobs, steps=4 if quick else steps, is_together=flags["together"]
    )
    found = throughput_bench.run(say, load, rounds=1 if quick else rounds, arms=arms)
    return finish(found, as_json=as_json, quick=quick)


@bench.command(short_help="What a training loses to a served model, and how long a request waits.")
@common_options
@click.option("--cycles", type=click.IntRange(1), default=6, show_default=True, help="Of the three kinds of windows.")
@click.option("--seconds", type=float, default=5.0, show_default=True, help="Of a window.")
def idle(as_json: bool, quick: bool, cycles: int, seconds: float) -> int:
    """What a training loses to a served model that computes now and then, and how long a request waits.

    \b
    carpool bench idle --cycles 12
    """
    from carpool.bench import idle as idle_bench

    if quick:
        return finish(idle_bench.run(say, cycles=1, seconds=1.0), as_json=as_json, quick=quick)
    return finish(idle_bench.run(say, cycles=cycles, seconds=seconds), as_json=as_json, quick=quick)


@bench.command(short_help="How fast jobs leave and come back.")
@common_options
@click.option("--mib", type=click.IntRange(1), default=768, show_default=True, help="Of the job that is moved.")
@click.option("--rounds", type=click.IntRange(0), default=7, show_default=True, help="Of moves; 0: only levels.")
@click.option(
    "--levels", default="2,4", show_default=True, help="The jobs' bytes, in times of the device's, or none."
)
@click.option("--steps", type=click.IntRange(1), default=60, show_default=True, help="Of each job of a level.")
@click.option("--repeats", type=click.IntRange(1), default=1, show_default=True, help="Of both arms of a level.")
def park(as_json: bool, quick: bool, mib: int, rounds: int, levels: str, steps: int, repeats: int) -> int:
    """How fast jobs leave and come back, and what a device that is several times too small costs.

    A level of 8 takes 14 jobs of 1.2 GiB: as much free memory or disk, and half an hour.

    \b
    carpool bench park --levels 2,8 --json
    carpool bench park --levels none            only how fast they move
    """
    from carpool.bench import park as park_bench

    if quick:
        found = park_bench.run(
            say, moved_mib=96, rounds=1, levels={2: 480}, steps=3, repeats=1
        )  # three jobs: no fewer
        return finish(found, as_json=as_json, quick=quick)
    asked = levels.split(",") if levels != "none" else []
    if not all(each.isdigit() and int(each) > 1 for each in asked):
        raise UsageError(f"'{levels}' are no levels; use whole numbers above 1, like 2,4,8, or none")
    sizes = {int(each): 150 * max(4, int(each)) for each in asked}
    found = park_bench.run(say, moved_mib=mib, rounds=rounds, levels=sizes, steps=steps, repeats=repeats)
    return finish(found, as_json=as_json, quick=quick)


@bench.command(short_help="From carpool run to the first training step, cold and warm.")
@common_options
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Of all four arms.")
@click.option("--programs", type=click.IntRange(2, 15), default=7, show_default=True, help="That start at once.")
def start(as_json: bool, quick: bool, rounds: int, programs: int) -> int:
    """How long a program takes from carpool run to its first training step, cold and warm.

    \b
    carpool bench start --rounds 9 --json
    """
    from carpool.bench import start as start_bench

    if quick:
        rounds, programs = 1, 2
    return finish(start_bench.run(say, rounds=rounds, programs=programs), as_json=as_json, quick=quick)


@bench.command()
@common_options
def sim(as_json: bool, quick: bool) -> int:
    """How fast the simulator and the cluster's placement are.

    \b
    carpool bench sim --json
    """
    from carpool.bench import sim as sim_bench

    return finish(sim_bench.run(say, quick=quick), as_json=as_json, quick=quick)


@bench.command(short_help="What the CUDA guest costs a call, and how it keeps shares.")
@common_options
@click.option("--windows", metavar="GROUP", help="Only shares from the first launch on: 8x100ms, …, wake, or all.")
def interposer(as_json: bool, quick: bool, windows: str | None) -> int:
    """What the CUDA guest costs a call, on the stand-in GPU, and how well it keeps a compute share.

    \b
    carpool bench interposer --json
    carpool bench interposer --windows 8x1s    eight processes, kernels of 1 s
    """
    from carpool.bench import interposer as interposer_bench

    if windows is not None:
        return finish(interposer_bench.run_windows(say, windows), as_json=as_json, quick=quick)
    return finish(interposer_bench.run(say, quick=quick), as_json=as_json, quick=quick)
