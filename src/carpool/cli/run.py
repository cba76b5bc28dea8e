"""`carpool run` and `carpool submit`: start a program as a job."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from carpool.cli.accounts import sentence
from carpool.cli.checkpoint import recorded_environment
from carpool.cli.reach import call, ensure_daemon
from carpool.cli.runner import Program, Runner
from carpool.cli.values import origin, parsed
from carpool.core.node.model import ENDED
from carpool.devices.libraries import find_library
from carpool.devices.loading import obstacle
from carpool.errors import CarpoolError, RefusedError, UsageError
from carpool.policies import POLICIES
from carpool.units import format_list, parse_bytes, parse_duration_ns, parse_share
from carpool.wire.places import Places, find_places

NAME_MAX = 60
WEIGHT_MAX = 1_000_000
STEPS_MAX = 10**15
PRIORITY_MAX = 1_000_000
ON_HOG = ("warn", "suspend", "kill")
KEPT_INSIDE = ("memory", "compute", "oversubscribe", "wait_memory")  # on a GPU, by the library in the program
SUMMARY_SECONDS = 1.0  # a daemon that has not noticed the end by then is not waited for


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that describe a job, the same for run and submit."""
    options = [
        click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="PROGRAM [ARGS]..."),
        click.option("--name", help="What to call the job (default: the script's name)."),
        click.option("--priority", type=int, default=0, help="Higher goes first, under policy priority."),
        click.option("--weight", type=float, default=1.0, help="Its share within its tenant, under policy fair."),
        click.option("--tenant", default="default", help="Whose job it is; tenants share by their weights."),
        click.option("--memory", metavar="SIZE", help="Cap, like 2GiB; beyond it the program is out of memory."),
        click.option(
            "--wait-memory",
            metavar="[TIME]",
            is_flag=False,
            flag_value="24h",
            help="Where memory is short an allocation waits, this long (24h), before it fails; on a GPU: for"
            " processes of its own job.",
        ),
        click.option("--on-hog", default="suspend", help="If it keeps its turn far too long: warn, suspend or kill."),
        click.option("--oversubscribe", is_flag=True, help="On a GPU: what has no room is (slow) managed memory."),
        click.option(
            "--compute", metavar="SHARE", help="Part of the device: 30%, or 30%:60% for at least and at most."
        ),
        click.option("--steps", type=int, help="How many iterations it will make: srtf then knows its end."),
        click.option(
            "--device", help="A device of the node, like gpu0; for a new daemon cpu:4GiB, cuda or stub:16GiB."
        ),
        click.option("--checkpointable", is_flag=True, help="Record what carpool checkpoint needs."),
        click.option("--from", "from_file", type=click.Path(path_type=Path), help="Go on from this checkpoint."),
        click.option("--recompute", is_flag=True, help="With --from: compute every step again, and compare."),
        click.option("--policy", help=f"For a new daemon: {', '.join(POLICIES)}."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


SETTINGS = {"allow_interspersed_args": False}  # what follows the program's name is the program's


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
    places = find_places()
    spec = make_spec(list(argv), options)
    environment = {**os.environ, **recorded_environment(options, list(argv), script_of(list(argv)))}
    spec["device"] = ensure_daemon(places, policy=options["policy"], device=options["device"])
    _check_reached(places, argv[0], options)
    program = Program(job="", spec=spec, argv=list(argv), cwd=str(Path.cwd()), environment=environment)
    runner = Runner(places, program, say)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        code = runner.run()
        if runner.was_stopped or summary or sys.stderr.isatty():
            _say_how_it_went(places, runner, summary=summary or sys.stderr.isatty())
        return code
    except KeyboardInterrupt:
        say("cancelled before it started")
        return 130


@click.command(short_help="Run a program as a job in the background.", context_settings=SETTINGS)
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print the new job as JSON.")
def submit(argv: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Run a program as a job in the background; its output is kept (carpool logs JOB).

    \b
    carpool submit --name nightly -- python train.py
    """
    places = find_places()
    spec = make_spec(list(argv), options)
    environment = {**os.environ, **recorded_environment(options, list(argv), script_of(list(argv)))}
    spec["device"] = ensure_daemon(places, policy=options["policy"], device=options["device"])
    _check_reached(places, argv[0], options)
    answer = call(places, "submit", spec=spec, argv=list(argv), cwd=str(Path.cwd()), environment=environment)
    job = answer["job"]
    assert isinstance(job, dict)
    if as_json:
        print(json.dumps(answer))
    else:
        print(job["id"])
        say(f"job {job['id']}: {job['reason']} (follow it: carpool logs -f {job['id']})")
    return 0


def _check_reached(places: Places, program: str, options: dict[str, Any]) -> None:
    """Refuse what carpool's library keeps on a GPU for a program it would not get into: it would start without."""
    asked = [f"--{option.replace('_', '-')}" for option in KEPT_INSIDE if options[option] not in (None, False)]
    library = find_library("gpu") if asked else None
    why = obstacle(program, library) if library is not None else None
    if why is None:
        return
    devices: list[dict[str, Any]] = call(places, "status")["devices"]  # type: ignore[assignment]  # JSON
    if any(device["kind"] == "cuda" for device in devices):
        limits = format_list(asked)
        raise RefusedError(f"{limits} cannot be kept for {program} on a GPU: {why}, or run it without {limits}")
    if options["memory"] is not None:
        say(f"--memory is not kept for {program}: {why}")


def _say_how_it_went(places: Places, runner: Runner, *, summary: bool) -> None:
    """Why somebody else ended the job, and what sharing cost it; nothing if it lost nothing, or nobody knows."""
    job, deadline = runner.job, time.monotonic() + SUMMARY_SECONDS
    with contextlib.suppress(CarpoolError):
        found: dict[str, Any] = call(places, "job", job=job)["job"]  # type: ignore[assignment]  # JSON
        while found["state"] not in ENDED and time.monotonic() < deadline:
            time.sleep(0.02)
            found = call(places, "job", job=job)["job"]  # type: ignore[assignment]  # JSON
        if runner.was_stopped:
            say(f"job {job}: {found['reason']}")
        if summary and sentence(found):
            say(f"job {job}: {sentence(found)}")


def say(text: str) -> None:
    print(f"carpool: {text}", file=sys.stderr)


def make_spec(argv: list[str], options: dict[str, Any]) -> dict[str, object]:
    """The job's description as it travels; a UsageError says what is wrong before anything is started."""
    wait_memory_ns = _wait_memory_ns(options["wait_memory"])  # it may have taken the program for its value
    for option in ("name", "tenant"):
        if options[option] is not None and not options[option].strip():
            raise UsageError(f"--{option} is empty; give a name, or leave it out")
    if "/" in (options["name"] or ""):
        free = options["name"].replace("/", "-").strip("-")
        raise UsageError(f"--name {options['name']} has a slash, and a job's name is part of a path; call it {free}")
    if options["steps"] is not None and not 1 <= options["steps"] <= STEPS_MAX:
        raise UsageError(f"--steps {options['steps']} must be at least 1 and at most {STEPS_MAX}")
    if abs(options["priority"]) > PRIORITY_MAX:
        raise UsageError(f"--priority {options['priority']} must be between -{PRIORITY_MAX} and {PRIORITY_MAX}")
    if len(options["name"] or "") > NAME_MAX:
        raise UsageError(f"--name has {len(options['name'])} characters; {NAME_MAX} are the most")
    if options["on_hog"] not in ON_HOG:
        raise UsageError(f"--on-hog {options['on_hog']} is not one of {', '.join(ON_HOG)}")
    if options["policy"] is not None and options["policy"] not in POLICIES:
        raise UsageError(f"unknown policy '{options['policy']}'; there are {', '.join(POLICIES)}")
    least, most = (
        parsed("--compute", parse_share, options["compute"]) if options["compute"] is not None else (0, 1000)
    )
    cap_bytes = parsed("--memory", parse_bytes, options["memory"]) if options["memory"] is not None else None
    weight = weight_milli(options["weight"])
    _check_program(argv[0])
    script = script_of(argv)
    if script is not None and not script.exists():
        raise UsageError(f"the script {script} does not exist (in {Path.cwd()})")
    return {
        "name": (options["name"] or (script.stem if script is not None else Path(argv[0]).name))[:NAME_MAX],
        "tenant": options["tenant"],
        "weight_milli": weight,
        "priority": options["priority"],
        "cap_bytes": cap_bytes,
        "wait_memory_ns": wait_memory_ns,
        "on_hog": options["on_hog"],
        "may_oversubscribe": options["oversubscribe"],
        "guaranteed_milli": least,
        "limit_milli": most,
        "steps": options["steps"],
        "fingerprint": fingerprint(argv, script),
    }


def _wait_memory_ns(text: str | None) -> int | None:
    if text is None:
        return None
    if origin("--wait-memory") != "--wait-memory":
        return parsed("--wait-memory", parse_duration_ns, text)
    try:
        return parse_duration_ns(text)
    except UsageError as error:
        raise UsageError(
            f"--wait-memory: '{text}' is not a length of time; write --wait-memory=10m, or -- before the program"
        ) from error


def _check_program(program: str) -> None:
    """Whether there is such a program to be started; what is advised must be there."""
    if shutil.which(program) is not None:
        return
    path = Path(program)
    if path.is_dir():
        raise UsageError(f"{program} is a directory, not a program")
    if "/" in program and path.is_file():
        raise UsageError(
            f"{program} may not be executed; allow it: chmod +x {program}, or: carpool run -- python {program}"
        )
    if path.is_file():
        raise UsageError(
            f"cannot find the program '{program}'; a script is run with: carpool run -- python {program}"
        )
    is_path = "/" in program or path.suffix == ".py"
    where = f"there is no such file (in {Path.cwd()})" if is_path else "no directory of PATH has it"
    raise UsageError(f"cannot find the program '{program}': {where}; correct its name, or give its path")


def weight_milli(weight: float) -> int:
    if not 0 < weight <= WEIGHT_MAX:
        raise UsageError(f"--weight {weight} must be above 0 and at most {WEIGHT_MAX}")
    return max(1, round(weight * 1000))


def script_of(argv: list[str]) -> Path | None:
    """The Python script in a command line, if there is one."""
    if not Path(argv[0]).name.startswith(("python", "torchrun", "accelerate")):
        return None
    for word in argv[1:]:
        if word.endswith(".py"):
            return Path(word)
        if word in ("-m", "-c"):
            return None
    return None


def fingerprint(argv: list[str], script: Path | None) -> str:
    """Names a program by its words and its script's text: the same again will need the same memory and time."""
    digest = hashlib.sha1(json.dumps([argv, str(Path.cwd())]).encode(), usedforsecurity=False)
    if script is not None:
        try:
            digest.update(script.read_bytes())
        except OSError as error:
            raise UsageError(f"the script {script} cannot be read: {error.strerror}") from error
    return digest.hexdigest()
