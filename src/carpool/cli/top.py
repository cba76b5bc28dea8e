"""`carpool top`: the jobs and devices, live."""

from __future__ import annotations

import sys
import time

import click
from rich.console import Group
from rich.live import Live

from carpool.cli.reach import call
from carpool.cli.tables import NO_JOBS, console, device_table, job_table
from carpool.cli.values import parsed
from carpool.units import parse_duration_ns
from carpool.wire.places import find_places


@click.command(short_help="Show jobs and devices, refreshed until Ctrl-C.")
@click.option("--every", default="1s", show_default=True, help="How often to look.")
@click.option("--count", type=int, help="Stop after this many looks.")
def top(every: str, count: int | None) -> None:
    """Show jobs and devices, refreshed until Ctrl-C; without a terminal, one look.

    \b
    carpool top --every 200ms
    """
    places = find_places()
    pause = max(0.1, parsed("--every", parse_duration_ns, every) / 1e9)
    devices_widest: dict[str, int] = {}
    jobs_widest: dict[str, int] = {}

    def picture() -> Group:
        answer = call(places, "ps")
        jobs = job_table(answer, jobs_widest) if answer["jobs"] else f"\n{NO_JOBS}"
        return Group(device_table(answer, devices_widest), jobs)

    if not sys.stdout.isatty() and count is None:
        console().print(picture())
        return
    looks = 0
    try:
        with Live(picture(), console=console(), auto_refresh=False) as live:
            while count is None or looks < count:
                live.update(picture(), refresh=True)
                looks += 1
                time.sleep(pause)
    except KeyboardInterrupt:
        return
