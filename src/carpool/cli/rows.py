"""Jobs as rows of a table, and as the lines that `ps` prints.

Without rich: it lays one row out after another, and that is most of what `ps` of thousands of jobs costs.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from carpool.calls import Job, Node
from carpool.units import MS, SECOND, format_bytes, format_ns

PLAIN_WIDTH = 80
WIDTH_DIGITS = 6  # no screen is so wide: a slip of the keyboard
STEP_WIDTH = 100  # from here on there is room for the step time
LEFT_WIDTH = 88  # from here on there is room for the time that is left beside the device
ID_MIN = 10
NO_JOBS = "no jobs; start one: carpool run -- python train.py"
USER_MAX = 12
LEFT = {"job", "state", "user", "device", "runs now", "container"}  # words; figures stand to the right
SILENT_STEPS = 10  # so many usual steps without a boundary are worth a word …
SILENT_NS = 200 * MS  # … each counted as at least so long
START_NS = 30 * SECOND  # as long may a program take to its first boundary before it is asked whether it has one
DIM = "dim"
COLOURS = {
    "running": "green",
    "profiling": "cyan",
    "waiting": "yellow",
    "queued": "magenta",
    "blocked": "magenta",
    "parked": "blue",
    "failed": "red",
}
CODES = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36, "bold": 1, DIM: 2}  # terminals'


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRows:
    """The cells of a table of jobs, how wide each column is, and the colour of each row's state."""

    names: list[str]
    widths: list[int]
    cells: list[list[str]]
    colours: list[str]  # DIM: of a process, the whole row


def job_rows(node: Node, screen: int, widest: dict[str, int] | None = None) -> JobRows:
    """Jobs with their devices if there are several; under a job its processes, where the CUDA guest counts their
    device time. `widest` keeps the widths from one table to the next."""
    has_device, has_user = len(node.devices) > 1, len({job.user for job in node.jobs}) > 1
    has_left = not has_device or screen >= LEFT_WIDTH
    has_step = screen >= STEP_WIDTH
    shown = {"user": has_user, "device": has_device, "step": has_step, "left": has_left}
    every = ("job", "state", "user", "device", "steps", "step", "left", "had", "waited", "bytes")
    names = [name for name in every if shown.get(name, True)]
    rows: list[list[str]] = []
    colours: list[str] = []
    for job in node.jobs:
        declared = f"/{job.steps_declared}" if job.steps_declared else ""
        rows.append(
            [
                job.id,
                state_of(job),
                *([cut(job.user, USER_MAX)] if has_user else []),
                *([job.device or ""] if has_device else []),
                f"{job.steps}{declared}",
                *([format_ns(job.step_ns) if job.step_ns else ""] if has_step else []),
                *([format_ns(job.remaining_ns) if job.remaining_ns is not None else ""] if has_left else []),
                format_ns(job.served_ns),
                format_ns(job.waited_ns),
                format_bytes(job.live_bytes),
            ]
        )
        colours.append(COLOURS.get(job.state, ""))
        for process in job.processes:
            if process.device_ns:
                blank = [""] * (2 + has_user + has_device + has_step + has_left)
                had, held = format_ns(process.device_ns), format_bytes(process.live_bytes)
                rows.append([f"  pid {process.pid}", *blank, had, "", held])
                colours.append(DIM)
    if any(job.container for job in node.jobs):
        names = [*names, "container"]
        where = iter(node.jobs)
        rows = [
            [*row, "" if colour == DIM else next(where).container] for row, colour in zip(rows, colours, strict=True)
        ]
    widths = fitted(names, rows, screen, widest, cut_column=0)
    cells = [[cut(first, widths[0]), *rest] for first, *rest in rows]
    return JobRows(names=names, widths=widths, cells=cells, colours=colours)


def lines_of(rows: JobRows, *, is_coloured: bool) -> Iterator[str]:
    """The table as text, as rich would print it."""
    yield _painted(_line(rows.names, rows.names, rows.widths), "bold", is_on=is_coloured)
    yield "─" * (sum(rows.widths) + len(rows.widths) - 1)
    for cells, colour in zip(rows.cells, rows.colours, strict=True):
        if colour == DIM:
            yield _painted(_line(cells, rows.names, rows.widths), colour, is_on=is_coloured)
            continue
        line, state = _line(cells, rows.names, rows.widths), rows.widths[0] + 1
        until = state + len(cells[1])
        yield line[:state] + _painted(line[state:until], colour, is_on=is_coloured) + line[until:]


def _line(cells: list[str], names: list[str], widths: list[int]) -> str:
    padded = [
        cell.ljust(width) if name in LEFT else cell.rjust(width)
        for cell, name, width in zip(cells, names, widths, strict=True)
    ]
    return " ".join(padded)


def _painted(text: str, colour: str, *, is_on: bool) -> str:
    return f"\x1b[{CODES[colour]}m{text}\x1b[0m" if is_on and colour else text


def screen_width() -> int:
    """As wide as the terminal; 80 elsewhere, unless COLUMNS says."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isascii() and columns.isdigit() and len(columns) < WIDTH_DIGITS else 0
    return width or PLAIN_WIDTH


def has_colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in ("", "dumb")


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


def cut(name: str, room: int) -> str:
    """A job's id in `room` columns: a long one loses its middle, never its number, by which it is known too."""
    if len(name) <= room:
        return name
    tail = "…" + name[name.rfind("-") :] if "-" in name else "…"
    return name[: max(0, room - len(tail))] + tail


def fitted(
    names: list[str], rows: list[list[str]], screen: int, widest: dict[str, int] | None, *, cut_column: int
) -> list[int]:
    """How wide each column is; only the ids in `cut_column` have less than they need where the screen is narrow.

    No column is narrower than in `widest`, which is brought up to date.
    """
    kept = widest if widest is not None else {}
    for name, *cells in zip(names, *rows, strict=True):
        kept[name] = max(kept.get(name, 0), len(name), *map(len, cells))
    widths = [kept[name] for name in names]
    room = max(ID_MIN, screen - sum(widths) + widths[cut_column] - (len(names) - 1))
    widths[cut_column] = min(widths[cut_column], room)
    return widths
