"""The picture of a comparison: completion times as a distribution, and what the devices did over time.

A PNG, or one HTML file that needs nothing else: the same drawing as SVG above the tables.
"""

from __future__ import annotations

import html
import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from carpool.errors import UsageError
from carpool.sim.compare import Comparison
from carpool.sim.measures import tables
from carpool.sim.outcome import Outcome
from carpool.sim.report import Table, format_cell
from carpool.units import SECOND, format_count

SPANS_MAX = 4000  # more turns than this are no picture: then the cards in use are drawn
POINTS_MAX = 2000
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777", "#222222")
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:.5em 0 1.5em}th,td{padding:.2em .8em;text-align:right}
th,td{border-bottom:1px solid #ddd}
th:first-child,td:first-child{text-align:left}svg{max-width:100%;height:auto}caption{text-align:left;font-weight:600}"""


def check(path: Path) -> None:
    """Refuse what cannot be drawn, before the simulation."""
    if path.suffix not in (".png", ".html"):
        raise UsageError(f"--plot {path}: a plot is a .png or an .html file")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: there is no directory {path.absolute().parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'carpool[plot]'")


def draw(found: Comparison, path: Path) -> None:
    """Write the picture; the same comparison gives the same bytes."""
    figure = _figure(found)
    try:
        if path.suffix == ".png":
            figure.savefig(path, dpi=110, metadata={"Software": None})
            return
        import matplotlib

        text = io.StringIO()
        with matplotlib.rc_context({"svg.hashsalt": "carpool", "svg.fonttype": "none"}):
            figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        path.write_text(_page(found, text.getvalue()))
    except OSError as error:
        raise UsageError(f"--plot {path} cannot be written: {error.strerror}") from error


def _figure(found: Comparison) -> Any:
    from matplotlib.figure import Figure

    rows = len(found.outcomes)
    figure = Figure(figsize=(10, 4.2 + 0.9 * rows), layout="constrained")
    grid = figure.add_gridspec(rows + 1, 1, height_ratios=[3.4, *([0.9] * rows)])
    _draw_distribution(figure.add_subplot(grid[0]), found.outcomes)
    last = max((job.end_ns for outcome in found.outcomes for job in outcome.jobs), default=1)
    first = min((outcome.begin_ns for outcome in found.outcomes), default=0)
    unit, unit_name = _unit(last - first)
    for place, outcome in enumerate(found.outcomes):
        axes = figure.add_subplot(grid[place + 1])
        _draw_timeline(axes, outcome, COLOURS[place % len(COLOURS)], first, unit)
        axes.set_xlim(0, (last - first) / unit)
        axes.set_ylabel(outcome.policy, rotation=0, ha="right", va="center")
        axes.tick_params(labelbottom=place == rows - 1)
        if place == rows - 1:
            axes.set_xlabel(f"{unit_name} since the first job came")
    cards = "one card" if found.cards == 1 else f"{found.cards:,} cards"
    figure.suptitle(f"{found.trace}: {format_count(found.jobs, 'job')} on {cards}")
    return figure


def _draw_distribution(axes: Any, outcomes: Sequence[Outcome]) -> None:
    """For each time, the share of jobs that were done within it."""
    for place, outcome in enumerate(outcomes):
        times = sorted(max(1, job.completion_ns) / SECOND for job in outcome.jobs)
        count = len(times)
        step = max(1, count // POINTS_MAX)
        kept = sorted({*range(0, count, step), count - 1}) if count else []
        axes.step(
            [times[each] for each in kept],
            [(each + 1) / count for each in kept],
            where="post",
            color=COLOURS[place % len(COLOURS)],
            label=outcome.policy,
        )
    axes.set_xscale("log")
    axes.set_ylim(0, 1.01)
    axes.set_xlabel("completion time, seconds")
    axes.set_ylabel("share of jobs done")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", frameon=False)


def _draw_timeline(axes: Any, outcome: Outcome, colour: str, first: int, unit: float) -> None:
    """Turns as bars, a row a lane and a shade a job; with too many of them, the share of the cards in use."""
    if outcome.spans and len(outcome.spans) <= SPANS_MAX:
        names = {job.id: number for number, job in enumerate(outcome.jobs)}
        places = sorted({span.place for span in outcome.spans})
        for row, name in enumerate(places):
            spans = [span for span in outcome.spans if span.place == name]
            axes.broken_barh(
                [((span.from_ns - first) / unit, (span.to_ns - span.from_ns) / unit) for span in spans],
                (row + 0.05, 0.9),
                facecolors=[COLOURS[names.get(span.job, 0) % len(COLOURS)] for span in spans],
            )
        axes.set_ylim(0, len(places))
        axes.set_yticks([])
        return
    points = usage(outcome)
    axes.fill_between(
        [(time - first) / unit for time, _ in points],
        [share for _, share in points],
        step="post",
        color=colour,
        alpha=0.7,
        linewidth=0,
    )
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 1])


def usage(outcome: Outcome) -> list[tuple[int, float]]:
    """The share of the cards in use, as an average over each of POINTS_MAX equal spans of time."""
    begin, span = outcome.begin_ns, max(1, outcome.makespan_ns)
    width = max(1, -(-span // POINTS_MAX))
    sums = [0] * (span // width + 1)
    changes = outcome.busy_cards or _changes_of_spans(outcome)
    for (start, milli), (end, _) in zip(changes, [*changes[1:], (begin + span, 0)], strict=False):
        _add(sums, start - begin, min(end, begin + span) - begin, milli, width)
    whole = 1000 * outcome.cards * width
    return [(begin + place * width, min(1.0, total / whole)) for place, total in enumerate(sums)]


def _add(sums: list[int], start: int, end: int, milli: int, width: int) -> None:
    while start < end and milli:
        place = start // width
        until = min(end, (place + 1) * width)
        sums[place] += (until - start) * milli
        start = until


def _changes_of_spans(outcome: Outcome) -> tuple[tuple[int, int], ...]:
    deltas: dict[int, int] = {}
    for span in outcome.spans:
        deltas[span.from_ns] = deltas.get(span.from_ns, 0) + 1000
        deltas[span.to_ns] = deltas.get(span.to_ns, 0) - 1000
    level, changes = 0, []
    for time in sorted(deltas):
        level += deltas[time]
        changes.append((time, level))
    return tuple(changes)


def _unit(span_ns: int) -> tuple[float, str]:
    for seconds, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if span_ns >= 3 * seconds * SECOND:
            return float(seconds * SECOND), name
    return float(SECOND), "seconds"


def _page(found: Comparison, svg: str) -> str:
    drawing = svg[svg.index("<svg") :]
    body = "".join(_html(table) for table in tables(found.rows, found.bounds))
    title = html.escape(f"carpool sim: {found.trace}")
    note = "× is the ratio to the first policy; bound: the best with one job on a card at a time."
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1>{drawing}{body}<p>{note}</p></html>\n"
    )


def _html(table: Table) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(format_cell(cell))}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return f"<table><caption>{html.escape(table.title)}</caption><tr>{head}</tr>{rows}</table>"
