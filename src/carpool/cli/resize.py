"""`carpool resize`: more or less memory, weight or compute for a running job."""

from __future__ import annotations

import json
from typing import Any

import click

from carpool.calls import Job, as_dict
from carpool.cli.accounts import allowance
from carpool.cli.orders import give_order
from carpool.cli.values import parsed, weight_milli
from carpool.errors import RefusedError, UsageError
from carpool.units import parse_bytes, parse_share


@click.command(short_help="Give a running job more or less memory, weight or compute.")
@click.argument("job")
@click.option("--memory", metavar="SIZE", help="Its new cap, like 6GiB.")
@click.option("--weight", type=float, help="Its new share within its tenant, under policy fair.")
@click.option("--compute", metavar="SHARE", help="New part of the device: 40%, or 30%:60% for at least and at most.")
@click.option("--or-kill", is_flag=True, help="End it if it needs more than a smaller cap allows.")
@click.option("--no-wait", is_flag=True, help="Return at once; a smaller cap counts from its next boundary.")
@click.option("--json", "as_json", is_flag=True, help="Print the job as JSON.")
def resize(job: str, *, or_kill: bool, no_wait: bool, as_json: bool, **changes: Any) -> None:
    """Give a running job more or less: a larger cap at once, a smaller one from its next boundary on.

    A job that needs more than its new cap gives back what it can; if that is not enough it is parked until its cap is
    raised again. It is ended only with --or-kill.

    \b
    carpool resize bert --memory 6GiB --weight 2 --compute 40%
    """
    memory, weight, compute = changes["memory"], changes["weight"], changes["compute"]
    if memory is None and weight is None and compute is None:
        raise UsageError("nothing to change; give --memory SIZE, --weight NUMBER or --compute SHARE")
    order: dict[str, Any] = {"may_end": or_kill}
    if memory is not None:
        order["cap_bytes"] = parsed("--memory", parse_bytes, memory)
    if weight is not None:
        order["weight_milli"] = weight_milli(weight)
    if compute is not None:
        order["share_milli"] = parsed("--compute", parse_share, compute)
    found = give_order("resize", lambda client: client.resize(job, **order), no_wait=no_wait, is_done=_is_resized)
    if not no_wait and not or_kill and found.is_shrinking and found.is_over:
        raise RefusedError(f"job {found.id} ended before it could be resized: {found.reason}")
    if as_json:
        print(json.dumps(as_dict(found)))
    else:
        print(f"{found.id}: {allowance(found)}\n  {found.reason}")


def _is_resized(job: Job) -> bool:
    return not job.is_shrinking or job.state == "parked" or job.is_over or bool(job.move_trouble)
