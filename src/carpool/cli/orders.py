"""Orders to running jobs, as `suspend`, `resume`, `resize` and `migrate` give them: given, waited for, shown."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from carpool.calls import Job, as_dict
from carpool.client import Client

LOOK_SECONDS = 0.05
SAY_AFTER_SECONDS = 3.0
# What becomes of an order whose giver does not wait for it any longer.
STANDS = {
    "suspend": "will still be suspended at its next boundary; to take that back: carpool resume {job}",
    "resume": "will still come back when there is room",
    "migrate": "will still move at its next boundary",
    "resize": "will still be resized at its next boundary; to change that: carpool resize {job}",
}


def give_order(verb: str, give: Callable[[Client], Job], *, no_wait: bool, is_done: Callable[[Job], bool]) -> Job:
    """Give the order and, unless told otherwise, wait until it is done or cannot be for now; say for what if it
    takes long."""
    client, began, is_said = Client(), time.monotonic(), False
    found = give(client)
    try:
        while not no_wait and not is_done(found):
            if not is_said and time.monotonic() - began >= SAY_AFTER_SECONDS:
                is_said = True
                print(f"carpool: {verb} waits for job {found.id}: {found.reason}", file=sys.stderr)
            time.sleep(LOOK_SECONDS)
            found = client.job(found.id)
    except KeyboardInterrupt:
        print(f"carpool: job {found.id} {STANDS[verb].format(job=found.id)}", file=sys.stderr)
        raise
    return found


def show_order(job: Job, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(as_dict(job)))
    else:
        print(f"{job.id}: {job.reason}")
