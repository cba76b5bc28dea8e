"""`carpool ps`: who runs, who waits, how far they are."""

from __future__ import annotations

import json

import click

from carpool.calls import as_dict
from carpool.cli.tables import NO_JOBS, job_table, remark_on, show
from carpool.client import Client


@click.command()
@click.option("--all", "with_ended", is_flag=True, help="Also show the newest jobs that are over.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def ps(with_ended: bool, as_json: bool) -> None:
    """List jobs: who runs, who waits, how far they are.

    \b
    carpool ps --all --json
    """
    node = Client().ps(ended=with_ended)
    if as_json:
        print(json.dumps(as_dict(node)))
        return
    if not node.jobs:
        print(NO_JOBS)
        return
    show(job_table(node))
    for job in node.jobs:
        if remark := remark_on(job):
            print(f"{job.id}: {remark}")
