"""The tables people see; each fits 80 columns."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from carpool.calls import Device, Job, Node
from carpool.units import MS, SECOND, format_bytes, format_ns

if TYPE_CHECKING:  # loaded with the simulator, not with every command
    from carpool.sim.report import Table as PlainTable

PLAIN_WIDTH = 80
STEP_WIDTH = 100  # from here on there is room for the step time
ID_MIN = 10
NO_JOBS = "no jobs; start one: carpool run -- python train.py"
LEFT = {"job", "state", "device", "runs now"}  # columns of words; figures stand to the right
SILENT_STEPS, SILENT_NS = (
    10,
    200 * MS,
)  # so many usual steps, each at least so long, without a boundary are worth a word
START_NS = 30 * SECOND  # as long may a program take to its first boundary before it is asked whether it has one
LEFT_WIDTH = 88  # from here on there is room for the time that is left beside the device
COLOURS = {
    "running": "green",
    "profiling": "cyan",
    "waiting": "yellow",
    "queued": "magenta",
    "blocked": "magenta",
    "parked": "blue",
    "failed": "red",
}


def console() -> Console:
    """Coloured and as wide as the terminal; plain and 80 wide elsewhere."""
    if sys.stdout.isatty():
        return Console()
    width = int(os.environ.get("COLUMNS", "0") or 0) or PLAIN_WIDTH
    return Console(width=width, no_color=True, highlight=False)


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
    """Jobs as `ps` and `top` show them, with their devices if there are several; under a job its processes, where
    the CUDA guest counts their device time. `widest` keeps the widths from one table to the next."""
    has_device = len(node.devices) > 1
    has_left = not has_device or console().width >= LEFT_WIDTH
    has_step = console().width >= STEP_WIDTH
    shown = {"device": has_device, "step": has_step, "left": has_left}
    every = ("job", "state", "device", "steps", "step", "left", "had", "waited", "bytes")
    names = [name for name in every if shown.get(name, True)]
    rows: list[list[str]] = []
    colours: list[str] = []
    for job in node.jobs:
        declared = f"/{job.steps_declared}" if job.steps_declared else ""
        rows.append(
            [
                job.id,
                state_of(job),
                *([job.device or ""] if has_device else []),
                f"{job.steps}{declared}",
                *([format_ns(job.step_ns) if job.step_ns else ""] if has_step else []),
                *([format_ns(job.remaining_ns) if job.remaining_ns is not None else ""] if has_left else []),
                format_ns(job.served_ns),
                format_ns(job.waited_ns),
                format_bytes(job.live_bytes or job.promised_bytes),
            ]
        )
        colours.append(COLOURS.get(job.state, ""))
        for process in job.processes:
            if process.device_ns:
                blank = [""] * (2 + has_device + has_step + has_left)
                had, held = format_ns(process.device_ns), format_bytes(process.live_bytes)
                rows.append([f"  pid {process.pid}", *blank, had, "", held])
                colours.append("dim")
    table, room = _table(names, rows, widest, cut_column=0)
    for row, colour in zip(rows, colours, strict=True):
        if colour == "dim":
            table.add_row(*row, style=colour)
        else:
            table.add_row(escape(cut(row[0], room)), f"[{colour}]{row[1]}[/]" if colour else row[1], *row[2:])
    return table


def state_of(job: Job) -> str:
    """A job's state in a word; one that is suspended and could not leave the device waits for nobody."""
    is_stuck = job.state == "waiting" and job.is_suspended
    marks = {" (hog)": job.is_hog, " (limit lost)": job.limit_loss, " (silent)": silence_of(job)}
    mark = next((word for word, is_true in marks.items() if is_true), "")
    return ("suspended" if is_stuck else str(job.state)) + mark


def silence_of(job: Job) -> str:
    """That a job which has its turn reaches no boundary, in words; empty if it does. Nobody need wait for it: it is
    only said."""
    silent, step = job.silent_ns, job.step_ns
    if silent is None or silent <= SILENT_STEPS * max(step or 0, SILENT_NS):
        return ""
    return f"no boundary reached for {format_ns(silent)}" + (f" (usual step {format_ns(step)})" if step else "")


def remark_on(job: Job) -> str:
    """What `ps` says of a job below the table: why it does not get on, if it does not, and what is not kept of its
    limits; else nothing."""
    return "; ".join(filter(None, (_hindrance(job), job.limit_loss)))


def _hindrance(job: Job) -> str:
    is_kept = job.is_suspended and not job.is_over and job.state != "parked"
    has_no_loop = job.state == "starting" and job.spent_ns.get("start", 0) >= START_NS
    if job.is_hog or is_kept or has_no_loop or job.orphans or job.state in ("queued", "unmanaged"):
        return str(job.reason)
    return silence_of(job)


def device_table(devices: Sequence[Device], widest: dict[str, int] | None = None) -> Table:
    names = ["device", "capacity", "to jobs", "in lanes", "unpromised", "in use", "runs now"]
    sizes = ("capacity_bytes", "promised_bytes", "lanes_bytes", "free_bytes", "live_bytes")
    rows = []
    for device in devices:
        first = [device.id, *(format_bytes(getattr(device, size)) for size in sizes)]
        holders = [lane.holder for lane in device.lanes if lane.holder] or ["nobody"]
        rows += [[*first, holders[0]], *([""] * len(first) + [holder] for holder in holders[1:])]
    table, room = _table(names, rows, widest, cut_column=len(names) - 1)
    for row in rows:
        table.add_row(*row[:-1], escape(cut(row[-1], room)))
    return table


def cut(name: str, room: int) -> str:
    """A job's id in `room` columns: a long one loses its middle, never its number, by which it is known too."""
    if len(name) <= room:
        return name
    tail = "…" + name[name.rfind("-") :] if "-" in name else "…"
    return name[: max(0, room - len(tail))] + tail


def _table(
    names: list[str], rows: list[list[str]], widest: dict[str, int] | None, *, cut_column: int
) -> tuple[Table, int]:
    """An empty table for these rows, and the columns it leaves to the ids in `cut_column`; nothing else is cut.

    No column is narrower than in `widest`, which is brought up to date.
    """
    kept = widest if widest is not None else {}
    for name, *cells in zip(names, *rows, strict=True):
        kept[name] = max(kept.get(name, 0), len(name), *map(len, cells))
    widths = [kept[name] for name in names]
    room = max(ID_MIN, console().width - sum(widths) + widths[cut_column] - (len(names) - 1))
    widths[cut_column] = min(widths[cut_column], room)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    for name, width in zip(names, widths, strict=True):
        side: Literal["left", "right"] = "left" if name in LEFT else "right"
        table.add_column(name, justify=side, no_wrap=True, min_width=width)
    return table, room
