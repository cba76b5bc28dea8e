"""`carpool resume`: a suspended job comes back to its device."""

from __future__ import annotations

import click

from carpool.calls import ENDED, Job
from carpool.cli.orders import give_order, show_order
from carpool.errors import RefusedError


@click.command(short_help="Bring a suspended job back to its device.")
@click.argument("job")
@click.option("--no-wait", is_flag=True, help="Return at once; the job comes back when there is room.")
@click.option("--json", "as_json", is_flag=True, help="Print the job as JSON.")
def resume(job: str, no_wait: bool, as_json: bool) -> None:
    """Bring a suspended job back to its device, where it goes on as if nothing had happened.

    \b
    carpool resume bert
    """
    found = give_order("resume", lambda client: client.resume(job), no_wait=no_wait, is_done=_is_back)
    if not no_wait and found.state in ENDED - {"finished"}:  # one that finished was back, if only for a moment
        raise RefusedError(f"job {found.id} ended before it was seen to be back: {found.reason}")
    show_order(found, as_json=as_json)


def _is_back(job: Job) -> bool:
    return job.state not in ("parking", "unparking")
