"""`carpool cancel`: end jobs, queued or running."""

from __future__ import annotations

import sys

import click

from carpool.client import Client
from carpool.errors import AnsweredError


@click.command(short_help="End jobs, queued or running.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
def cancel(jobs: tuple[str, ...]) -> int:
    """End jobs: a queued one is dropped, a running one gets SIGTERM and, 10 s later, SIGKILL.

    \b
    carpool cancel train-2 train-3
    """
    code = 0
    for job in dict.fromkeys(jobs):
        try:
            ended = Client().cancel(job, reason="by carpool cancel")
        except AnsweredError as error:  # the others are cancelled anyway
            code = max(code, error.exit_code)
            print(f"carpool: {error}", file=sys.stderr)
        else:
            print(f"carpool: job {ended} is being cancelled", file=sys.stderr)
    return code
