"""`carpool checkpoint`, and what `carpool run --from` looks at before it starts anything."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from carpool.calls import CheckpointOrder
from carpool.client import Client
from carpool.errors import AnsweredError, RefusedError, UsageError
from carpool.units import format_bytes
from carpool.wire.checkpoint import CheckpointFile, digest_of
from carpool.wire.checkpoint_contents import HASH_SEED_MAX

LOOK_SECONDS = 0.05
SAY_AFTER_SECONDS = 3.0
STEPS_MAX = 256


@click.command(short_help="Write a running job to a file it can go on from.")
@click.argument("job")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--stop", is_flag=True, help="End the job when the file is written: it goes on from there.")
@click.option("--force", is_flag=True, help="Replace FILE if there is one.")
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def checkpoint(job: str, file: Path, stop: bool, force: bool, as_json: bool) -> None:
    """Write a running job to a file, from which an unmodified script goes on in a new process, here or elsewhere.

    The job must have been started with --checkpointable. It goes on running unless --stop is given. A job that could
    not be continued exactly is refused with the reason, and is not disturbed.

    \b
    carpool run --checkpointable --name bert -- python train.py --epochs 3
    carpool checkpoint bert bert.ckpt --stop
    carpool run --from bert.ckpt -- python train.py --epochs 3
    """
    client = Client()
    path = file.absolute()
    _check_target(job, file, may_replace=force)
    began = time.monotonic()
    order = client.checkpoint(job, path, stop=stop)
    answer = _wait(client, order)
    if answer["reason"]:
        raise RefusedError(f"job {order.job} cannot be written to a file: {answer['reason']}")
    if stop:
        with contextlib.suppress(AnsweredError):  # it is over already
            client.cancel(order.job, reason=f"it was written to {path}: carpool checkpoint --stop")
    facts = {"job": order.job, "file": str(path), "route": "replay", "seconds": time.monotonic() - began, **answer}
    if as_json:
        print(json.dumps(facts))
        return
    print(f"{order.job}: step {answer['steps']} is in {file} ({format_bytes(answer['bytes'])})")
    print(f"  route: replay ({process_route()})")
    print(f"  go on: carpool run --from {shlex.quote(str(file))} -- {shlex.join(order.argv)}")


def _check_target(job: str, file: Path, *, may_replace: bool) -> None:
    if file.is_dir():
        raise UsageError(f"{file} is a directory; name a file: carpool checkpoint {job} {file / f'{job}.ckpt'}")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"{file.absolute().parent} is not a directory; make it first")
    if file.is_symlink() or (file.exists() and not file.is_file()):
        raise UsageError(f"{file} is a link, a device or a pipe; name a file of its own, which --force may replace")
    if file.exists() and not may_replace:
        raise UsageError(f"{file} is there already; choose another name, or replace it with --force")


def _wait(client: Client, order: CheckpointOrder) -> dict[str, Any]:
    """Until the job has written the file or said why not."""
    path = Path(order.directory) / "checkpoint.answer"
    began, is_said, first = time.monotonic(), False, None
    while True:
        try:
            answer: dict[str, Any] = json.loads(path.read_bytes())
            if answer["number"] == order.number:
                return answer
            if answer["number"] > order.number:
                raise RefusedError(
                    f"another checkpoint of job {order.job} was ordered after this one and took its place; this"
                    " file may not be written: run the command again"
                )
        except OSError:
            pass
        found = client.job(order.job)
        if found.is_over:
            raise RefusedError(f"job {order.job} ended before it was written: {found.reason}")
        first = found.steps if first is None else first
        if found.steps - first > STEPS_MAX:
            raise RefusedError(
                f"job {order.job} made {found.steps - first} iterations without the step of an optimizer; only"
                " programs that train with one can be written to a file"
            )
        if not is_said and time.monotonic() - began > SAY_AFTER_SECONDS:
            is_said = True
            print(f"carpool: waits for its next two steps; {found.reason}", file=sys.stderr)
        time.sleep(LOOK_SECONDS)


def recorded_environment(options: Mapping[str, Any], argv: list[str], script: Path | None) -> dict[str, str]:
    """What a program finds in its environment so that it is recorded, or goes on from a file; empty if neither."""
    source: Path | None = options["from_file"]
    if options["recompute"] and source is None:
        raise UsageError("--recompute says how to go on from a file; give it: --from FILE")
    if source is None and not options["checkpointable"]:
        return {}
    # The order of sets of words depends on it, so a replay must have the same.
    added = {"CARPOOL_RECORD": "1"}
    if "PYTHONHASHSEED" not in os.environ:
        added["PYTHONHASHSEED"] = str(random.SystemRandom().randint(1, HASH_SEED_MAX))
    if source is None:
        return added
    if not source.is_file():
        raise UsageError(f"--from: there is no file {source} (in {Path.cwd()}); carpool checkpoint writes one")
    with CheckpointFile(source.absolute()) as file:
        file.check()
        contents = file.contents
    _check_program(source, contents["argv"], argv)
    _check_script(source, contents["sources"].get("__main__"), script)
    how = "recompute" if options["recompute"] else "skip"
    return {
        "CARPOOL_RECORD": "1",
        "CARPOOL_REPLAY": str(source.absolute()),
        "CARPOOL_REPLAY_HOW": how,
        "PYTHONHASHSEED": contents["hash_seed"],
    }


def _check_program(source: Path, recorded: list[str], argv: list[str]) -> None:
    if not Path(argv[0]).name.startswith("python") or argv[1:] != recorded:
        raise UsageError(
            f"{source} is of another program: python {shlex.join(recorded)}; give the same words, not:"
            f" {shlex.join(argv)}"
        )


def _check_script(source: Path, recorded: str | None, script: Path | None) -> None:
    """A replay of another text would only end somewhere else; other files of the program are compared on its way."""
    if script is not None and recorded is not None and digest_of(script) != recorded:
        raise RefusedError(
            f"{script} was changed since {source} was written, and can only go on as it was then: put its old text"
            " back, or run it from the beginning, without --from"
        )


def process_route() -> str:
    """Whether whole processes could be written instead; carpool only says so, it does not use it."""
    return "CRIU is installed and not used" if shutil.which("criu") else "CRIU is not installed"
