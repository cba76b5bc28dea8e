"""`carpool ps`, `explain`, `logs` and `cancel`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from carpool.cli.reach import call
from carpool.cli.tables import job_table, show
from carpool.errors import RefusedError, UsageError
from carpool.units import format_bytes, format_ns
from carpool.wire.places import Places, find_places

ENDED = {"finished", "failed", "cancelled"}
FOLLOW_SECONDS = 0.2


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
        print("no jobs; start one: carpool run -- python train.py")
        return
    show(job_table(answer))
    for job in jobs:
        if job["is_hog"] or job["state"] in ("queued", "unmanaged"):
            print(f"{job['id']}: {job['reason']}")


@click.command()
@click.argument("job")
@click.option("--json", "as_json", is_flag=True, help="Print the sentence and the figures as JSON.")
def explain(job: str, as_json: bool) -> None:
    """Say in one sentence what a job does or waits for, with the numbers.

    \b
    carpool explain train-2     by its id, or by its name while only one has it
    """
    answer = call(find_places(), "job", job=job)
    found: dict[str, Any] = answer["job"]  # type: ignore[assignment]  # JSON
    if as_json:
        print(json.dumps(found))
        return
    print(f"{found['id']}: {found['reason']}")
    needs = found["needs"]
    if needs:
        print(
            f"  memory: {format_bytes(needs['persistent_bytes'])} persistent,"
            f" {format_bytes(needs['ephemeral_bytes'])} in a turn,"
            f" {format_bytes(needs['overhead_bytes'])} the framework's own"
        )
    silent = found["silent_ns"]
    if silent is not None and silent > 10 * max(found["step_ns"] or 0, 200_000_000):
        usual = f" (usual step {format_ns(found['step_ns'])})" if found["step_ns"] else ""
        print(f"  no boundary reached for {format_ns(silent)}{usual}")


@click.command()
@click.argument("job")
def cancel(job: str) -> None:
    """End a job: a queued one is dropped, a running one gets SIGTERM and, 10 s later, SIGKILL.

    \b
    carpool cancel train-2
    """
    answer = call(find_places(), "cancel", job=job)
    print(f"carpool: job {answer['job']} is being cancelled", file=sys.stderr)


@click.command()
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
def logs(job: str, follow: bool) -> None:
    """Print what a submitted job wrote.

    \b
    carpool logs -f nightly-7
    """
    places = find_places()
    answer = call(places, "job", job=job)
    path = Path(str(answer["log"]))
    if not path.exists() and not follow:
        found: dict[str, Any] = answer["job"]  # type: ignore[assignment]  # JSON
        if found["state"] == "queued":
            raise RefusedError(f"job {found['id']} has not started: {found['reason']}")
        raise UsageError(f"job {found['id']} has no log: it was started with carpool run, not submit")
    position = 0
    while True:
        is_over = not follow or _is_over(places, job)
        if path.exists():
            with path.open("rb") as source:
                source.seek(position)
                data = source.read()
            position += len(data)
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        if is_over:
            return
        time.sleep(FOLLOW_SECONDS)


def _is_over(places: Places, job: str) -> bool:
    found: dict[str, Any] = call(places, "job", job=job)["job"]  # type: ignore[assignment]  # JSON
    return found["state"] in ENDED
