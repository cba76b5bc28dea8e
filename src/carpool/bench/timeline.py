"""Two arms of one mix of jobs compared: a table, and a picture of who had the device when.

The picture has one panel an arm, one row a job, and one time axis for all panels. A coloured block is a turn, the
thin line under it the time from a job's arrival to its end. Turns of a shared arm come from the daemon's journal; an
exclusive arm has one turn a job, its whole life.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from carpool.core.node.effects import Effect, GrantLease, RevokeLease
from carpool.core.node.events import Event, JobDetached, JobExited, JobSubmitted, LeaseReturned
from carpool.errors import PeerError, UsageError
from carpool.journal.reader import read_facts

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#3ca951", "#a463f2", "#6cc5b0", "#ff8ab7", "#9c6b4e")
TURN_ENDS = (LeaseReturned, RevokeLease, JobDetached, JobExited)
DOTS_PER_INCH = 120
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job in one arm; seconds since the arm began."""

    name: str
    steps: int
    arrived_s: float
    ended_s: float
    turns: tuple[tuple[float, float], ...]
    peak_bytes: int | None = None  # the most memory of the device that it has at once; None if nobody measured it

    @property
    def taken_s(self) -> float:
        """From its arrival to its end: what somebody who waits for it cares about."""
        return self.ended_s - self.arrived_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One arm: its rows from top to bottom, in the same order in every panel."""

    title: str
    rows: tuple[Row, ...]

    @property
    def average_s(self) -> float:
        return sum(row.taken_s for row in self.rows) / len(self.rows)

    @property
    def makespan_s(self) -> float:
        return max(row.ended_s for row in self.rows)


def read_turns(journal: Path, *, since_ns: int) -> dict[str, list[tuple[float, float]]]:
    """When each job of the journal's last run had the device, by name, in seconds since that monotonic moment."""
    names: dict[str, str] = {}
    granted: dict[str, int] = {}
    turns: dict[str, list[tuple[float, float]]] = {}
    for _, at_ns, fact in _read_log(journal):
        match fact:
            case JobSubmitted():
                names[fact.job] = fact.spec.name
                turns.setdefault(fact.spec.name, [])
            case GrantLease():
                granted.setdefault(fact.job, at_ns)
            case LeaseReturned() | RevokeLease() | JobDetached() | JobExited() if fact.job in granted:
                turns[names[fact.job]].append(((granted.pop(fact.job) - since_ns) / 1e9, (at_ns - since_ns) / 1e9))
            case _:
                pass
    for job, from_ns in granted.items():  # it has the turn still, or its end is not in the journal yet
        turns[names[job]].append(((from_ns - since_ns) / 1e9, (time.monotonic_ns() - since_ns) / 1e9))
    return turns


def _read_log(journal: Path) -> list[tuple[int, int, Event | Effect]]:
    try:
        return read_facts(journal, *(kind.__name__ for kind in (JobSubmitted, GrantLease, *TURN_ENDS)))
    except UsageError as error:
        raise PeerError(f"the journal {journal} cannot be read: {error}") from error


def make_table(before: Panel, after: Panel) -> Table:
    """Two arms compared, each job's time from arrival to end; at most 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("program", no_wrap=True)
    for title in ("steps", "memory", "arrived", "one after\nthe other", "shared", "speed-up"):
        table.add_column(title, justify="right", no_wrap=True)
    for one, other in zip(before.rows, after.rows, strict=True):
        figures = _both_ways(one.taken_s, other.taken_s)
        table.add_row(one.name, str(one.steps), _memory(other.peak_bytes), f"{one.arrived_s:.1f} s", *figures)
    table.add_section()
    together = _memory(sum(row.peak_bytes or 0 for row in after.rows) or None)
    table.add_row("average", "", "", "", *_both_ways(before.average_s, after.average_s), style="bold")
    table.add_row("all ended after", "", together, "", *_both_ways(before.makespan_s, after.makespan_s))
    return table


def _memory(peak_bytes: int | None) -> str:
    return "" if peak_bytes is None else f"{peak_bytes / MIB:.0f} MiB"


def _both_ways(before_s: float, after_s: float) -> tuple[str, str, str]:
    return f"{before_s:.1f} s", f"{after_s:.1f} s", f"{before_s / after_s:.2f} x"


def draw(panels: Sequence[Panel], path: Path, *, title: str, footnote: str) -> None:
    """Write the picture as PNG."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise UsageError("matplotlib is needed to draw the timeline; run: make setup") from error
    rows = sum(len(panel.rows) for panel in panels)
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    figure = Figure(figsize=(10.0, 1.7 + 0.5 * len(panels) + 0.32 * rows), layout=layout)
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.012, ha="left", fontsize=13, fontweight="bold")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels, strict=True):
        _draw_panel(axis, panel)
    axes[-1].set_xlim(0, 1.16 * max(panel.makespan_s for panel in panels))
    axes[-1].set_xlabel("seconds since the first program arrived")
    figure.supxlabel(footnote, x=0.012, ha="left", fontsize=8, color="#666666")
    figure.savefig(path, dpi=DOTS_PER_INCH)


def _draw_panel(axis: Any, panel: Panel) -> None:
    said = f"{panel.title}: on average {panel.average_s:.1f} s from arrival to end"
    axis.set_title(said, loc="left", fontsize=10.5)
    for place, row in enumerate(panel.rows):
        colour = COLOURS[place % len(COLOURS)]
        axis.plot([row.arrived_s, row.ended_s], [place, place], color=colour, alpha=0.45, linewidth=1.6, zorder=1)
        axis.plot([row.arrived_s] * 2, [place - 0.28, place + 0.28], color=colour, linewidth=1.6, zorder=1)
        spans = [(start, end - start) for start, end in row.turns]
        axis.broken_barh(spans, (place - 0.36, 0.72), color=colour, linewidth=0, zorder=2)
        said = f" {row.taken_s:.1f} s" + (f", {_memory(row.peak_bytes)}" if row.peak_bytes else "")
        axis.text(row.ended_s, place, said, va="center", ha="left", fontsize=8.5, color="#333333")
    axis.set_yticks(range(len(panel.rows)), [row.name for row in panel.rows])
    axis.set_ylim(len(panel.rows) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", color="#e4e4e4", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
