"""`carpool suspend`: a job leaves its device until it is resumed."""

from __future__ import annotations

import click

from carpool.calls import Job
from carpool.cli.orders import give_order, show_order
from carpool.errors import RefusedError
from carpool.units import SECOND

RESTS_NS = SECOND  # who has wanted no turn for less may only pause between two iterations


@click.command(short_help="Stop a job at its next boundary and free its memory.")
@click.argument("job")
@click.option("--no-wait", is_flag=True, help="Return at once; the job stops at its next boundary.")
@click.option("--json", "as_json", is_flag=True, help="Print the job as JSON.")
def suspend(job: str, no_wait: bool, as_json: bool) -> None:
    """Stop a job at its next boundary and move its memory off the device, until it is resumed.

    Nothing is lost: its numbers are those of an undisturbed run. Ctrl-C ends the waiting, not the suspension.

    \b
    carpool suspend bert
    carpool resume bert
    """
    found = give_order("suspend", lambda client: client.suspend(job), no_wait=no_wait, is_done=_is_away)
    if not no_wait and found.is_over:
        raise RefusedError(f"job {found.id} ended before it could be suspended: {found.reason}")
    show_order(found, as_json=as_json)


def _is_away(job: Job) -> bool:
    """Parked; or there is nothing to wait for: it has not started, rests, is over, or cannot be moved."""
    if job.state == "idle":
        return job.state_ns >= RESTS_NS
    if job.state in {"starting", "running", "profiling", "parking"}:
        return False
    return job.state != "waiting" or bool(job.move_trouble)
