"""`carpool usage`: who had the devices for how long, as a table, for a spreadsheet, or as JSON."""

from __future__ import annotations

import csv
import json
import sys
from typing import Literal, cast, get_args

import click

from carpool import calls
from carpool.cli.periods import moment, span_of
from carpool.cli.rows import cut, screen_width
from carpool.client import Client
from carpool.units import SECOND

HOUR_NS = 3600 * SECOND
GIB_HOUR = 1024 * 3600  # in MiB times seconds
IDLE, UNKNOWN, ALL = "(idle)", "(unknown)", "(all devices)"
NAME_MIN = 12
COLUMNS = ("jobs", "had", "part", "waited", "GiB*h", "lent", "borrowed")
By = Literal["user", "tenant", "job", "day"]


@click.command(short_help="Who had the devices for how long.")
@click.option("--by", default="user", show_default=True, metavar="WHAT", help="user, tenant, job or day.")
@click.option("--since", metavar="TIME", help="From when on: 12h, 7d, yesterday, 2026-11-20.  [default: 30d]")
@click.option("--until", metavar="TIME", help="Up to when.  [default: now]")
@click.option("--csv", "as_csv", is_flag=True, help="Print rows for a spreadsheet, with times in seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, with times in nanoseconds.")
def usage(by: str, since: str | None, until: str | None, as_csv: bool, as_json: bool) -> None:
    """Show device time had, waited, memory over time, lent and borrowed.

    Rows, idle and unknown time (no daemon ran, or it was killed) add up to the time times the devices. It is kept for
    a year: by the job for a month, by the hour for two, then by the day.

    \b
    carpool usage --by day --since 7d
    carpool usage --since yesterday --until today --csv
    """
    if by not in get_args(By):
        raise click.BadParameter(f"'{by}' is none of {', '.join(get_args(By))}", param_hint="--by")
    since_s, until_s = span_of(since, until, default="30d")
    found = Client().usage(calls.UsageAsked(by=cast(By, by), since_s=since_s, until_s=until_s))
    if found.trouble:
        print(f"carpool: the newest may be missing: {found.trouble}", file=sys.stderr)
    if as_json:
        print(json.dumps(calls.as_dict(found)))
    elif as_csv:
        _print_csv(found)
    else:
        print("\n".join(_lines(found)))


def _lines(found: calls.Usage) -> list[str]:
    """The table, in as many columns as the screen has."""
    if not found.device_ns and not found.rows:
        return ["nothing is booked for this time; usage is kept from a daemon's first start on"]
    rows = [(row.name, *_cells(row, found.device_ns)) for row in found.rows]
    loans = any(row.lent_ns or row.borrowed_ns for row in found.rows)
    names = COLUMNS if loans else COLUMNS[:-2]
    whole = (IDLE, found.idle_ns), (UNKNOWN, found.unknown_ns), (ALL, found.device_ns)
    below = [(name, "", hours(span), _part(span, found.device_ns), "", "", "", "") for name, span in whole]
    shown = [(name, *cells[: len(names)]) for name, *cells in (*rows, *below)]
    widths = [max(len(title), *(len(row[place]) for row in shown)) for place, title in enumerate(("", *names))]
    room = max(NAME_MIN, screen_width() - sum(widths[1:]) - len(names))
    widths[0] = min(room, max(len(found.by), widths[0]))
    title = " ".join(
        [found.by.ljust(widths[0]), *(name.rjust(width) for name, width in zip(names, widths[1:], strict=True))]
    )
    lines = [_head(found), title, "─" * len(title)]
    for place, (name, *cells) in enumerate(shown):
        if place == len(rows) and rows:
            lines.append("─" * len(title))
        lines.append(" ".join([cut(name, widths[0]).ljust(widths[0]), *map(str.rjust, cells, widths[1:])]))
    return lines


def _head(found: calls.Usage) -> str:
    devices = found.devices[0] if len(found.devices) == 1 else f"{len(found.devices)} devices"
    since, until = (moment(at_ns / SECOND) for at_ns in (found.since_ns, found.until_ns))
    return f"{devices}, {since} to {until} ({hours(found.until_ns - found.since_ns)})"


def _cells(row: calls.UsageRow, device_ns: int) -> tuple[str, ...]:
    return (
        str(row.jobs),
        hours(row.had_ns),
        _part(row.had_ns, device_ns),
        hours(row.waited_ns),
        f"{row.memory_mib_s / GIB_HOUR:,.2f}",
        hours(row.lent_ns),
        hours(row.borrowed_ns),
    )


def hours(span_ns: int) -> str:
    """A long time in a form that can be compared down a column: `1,234.5 h`, `12.34 h`, `41.0 s`."""
    if not span_ns:
        return "0"
    if span_ns < 600 * SECOND:
        return f"{span_ns / SECOND:.1f} s"
    count = span_ns / HOUR_NS
    return f"{count:,.1f} h" if count >= 100 else f"{count:.2f} h"


def _part(span_ns: int, whole_ns: int) -> str:
    return f"{100 * span_ns / whole_ns:.1f} %" if whole_ns else ""


def _print_csv(found: calls.Usage) -> None:
    """Times in seconds to the millisecond: a spreadsheet adds them up."""
    out = csv.writer(sys.stdout)
    names = ("jobs", "had_s", "waited_s", "memory_gib_h", "lent_s", "borrowed_s")
    extra = ("user", "tenant") if found.by == "job" else ()
    out.writerow((found.by, *extra, *names))
    for row in found.rows:
        times = _seconds(row.had_ns), _seconds(row.waited_ns)
        loans = _seconds(row.lent_ns), _seconds(row.borrowed_ns)
        whose = (row.user, row.tenant) if extra else ()
        out.writerow((_plain(row.name), *whose, row.jobs, *times, f"{row.memory_mib_s / GIB_HOUR:.4f}", *loans))
    for name, span in ((IDLE, found.idle_ns), (UNKNOWN, found.unknown_ns), (ALL, found.device_ns)):
        out.writerow((name, *("",) * len(extra), "", _seconds(span), "", "", "", ""))


def _seconds(span_ns: int) -> str:
    return f"{span_ns / SECOND:.3f}"


def _plain(name: str) -> str:
    """A name that a spreadsheet takes for text and not for a formula."""
    return f"'{name}" if name[:1] in "=+-@" else name
