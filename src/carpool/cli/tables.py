"""The tables people see; each fits 80 columns."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from carpool.calls import Device, Node
from carpool.cli.rows import DIM, LEFT, cut, fitted, job_rows, screen_width
from carpool.units import format_bytes

if TYPE_CHECKING:  # loaded with the simulator, not with every command
    from carpool.sim.report import Table as PlainTable


def console() -> Console:
    """Coloured and as wide as the terminal; plain and 80 wide elsewhere."""
    if sys.stdout.isatty():
        return Console()
    return Console(width=screen_width(), no_color=True, highlight=False)


def show(table: Table) -> None:
    console().print(table, crop=False)  # on a narrower screen a line goes on below; half a figure is worth nothing


def show_table(table: PlainTable) -> None:
    """A table of the simulator's: words to the left, numbers to the right."""
    from carpool.sim.report import format_cell

    made = Table(
        title=table.title,
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for place, name in enumerate(table.columns):
        made.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    for row in table.rows:
        made.add_row(*(format_cell(cell) for cell in row))
    console().print(made)


def job_table(node: Node, widest: dict[str, int] | None = None) -> Table:
    """Jobs as `top` shows them; `widest` keeps the widths from one table to the next. `ps` prints the same rows;
    rows.py says why without rich."""
    rows = job_rows(node, console().width, widest)
    table = _table(rows.names, rows.widths)
    for row, colour in zip(rows.cells, rows.colours, strict=True):
        if colour == DIM:
            table.add_row(*row, style=colour)
        else:
            table.add_row(escape(row[0]), f"[{colour}]{row[1]}[/]" if colour else row[1], *row[2:])
    return table


def device_table(devices: Sequence[Device], widest: dict[str, int] | None = None) -> Table:
    names = ["device", "capacity", "to jobs", "in lanes", "unpromised", "in use", "runs now"]
    sizes = ("capacity_bytes", "promised_bytes", "lanes_bytes", "free_bytes", "live_bytes")
    rows = []
    for device in devices:
        first = [device.id, *(format_bytes(getattr(device, size)) for size in sizes)]
        holders = [lane.holder for lane in device.lanes if lane.holder] or ["nobody"]
        rows += [[*first, holders[0]], *([""] * len(first) + [holder] for holder in holders[1:])]
    widths = fitted(names, rows, console().width, widest, cut_column=len(names) - 1)
    table = _table(names, widths)
    for row in rows:
        table.add_row(*row[:-1], escape(cut(row[-1], widths[-1])))
    return table


def _table(names: list[str], widths: list[int]) -> Table:
    """An empty table with columns of these widths."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    for name, width in zip(names, widths, strict=True):
        side: Literal["left", "right"] = "left" if name in LEFT else "right"
        table.add_column(name, justify=side, no_wrap=True, min_width=width)
    return table
