"""`carpool ps`, `explain`, `logs`, `cancel`, `suspend`, `resume` and `resize`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from carpool.cli.accounts import account_lines
from carpool.cli.reach import call
from carpool.cli.run import weight_milli
from carpool.cli.tables import NO_JOBS, job_table, remark_on, show, silence_of
from carpool.cli.values import parsed
from carpool.core.node.model import ENDED
from carpool.errors import AnsweredError, CarpoolError, RefusedError, UsageError
from carpool.units import format_bytes, format_share, parse_bytes, parse_share
from carpool.wire.places import find_places

FOLLOW_SECONDS = 0.2
ORDER_SECONDS = 0.05
SAY_AFTER_SECONDS = 3.0
# What becomes of an order whose giver does not wait for it any longer.
STANDS = {
    "suspend": "is suspended at its next boundary all the same; to take it back: carpool resume {job}",
    "resume": "comes back all the same, when there is room",
    "migrate": "moves at its next boundary all the same",
    "resize": "is resized at its next boundary all the same; to change that: carpool resize {job}",
}


@click.command()
@click.option("--all", "with_ended", is_flag=True, help="Also the last jobs that are over.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def ps(with_ended: bool, as_json: bool) -> None:
    """List jobs: who runs, who waits, how far they are.

    \b
    carpool ps --all --json
    """
    answer = call(find_places(), "ps", all=with_ended)
    if as_json:
        print(json.dumps(answer))
        return
    jobs = answer["jobs"]
    assert isinstance(jobs, list)
    if not jobs:
        print(NO_JOBS)
        return
    show(job_table(answer))
    for job in jobs:
        if remark := remark_on(job):
            print(f"{job['id']}: {remark}")


@click.command(short_help="Say what a job does or waits for, and where its time went.")
@click.argument("job")
@click.option("--json", "as_json", is_flag=True, help="Print the sentence and the figures as JSON.")
def explain(job: str, as_json: bool) -> None:
    """Say what a job does or waits for, with the numbers, and where its wall time went.

    \b
    carpool explain train-2     by its id, or by its name while only one has it
    """
    answer = call(find_places(), "job", job=job)
    found: dict[str, Any] = answer["job"]  # type: ignore[assignment]  # JSON
    if as_json:
        print(json.dumps(found))
        return
    print(f"{found['id']}: {found['reason']}")
    priority = f", priority {found['priority']}" if answer.get("policy") == "priority" else ""
    print(f"  allowed: {allowance(found)}{priority}")
    needs = found["needs"]
    if needs:
        gradients = found.get("gradient_bytes")
        of_it = f" ({format_bytes(gradients)} of it gradients)" if gradients else ""
        print(
            f"  memory: {format_bytes(needs['persistent_bytes'])} persistent{of_it},"
            f" {format_bytes(needs['ephemeral_bytes'])} in a turn,"
            f" {format_bytes(needs['overhead_bytes'])} the framework's own"
        )
    for line in account_lines(found):
        print(f"  {line}")
    if silence := silence_of(found):
        print(f"  {silence}")


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
            answer = call(find_places(), "cancel", job=job, reason="by carpool cancel")
        except AnsweredError as error:  # the others are cancelled all the same
            code = max(code, error.exit_code)
            print(f"carpool: {error}", file=sys.stderr)
        else:
            print(f"carpool: job {answer['job']} is being cancelled", file=sys.stderr)
    return code


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
    found = give_order("suspend", job, no_wait=no_wait, is_done=_is_away)
    if not no_wait and found["state"] in ENDED:
        raise RefusedError(f"job {found['id']} ended before it could be suspended: {found['reason']}")
    _show_order(found, as_json=as_json)


@click.command(short_help="Bring a suspended job back to its device.")
@click.argument("job")
@click.option("--no-wait", is_flag=True, help="Return at once; the job comes back when there is room.")
@click.option("--json", "as_json", is_flag=True, help="Print the job as JSON.")
def resume(job: str, no_wait: bool, as_json: bool) -> None:
    """Bring a suspended job back to its device, where it goes on as if nothing had been.

    \b
    carpool resume bert
    """
    found = give_order("resume", job, no_wait=no_wait, is_done=_is_back)
    if not no_wait and found["state"] in ENDED - {"finished"}:  # one that finished was back, if only for a moment
        raise RefusedError(f"job {found['id']} ended before it was seen to be back: {found['reason']}")
    _show_order(found, as_json=as_json)


def give_order(
    verb: str, job: str, *, no_wait: bool, is_done: Callable[[dict[str, Any]], bool], **arguments: object
) -> dict[str, Any]:
    """Give the order and, unless told otherwise, wait until it is done or cannot be for now; say for what if it
    takes long."""
    places, began, is_said = find_places(), time.monotonic(), False
    found: dict[str, Any] = call(places, verb, job=job, **arguments)["job"]  # type: ignore[assignment]  # JSON
    try:
        while not no_wait and not is_done(found):
            if not is_said and time.monotonic() - began >= SAY_AFTER_SECONDS:
                is_said = True
                print(f"carpool: {verb} waits for job {found['id']}: {found['reason']}", file=sys.stderr)
            time.sleep(ORDER_SECONDS)
            found = call(places, "job", job=found["id"])["job"]  # type: ignore[assignment]  # JSON
    except KeyboardInterrupt:
        print(f"carpool: job {found['id']} {STANDS[verb].format(job=found['id'])}", file=sys.stderr)
        raise
    return found


def _is_away(job: dict[str, Any]) -> bool:
    """Parked; or there is nothing to wait for: it has not started, rests, is over, or cannot be moved."""
    if job["state"] in {"starting", "running", "profiling", "parking"}:
        return False
    return job["state"] != "waiting" or bool(job["move_trouble"])


def _is_back(job: dict[str, Any]) -> bool:
    return job["state"] not in ("parking", "unparking")


def _show_order(job: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(job))
    else:
        print(f"{job['id']}: {job['reason']}")


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
    order: dict[str, object] = {"may_end": or_kill}
    if memory is not None:
        order["cap_bytes"] = parsed("--memory", parse_bytes, memory)
    if weight is not None:
        order["weight_milli"] = weight_milli(weight)
    if compute is not None:
        order["share_milli"] = parsed("--compute", parse_share, compute)
    found = give_order("resize", job, no_wait=no_wait, is_done=_is_resized, **order)
    if not no_wait and not or_kill and found["is_shrinking"] and found["state"] in ENDED:
        raise RefusedError(f"job {found['id']} ended before it could be resized: {found['reason']}")
    if as_json:
        print(json.dumps(found))
    else:
        print(f"{found['id']}: {allowance(found)}\n  {found['reason']}")


def allowance(job: dict[str, Any]) -> str:
    """What a job may have, as it was told or resized."""
    least, most = job["guaranteed_milli"], job["limit_milli"]
    is_to_come = job["is_shrinking"] and job["state"] not in {"parked", *ENDED}
    cap = "no cap" if job["cap_bytes"] is None else f"cap {format_bytes(job['cap_bytes'])}"
    cap += " (from its next boundary on)" if is_to_come else ""
    weight = f"weight {job.get('weight_milli', 1000) / 1000:g}"
    if (least, most) == (0, 1000):
        return f"{cap}, {weight}, any share"
    device = job["device"] or "its device"
    return f"{cap}, {weight}, share: {format_share(least)} of {device} at least, {format_share(most)} at most"


def _is_resized(job: dict[str, Any]) -> bool:
    return not job["is_shrinking"] or job["state"] in {"parked", *ENDED} or bool(job["move_trouble"])


@click.command()
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
def logs(job: str, follow: bool) -> None:
    """Print what a submitted job wrote.

    \b
    carpool logs -f nightly-7
    """
    places, position = find_places(), 0
    while True:
        answer = call(places, "job", job=job)
        found: dict[str, Any] = answer["job"]  # type: ignore[assignment]  # JSON
        job = found["id"]  # of a name the next one may be another job
        path, is_over = Path(str(answer["log"])), not follow or found["state"] in ENDED
        if path.exists():
            with path.open("rb") as source:
                source.seek(position)
                data = source.read()
            position += len(data)
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        elif is_over or found["state"] != "queued":  # a submitted job has a log from its start on
            raise _no_log(found)
        if is_over:
            return
        time.sleep(FOLLOW_SECONDS)


def _no_log(job: dict[str, Any]) -> CarpoolError:
    if job["device"] is None:
        return RefusedError(f"job {job['id']} has not started: {job['reason']}")
    return UsageError(
        f"job {job['id']} has no log: it was started with carpool run, not submit, or ended so long ago that its log"
        " was removed"
    )
