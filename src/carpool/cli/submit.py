"""`carpool submit`: run a program as a job in the background."""

from __future__ import annotations

import json
from typing import Any

import click
import msgspec

from carpool.calls import Spec, as_dict
from carpool.cli.job_options import SETTINGS, job_options, prepare, say
from carpool.client import Client
from carpool.errors import UsageError


@click.command(short_help="Run a program as a job in the background.", context_settings=SETTINGS)
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print the new job as JSON.")
def submit(argv: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Run a program as a job in the background; its output is kept (carpool logs JOB).

    \b
    carpool submit --name nightly -- python train.py
    """
    client = Client()
    spec, environment = prepare(client, list(argv), options)
    answer = client.submit(argv, spec=_checked(spec), environment=environment)
    if as_json:
        print(json.dumps(as_dict(answer)))
    else:
        print(answer.job.id)
        say(f"job {answer.job.id}: {answer.job.reason} (follow it: carpool logs -f {answer.job.id})")
    return 0


def _checked(spec: dict[str, object]) -> Spec:
    try:
        return msgspec.convert(spec, Spec)
    except msgspec.ValidationError as error:
        raise UsageError(f"the job's options cannot be read: {error}") from error
