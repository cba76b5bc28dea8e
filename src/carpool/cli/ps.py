"""`carpool ps`: who runs, who waits, how far they are."""

from __future__ import annotations

import gc
import json

import click

from carpool.calls import Node, as_dict
from carpool.cli.rows import NO_JOBS, has_colours, job_rows, lines_of, remark_on, screen_width
from carpool.client import Client


@click.command()
@click.option("--all", "with_ended", is_flag=True, help="Also show the newest jobs that are over.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def ps(with_ended: bool, as_json: bool) -> None:
    """List jobs: who runs, who waits, how far they are.

    \b
    carpool ps --all --json
    """
    gc.disable()  # thousands of jobs are objects that all live to the end: a search among them finds nothing
    try:
        _print_jobs(Client().ps(ended=with_ended), as_json=as_json)
    finally:
        gc.enable()


def _print_jobs(node: Node, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(as_dict(node)))
        return
    if not node.jobs:
        print(NO_JOBS)
        return
    lines = [*lines_of(job_rows(node, screen_width()), is_coloured=has_colours())]
    lines += [f"{job.id}: {remark}" for job in node.jobs if (remark := remark_on(job))]
    print("\n".join(lines))
