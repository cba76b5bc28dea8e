"""The options that describe a job, the same for `carpool run` and `carpool submit`, and what they come to.

What only some options need is imported with them: every start of a program waits for this module.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from carpool.cli.launch import ensure_daemon
from carpool.cli.values import origin, parsed, weight_milli
from carpool.client import NAME_MAX, Client, fingerprint, name_of, script_of
from carpool.errors import RefusedError, UsageError
from carpool.units import format_list, parse_bytes, parse_duration_ns, parse_share

STEPS_MAX = 10**15
PRIORITY_MAX = 1_000_000
NOT_EVERYWHERE: dict[str, object] = {"--priority": 0, "--weight": 1.0, "--tenant": "default"}  # and their defaults
ON_HOG = ("warn", "suspend", "kill")
ON_ORPHANS = ("keep", "end")
KEPT_INSIDE = ("memory", "compute", "oversubscribe", "wait_memory")  # on a GPU, by the library in the program
SETTINGS = {"allow_interspersed_args": False}  # what follows the program's name is the program's


class PolicyOption(click.Option):
    """Names the policies that there are when somebody asks for help, and not before."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from carpool.policies import names_for

        self.help = f"For a new daemon: {', '.join(names_for('node'))} or ./mine.py:Mine."
        return super().get_help_record(ctx)


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that describe a job, the same for run and submit."""
    options = [
        click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="PROGRAM [ARGS]..."),
        click.option("--name", help="What to call the job (default: the script's name)."),
        click.option("--priority", type=int, default=0, help="Higher goes first, under policy priority."),
        click.option("--weight", type=float, default=1.0, help="Its share within its tenant, under policy fair."),
        click.option("--tenant", default="default", help="Whose job it is; tenants share by their weights."),
        click.option(
            "--memory", metavar="SIZE", help="Its cap, like 2GiB; a program that wants more is out of memory."
        ),
        click.option(
            "--wait-memory",
            metavar="[TIME]",
            is_flag=False,
            flag_value="24h",
            help="How long (24h) an allocation waits if memory is short; on a GPU, for its own processes.",
        ),
        click.option("--on-hog", default="suspend", help="If it keeps its turn far too long: warn, suspend or kill."),
        click.option(
            "--on-orphans",
            default="keep",
            help="Of processes that outlive its first one: keep them, or end.",
        ),
        click.option(
            "--warm/--cold",
            default=None,
            help="Fork it from a process that has torch, or not.",
        ),
        click.option("--no-park", is_flag=True, help="Its memory stays on the device, also at suspend."),
        click.option("--oversubscribe", is_flag=True, help="On a GPU: (slow) managed memory for what does not fit."),
        click.option("--compute", metavar="SHARE", help="Part of the device: 30%, or 30%:60% (at least, at most)."),
        click.option("--steps", type=int, help="Iterations it will make; policy srtf goes by that."),
        click.option(
            "--device", help="A device of the node, like gpu0; for a new daemon cpu:4GiB, cuda or stub:16GiB."
        ),
        click.option("--checkpointable", is_flag=True, help="Record what carpool checkpoint needs."),
        click.option("--from", "from_file", type=click.Path(path_type=Path), help="Go on from this checkpoint."),
        click.option("--recompute", is_flag=True, help="With --from: compute every step again, and compare."),
        click.option("--policy", cls=PolicyOption),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def prepare(client: Client, argv: list[str], options: dict[str, Any]) -> tuple[dict[str, object], dict[str, str]]:
    """What a job is to be and the environment of its program; a daemon is started if none runs."""
    spec = make_spec(argv, options)
    environment = {**os.environ, **_recorded(options, argv)}
    spec["device"] = ensure_daemon(client.places, policy=options["policy"], device=options["device"])
    _check_reached(client, argv[0], options)
    _say_ignored(client, options)
    return spec, environment


def _recorded(options: dict[str, Any], argv: list[str]) -> dict[str, str]:
    if not options["checkpointable"] and options["from_file"] is None and not options["recompute"]:
        return {}
    from carpool.cli.checkpoint import recorded_environment

    return recorded_environment(options, argv, script_of(argv))


def _say_ignored(client: Client, options: dict[str, Any]) -> None:
    """Name the options that mean nothing under the daemon's policy: nobody need know which one that is."""
    given = [option for option, default in NOT_EVERYWHERE.items() if options[option.removeprefix("--")] != default]
    if not given:
        return
    from carpool.policies import counts, find_policy, meaning_of

    reference = client.status().policy
    with contextlib.suppress(UsageError):  # a file of somebody's that was changed or removed meanwhile
        policy = find_policy(reference)
        for option in given:
            if not counts(policy, option):
                say(f"{origin(option)} counts {meaning_of(option, place='node')}; this daemon has {policy.name}")


def _check_reached(client: Client, program: str, options: dict[str, Any]) -> None:
    """Refuse what carpool's library keeps on a GPU for a program it would not get into: it would start without."""
    asked = [f"--{option.replace('_', '-')}" for option in KEPT_INSIDE if options[option] not in (None, False)]
    if not asked:
        return
    from carpool.devices.kinds import kind_named
    from carpool.devices.libraries import find_library
    from carpool.devices.loading import obstacle

    library = find_library("gpu")
    why = obstacle(program, library) if library is not None else None
    if why is None:
        return
    if any(kind_named(device.kind).needs_library for device in client.status().devices):
        limits = format_list(asked)
        raise RefusedError(f"{limits} cannot be kept for {program} on a GPU: {why}, or run it without {limits}")
    if options["memory"] is not None:
        say(f"--memory is not kept for {program}: {why}")


def say(text: str) -> None:
    print(f"carpool: {text}", file=sys.stderr)


def make_spec(argv: list[str], options: dict[str, Any]) -> dict[str, object]:
    """The job's description as it travels; a UsageError says what is wrong before anything is started."""
    wait_memory_ns = _wait_memory_ns(options["wait_memory"])  # it may have taken the program for its value
    for option in ("name", "tenant"):
        if options[option] is not None and not options[option].strip():
            raise UsageError(f"--{option} is empty; give a name, or leave it out")
    if set(options["tenant"]) & set("=,"):
        raise UsageError(f"--tenant {options['tenant']} has '=' or ',', and --tenant-weights could not name it")
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
    if options["on_orphans"] not in ON_ORPHANS:
        raise UsageError(f"--on-orphans {options['on_orphans']} is not one of {', '.join(ON_ORPHANS)}")
    _take_policy(options)
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
        "name": (options["name"] or name_of(argv))[:NAME_MAX],
        "tenant": options["tenant"],
        "weight_milli": weight,
        "priority": options["priority"],
        "cap_bytes": cap_bytes,
        "wait_memory_ns": wait_memory_ns,
        "on_hog": options["on_hog"],
        "on_orphans": options["on_orphans"],
        "warm": options["warm"],
        "may_park": not options["no_park"],
        "may_oversubscribe": options["oversubscribe"],
        "guaranteed_milli": least,
        "limit_milli": most,
        "steps": options["steps"],
        "fingerprint": fingerprint(argv, cwd=str(Path.cwd())),
    }


def _take_policy(options: dict[str, Any]) -> None:
    if options["policy"] is not None:
        from carpool.policies import find_policy, in_full

        find_policy(options["policy"], place="node")
        options["policy"] = in_full(options["policy"])


def _wait_memory_ns(text: str | None) -> int | None:
    return parsed("--wait-memory", _parse_wait_ns, text) if text is not None else None


def _parse_wait_ns(text: str) -> int:
    is_typed = origin("--wait-memory") == "--wait-memory"  # then it may have taken the program for its value
    advice = {"advice": "write --wait-memory=10m, or -- before the program"} if is_typed else {}
    wait_ns = parse_duration_ns(text, **advice)
    if wait_ns < 1:
        raise UsageError(f"'{text}' is no time to wait; leave the option out, or write --wait-memory=10m")
    return wait_ns


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
