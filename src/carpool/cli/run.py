"""`carpool run`: run a program as a job, in the foreground.

Rules
  Z13 A start of a program imports what it needs and no more: of other people's packages click alone, and of carpool's
      own modules those that tests/e2e/test_imports.py lists. What only some options or errors need comes with them.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click

from carpool.cli.job_options import SETTINGS, job_options, prepare, say
from carpool.cli.runner import Program, Runner
from carpool.client import Client
from carpool.errors import CarpoolError

COMPUTED_SECONDS = 3.0  # of a processor: who computes so long was to take turns
SUMMARY_SECONDS = 1.0  # a daemon that has not noticed the end by then is not waited for


@click.command(short_help="Run a program as a job: it takes turns with the others.", context_settings=SETTINGS)
@job_options
@click.option(
    "--summary", is_flag=True, help="At its end say what sharing cost it, if anything (a terminal is always told)."
)
def run(argv: tuple[str, ...], summary: bool, **options: Any) -> int:
    """Run a program as a job: it takes turns with the others at its iteration boundaries.

    Output, input, signals and the exit code are the program's own. A daemon is started if none runs.

    \b
    carpool run -- python train.py --epochs 3
    carpool run --memory 2GiB --steps 5000 --name bert -- python train.py
    carpool run --from bert.ckpt -- python train.py     see carpool checkpoint
    """
    client = Client()
    spec, environment = prepare(client, list(argv), options)
    program = Program(job="", spec=spec, argv=list(argv), cwd=str(Path.cwd()), environment=environment)
    runner = Runner(client.places, program, say)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        code = runner.run()
        has_computed = runner.processor_seconds() >= COMPUTED_SECONDS
        if runner.was_stopped or summary or has_computed or sys.stderr.isatty():
            is_told = summary or sys.stderr.isatty()
            _say_how_it_went(client, runner, summary=is_told, has_computed=has_computed or summary)
        return code
    except KeyboardInterrupt:
        say("cancelled before it started")
        return 130


def _say_how_it_went(client: Client, runner: Runner, *, summary: bool, has_computed: bool) -> None:
    """Why somebody else ended the job, and what sharing cost it; nothing if it lost nothing, or nobody knows. That a
    program computed and took no turns is said everywhere: its user thinks that it shares."""
    from carpool.cli.accounts import no_turns, sentence

    job, deadline = runner.job, time.monotonic() + SUMMARY_SECONDS
    with contextlib.suppress(CarpoolError):
        found = client.job(job)
        while not found.is_over and time.monotonic() < deadline:
            time.sleep(0.02)
            found = client.job(job)
        if runner.was_stopped or found.orphans:
            say(f"job {job}: {found.reason}")
        said = sentence(found, has_computed=has_computed) if summary else no_turns(found) if has_computed else ""
        if said:
            say(f"job {job}: {said}")
