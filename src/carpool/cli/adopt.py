"""`carpool adopt`: a job for a program that somebody else starts, or has started."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

import carpool
from carpool import calls
from carpool.cli.joining_options import joining_options
from carpool.cli.values import parsed
from carpool.client import Client
from carpool.errors import UsageError
from carpool.units import parse_duration_ns
from carpool.wire.joining import as_seen_here, merged, spec_of
from carpool.wire.places import find_places

PACKAGE = Path(carpool.__file__).resolve().parent


@click.command(short_help="A job for a program that something else starts.")
@click.option("--pid", type=int, default=0, help="Its first process, which runs already.")
@click.option("--env", "as_env", is_flag=True, help="Print what the program needs as export lines.")
@joining_options
@click.option("--patience", default="60s", metavar="TIME", help="Without --pid: how long the job waits for somebody.")
@click.option("--json", "as_json", is_flag=True, help="The job, its variables and its page, as JSON.")
def adopt(pid: int, as_env: bool, patience: str, as_json: bool, no_park: bool, **options: Any) -> None:
    """Make a job for a program that Slurm, a container or a debugger starts, and wait until it is let in.

    What is started with the printed variables takes turns. The job ends with its last process.

    \b
    eval "$(carpool adopt --name nb --env)"; python train.py
    carpool adopt --name slurm-$SLURM_JOB_ID --env     in a TaskProlog
    carpool adopt --pid 4711 --env       4711, and what has these variables
    """
    patience_ns = parsed("--patience", parse_duration_ns, patience)
    if patience_ns < 1:
        raise UsageError("--patience 0 leaves nobody the time to join; leave it out, or give seconds, like 60s")
    if pid < 0:
        raise UsageError(f"--pid {pid} is no process")
    name = options["name"] or (f"pid-{pid}" if pid else "adopted")
    spec = spec_of({**options, "park": not no_park}, name=name)
    places = find_places()
    joined = Client(places=places).adopt(
        spec, argv=_argv(pid), cwd=_cwd(pid), pid=pid, patience_ns=patience_ns, on_wait=_say_wait
    )
    added = as_seen_here(joined.environment, str(places.socket), PACKAGE)
    wanted = merged(os.environ, added)
    changed = {key: value for key, value in wanted.items() if os.environ.get(key) != value}
    if as_json:
        print(json.dumps({"job": joined.job, "page": joined.page, "environment": changed, "package": str(PACKAGE)}))
    elif as_env:
        print("\n".join(lines_of(changed)))
    else:
        print(joined.job)


def _say_wait(joined: calls.Joined) -> None:
    print(f"carpool: {joined.job} {joined.reason}", file=sys.stderr)


def lines_of(environment: Mapping[str, str]) -> list[str]:
    """Lines for a shell, and for a TaskProlog, which takes what stands behind the = as it is: so nothing is quoted
    that needs no quotes."""
    return [f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.items())]


def _argv(pid: int) -> list[str]:
    """What `ps` shows of it."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0") if pid else []
    except OSError:
        words = []
    return [os.fsdecode(word) for word in words if word] or ["adopted"]


def _cwd(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid or 'self'}/cwd").readlink())
    except OSError:
        return "/"
