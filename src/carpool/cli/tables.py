"""The tables people see; each fits 80 columns."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from carpool.units import format_bytes, format_ns

if TYPE_CHECKING:  # loaded with the simulator, not with every command
    from carpool.sim.report import Table as PlainTable

PLAIN_WIDTH = 80
STEP_WIDTH = 100  # from here on there is room for the step time
UNBOUNDED = 1000
ID_WIDTH = 10  # longer ids are folded where it is narrow: one that is cut cannot be given to another command
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
    console().print(table)


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


def width() -> int:
    return shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns


def job_table(answer: dict[str, Any]) -> Table:
    """Jobs as `ps` and `top` show them, with their devices if there are several; under a job its processes, where
    the CUDA guest counts their device time."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), expand=False)
    has_device = len(answer.get("devices", [])) > 1
    has_left = not has_device or console().width >= LEFT_WIDTH
    has_step = console().width >= STEP_WIDTH
    table.add_column("job", overflow="fold", min_width=ID_WIDTH)
    if has_device:
        table.add_column("device", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("steps", justify="right", no_wrap=True)
    if has_step:
        table.add_column("step", justify="right", no_wrap=True)
    if has_left:
        table.add_column("left", justify="right", no_wrap=True)
    table.add_column("had", justify="right", no_wrap=True)
    table.add_column("waited", justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    for job in answer["jobs"]:
        state = job["state"] + (" (hog)" if job["is_hog"] else "")
        colour = COLOURS.get(job["state"], "")
        declared = f"/{job['steps_declared']}" if job["steps_declared"] else ""
        table.add_row(
            job["id"],
            *([job["device"] or ""] if has_device else []),
            f"[{colour}]{state}[/]" if colour else state,
            f"{job['steps']}{declared}",
            *([format_ns(job["step_ns"]) if job["step_ns"] else ""] if has_step else []),
            *([format_ns(job["remaining_ns"]) if job["remaining_ns"] is not None else ""] if has_left else []),
            format_ns(job["served_ns"]),
            format_ns(job["waited_ns"]),
            format_bytes(job["live_bytes"] or job["promised_bytes"]),
        )
        for process in job.get("processes", []):
            if process["device_ns"]:
                blank = [""] * (2 + has_device + has_step + has_left)
                had, held = format_ns(process["device_ns"]), format_bytes(process["live_bytes"])
                table.add_row(f"  pid {process['pid']}", *blank, had, "", held, style="dim")
    longest = max((ID_WIDTH, *(len(job["id"]) for job in answer["jobs"])))
    if Console(width=UNBOUNDED).measure(table).maximum - longest + ID_WIDTH > console().width:
        table.padding, table.show_edge = (0, 0, 0, 0), False  # else the last figures would be cut
    return table


def device_table(answer: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("device", "capacity", "to jobs", "in lanes", "unpromised", "in use"):
        table.add_column(name, justify="left" if name == "device" else "right", no_wrap=True)
    table.add_column("runs now", no_wrap=True)
    for device in answer["devices"]:
        holders = [lane["holder"] for lane in device["lanes"] if lane["holder"]]
        table.add_row(
            device["id"],
            format_bytes(device["capacity_bytes"]),
            format_bytes(device["promised_bytes"]),
            format_bytes(device["lanes_bytes"]),
            format_bytes(device["free_bytes"]),
            format_bytes(device["live_bytes"]),
            ", ".join(holders) or "nobody",
        )
    return table
