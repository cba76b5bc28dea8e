"""`carpool migrate`: a running job goes on on another device of this node."""

from __future__ import annotations

import json

import click

from carpool.calls import ENDED, Job, as_dict
from carpool.cli.orders import give_order
from carpool.errors import RefusedError, UsageError


@click.command(short_help="Move a running job to another device of this node.")
@click.argument("job")
@click.option("--to", "device", metavar="DEVICE", help="Where it goes, like cpu1 (carpool daemon status).")
@click.option("--no-wait", is_flag=True, help="Return at once; the job moves at its next boundary.")
@click.option("--json", "as_json", is_flag=True, help="Print the job as JSON.")
def migrate(job: str, device: str | None, no_wait: bool, as_json: bool) -> None:
    """Move a running job to another device of this node; its numbers are those of an undisturbed run.

    It stops at its next boundary, its memory moves, and it goes on there. If that fails, it stays where it was; the
    reason is printed, and the exit code is 1.

    \b
    carpool migrate bert --to cpu1
    """
    if device is None:
        raise UsageError(
            f"say where job {job} should go: carpool migrate {job} --to DEVICE (see carpool daemon status)"
        )
    found = give_order("migrate", lambda client: client.migrate(job, device), no_wait=no_wait, is_done=_is_there)
    if not no_wait and found.device != device:
        raise RefusedError(f"job {found.id} was not moved: {found.move_refused or found.reason}")
    if not no_wait and found.state in ENDED - {"finished"}:  # one that finished went on there, for a moment
        raise RefusedError(f"job {found.id} ended before it was seen to go on on {device}: {found.reason}")
    if as_json:
        print(json.dumps(as_dict(found)))
    else:
        print(f"{found.id} is on {found.device}: {found.reason}")


def _is_there(job: Job) -> bool:
    return job.moving_to is None
