"""`carpool sim`: what would sharing do for us, and under which policy? The live schedulers, in virtual time."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from carpool.cli.replay import replay
from carpool.cli.tables import console, show_table
from carpool.cli.values import between, parsed
from carpool.errors import UsageError
from carpool.units import format_count, format_ns, parse_duration_ns, parse_tenants

if TYPE_CHECKING:  # the simulator is loaded when it is run: `carpool run` starts through this file too
    from carpool.sim.compare import Comparison
    from carpool.sim.report import Study

POLICIES_SHOWN = "fifo,srtf,fair"
STUDIES = ("salus", "fgd", "muri", "philly", "itp")
LEFT_OUT_SHOWN = 5


@click.command(
    short_help="What would sharing do? The same scheduler in virtual time.",
    context_settings={"auto_envvar_prefix": "CARPOOL_SIM"},
)
@click.option("--trace", metavar="TRACE", help="philly, itp, alibaba2023, muri1..4, salus or FILE.csv.")
@click.option("--policy", "policies", metavar="A,B", help="Or ./mine.py:Mine (fifo,srtf,fair, or as recorded).")
@click.option("--cluster", metavar="SPEC", help="Like 64x8x16GiB: nodes x cards x memory.")
@click.option("--jobs", type=int, metavar="N", help="The first so many; how many to generate.")
@click.option("--turns", is_flag=True, help="The node's scheduler: turn by turn, on one card.")
@click.option("--quantum", metavar="TIME", help="Turn by turn: the least length of a turn.")
@click.option("--latency", metavar="TIME", help="Turn by turn: within this all who wait have a turn (2s).")
@click.option("--change", metavar="TIME", help="Turn by turn: what a change of turn costs (0).")
@click.option("--unknown", is_flag=True, help="Turn by turn: needs and lengths are learnt.")
@click.option("--shares", metavar="A=8,B=4", help="Cards each tenant owns; idle ones are lent.")
@click.option("--weights", metavar="A=2,B=1", help="Under fair: what each tenant counts (1).")
@click.option("--explain", metavar="JOB", help="Tell what this job of the trace waited for.")
@click.option("--skip-bad", is_flag=True, help="Leave out rows that cannot run; count them.")
@click.option("--journal", is_flag=False, flag_value="", metavar="[FILE]", help="Replay what a daemon recorded.")
@click.option("--run", type=int, metavar="N", help="Journal: only this life of the daemon.")
@click.option("--device", metavar="SIZES", help="Journal: if its devices had been 16GiB,16GiB.")
@click.option("--add-device", metavar="SIZE", help="Journal: if there had been one more.")
@click.option("--generate", metavar="KIND", help="Make a workload: lognormal or mixed.")
@click.option("--sigma", type=float, default=1.55, metavar="X", help="Lognormal: how heavy the tail is (1.55).")
@click.option("--mean", default="180s", metavar="TIME", help="Lognormal: mean run time (180s).")
@click.option("--arrival", default="burst", metavar="KIND", help="Lognormal: burst or poisson (burst).")
@click.option("--rate", type=float, default=0.8, metavar="X", help="Poisson: offered load in cards (0.8).")
@click.option("--tenants", type=int, default=1, metavar="N", help="Lognormal: how many (1).")
@click.option("--fractions", is_flag=True, help="Lognormal: shares of cards.")
@click.option("--base", default="itp", metavar="TRACE", help="Mixed: arrivals of itp or philly (itp).")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Where the made workload goes.")
@click.option("--study", metavar="NAME", help=f"{', '.join(STUDIES)}: a table of results.")
@click.option("--quick", is_flag=True, help="Study: the smallest form.")
@click.option("--seed", type=int, default=0, metavar="N", help="Same seed, same bytes (0).")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw it: .png or .html.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def sim(as_json: bool, **options: object) -> int:
    """What would sharing do? The live schedulers, in virtual time.

    \b
    carpool sim --trace mine.csv --cluster 64x8x16GiB --policy fifo --plot a.html
    carpool sim --journal --add-device 16GiB
    """
    modes: dict[str, Callable[[dict[str, object], bool], int]] = {
        "trace": _trace,
        "journal": replay,
        "generate": _generate,
        "study": _study,
    }
    for name in ("jobs", "tenants"):
        if options[name] is not None and _int(options[name]) < 1:
            raise UsageError(f"--{name} is {options[name]}; it must be at least 1")
    chosen = [name for name in modes if options[name] is not None]
    if len(chosen) != 1:
        raise UsageError("say one of --trace, --journal, --generate or --study")
    return modes[chosen[0]](options, as_json)


# --- traces ----------------------------------------------------------------------------------------------------


def _trace(options: dict[str, object], as_json: bool) -> int:
    from carpool.cli.policy import checked
    from carpool.sim import clusters, traces
    from carpool.sim.compare import Choice, compare, is_turn_by_turn

    name, seed = str(options["trace"]), _int(options["seed"])
    trace = traces.load(name)
    if options["jobs"] is not None:
        trace = traces.first(trace, _int(options["jobs"]))
    cluster = str(options["cluster"] or clusters.DEFAULTS.get(name, "1x1x16GiB"))
    choice = Choice(
        nodes=clusters.parse_cluster(cluster, seed=seed),
        policies=tuple(each.strip() for each in str(options["policies"] or POLICIES_SHOWN).split(",")),
        turns=bool(options["turns"]),
        quantum_ns=_span_ns(options, "quantum"),
        latency_ns=_span_ns(options, "latency"),
        change_ns=_span_ns(options, "change") or 0,
        is_unknown=bool(options["unknown"]),
        shares_milli=parsed("--shares", parse_tenants, str(options["shares"])) if options["shares"] else {},
        weights_milli=parsed("--weights", parse_tenants, str(options["weights"])) if options["weights"] else {},
        skips_bad=bool(options["skip_bad"]),
        explain=str(options["explain"] or ""),
    )
    for each in choice.policies:
        checked(each, place="node" if is_turn_by_turn(choice) else "cluster")
    plot = _check_plot(options["plot"])
    with progress_bar() as progress:
        found = compare(trace, choice, progress)
    if plot is not None:  # before anything is printed: with --json an error is the only thing that is
        from carpool.sim.plot import draw

        draw(found, plot)
    if as_json:
        print(json.dumps({"cluster": cluster, "seed": seed, **found.as_json()}))
    else:
        show_comparison(found, cluster)
        _show_stories(found)
    _say_left_out(found, trace.source)
    for note in found.notes:
        say(f"note: {note}")
    if plot is not None:
        say(f"drawn: {plot}")
    return 0


def _span_ns(options: dict[str, object], name: str) -> int | None:
    return parsed(f"--{name}", parse_duration_ns, str(options[name])) if options[name] else None


def _show_stories(found: Comparison) -> None:
    for (policy, _), story in zip(found.rows, found.stories, strict=False):
        print(f"\n{story.job} under {policy}")
        for at, said in story.lines:
            print(f"{format_ns(at):>12}  {said}")
        if story.left_out:
            print(f"{'':>12}  and {format_count(story.left_out, 'sentence')} more before its end")


def _check_plot(path: object) -> Path | None:
    """Before the long run: whether the plot can be drawn at its end."""
    if not isinstance(path, Path):
        return None
    from carpool.sim.plot import check

    check(path)
    return path


def _say_left_out(found: Comparison, source: str) -> None:
    for line, reason in found.left_out[:LEFT_OUT_SHOWN]:
        say(f"left out: {source} line {line}: {reason}")
    if len(found.left_out) > LEFT_OUT_SHOWN:
        more = len(found.left_out) - LEFT_OUT_SHOWN
        say(f"left out: and {more} more, {len(found.left_out)} rows in all; --json lists them")


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A bar a policy on stderr; nothing where nobody watches."""
    columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        tasks: dict[str, object] = {}

        def tell(policy: str, done: int, total: int) -> None:
            if policy not in tasks:
                tasks[policy] = bar.add_task(policy, total=total)
            bar.update(tasks[policy], completed=done)  # type: ignore[arg-type]  # a TaskID is opaque

        yield tell


def show_comparison(found: Comparison, cluster: str) -> None:
    from carpool.sim.compare import SCHEDULERS
    from carpool.sim.measures import tables

    out = console()
    cards = "one card" if found.cards == 1 else f"{found.cards:,} cards"
    out.print(f"{found.trace}: {format_count(found.jobs, 'job')} on {cards} ({cluster})", highlight=False)
    out.print(f"decided by {SCHEDULERS[found.engine]}", highlight=False)
    for table in tables(found.rows, found.bounds):
        show_table(table)
    out.print("× is the ratio to the first policy; bound: the best with one job on a card at a time", highlight=False)


# --- workloads and studies -------------------------------------------------------------------------------------


def _generate(options: dict[str, object], as_json: bool) -> int:
    from carpool.sim import workload

    count, seed, kind = _int(options["jobs"] or 100), _int(options["seed"]), str(options["generate"])
    if kind == "lognormal":
        mean_ns = parsed("--mean", parse_duration_ns, str(options["mean"]))
        jobs = workload.lognormal(
            count,
            seed=seed,
            sigma=between("--sigma", options["sigma"], 0.0, 10.0),
            mean_s=between("--mean", mean_ns / 1e9, 0.001, 1e9),
            load=_load(options),
            tenants=_int(options["tenants"]),
            fractions=bool(options["fractions"]),
        )
    elif kind == "mixed":
        jobs = workload.mixed(count, seed=seed, base=str(options["base"]))
    else:
        raise UsageError(f"--generate '{kind}' is not known; there are lognormal and mixed")
    out = options["out"]
    if isinstance(out, Path):
        workload.write_csv(jobs, out)
        say(f"{format_count(len(jobs), 'job')} written to {out}")
    if as_json:
        work_s = sum(job.service_ns for job in jobs) / 1e9
        print(json.dumps({"generated": kind, "seed": seed, "jobs": len(jobs), "work_s": round(work_s, 3)}))
    elif not isinstance(out, Path):
        sys.stdout.write(workload.to_csv(jobs))
    return 0


def _load(options: dict[str, object]) -> float | None:
    arrival = str(options["arrival"])
    if arrival not in ("burst", "poisson"):
        raise UsageError(f"--arrival is '{arrival}'; it is burst or poisson")
    return between("--rate", options["rate"], 1e-6, 1e6) if arrival == "poisson" else None


def _study(options: dict[str, object], as_json: bool) -> int:
    import importlib

    name = str(options["study"])
    if name not in STUDIES:
        raise UsageError(f"there is no study '{name}'; there are {', '.join(STUDIES)}")
    module = importlib.import_module(f"carpool.sim.studies.{name}")
    study: Study = module.run(say, quick=bool(options["quick"]))
    if as_json:
        print(json.dumps(study.as_json()))
    else:
        show_study(study)
    return 0


def show_study(study: Study) -> None:
    from carpool.sim.report import Table as Plain
    from carpool.sim.report import format_cell

    console().print(study.title, highlight=False)
    for table in study.tables:
        show_table(table)
    if study.targets:
        rows = tuple(
            (each.name, format_cell(each.seen), each.wanted, "met" if each.is_met else "MISSED")
            for each in study.targets
        )
        show_table(Plain(title="Targets", columns=("target", "seen", "wanted", ""), rows=rows))
    for note in study.notes:
        say(f"note: {note}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _int(value: object) -> int:
    return int(str(value))
