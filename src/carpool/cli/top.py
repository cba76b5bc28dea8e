"""`carpool top`: the jobs and devices, live."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import click
from rich.console import Group
from rich.live import Live

from carpool.calls import as_dict
from carpool.cli.rows import NO_JOBS
from carpool.cli.tables import console, device_table, job_table
from carpool.cli.values import parsed
from carpool.client import Client
from carpool.units import parse_duration_ns


@click.command(short_help="Show jobs and devices, refreshed until Ctrl-C.")
@click.option("--every", default="1s", show_default=True, help="How often to look.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many looks.")
@click.option("--json", "as_json", is_flag=True, help="Print each look as one line of JSON, as ps does.")
def top(every: str, count: int | None, as_json: bool) -> None:
    """Show jobs and devices, refreshed until Ctrl-C; without a terminal, one look.

    \b
    carpool top --every 200ms
    carpool top --json --count 60
    """
    client = Client()
    pause = max(0.1, parsed("--every", parse_duration_ns, every) / 1e9)
    devices_widest: dict[str, int] = {}
    jobs_widest: dict[str, int] = {}

    def picture() -> Group:
        node = client.ps()
        jobs = job_table(node, jobs_widest) if node.jobs else f"\n{NO_JOBS}"
        return Group(device_table(node.devices, devices_widest), jobs)

    if not sys.stdout.isatty() and count is None:
        count = 1
    if as_json:
        _look(lambda: print(json.dumps(as_dict(client.ps())), flush=True), count, pause)
    elif count == 1:
        console().print(picture())
    else:
        with Live(picture(), console=console(), auto_refresh=False) as live:
            _look(lambda: live.update(picture(), refresh=True), count, pause)


def _look(show: Callable[[], None], count: int | None, pause: float) -> None:
    """Again and again, until Ctrl-C or `count` times."""
    looks = 0
    try:
        while True:
            show()
            looks += 1
            if looks == count:
                return
            time.sleep(pause)
    except KeyboardInterrupt:
        return
