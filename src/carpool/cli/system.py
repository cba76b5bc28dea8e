"""`carpool system`: the one daemon that serves all users of a machine; installed, looked at and removed by root."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from carpool import __version__
from carpool.calls import Status
from carpool.cli import system_steps as steps_of
from carpool.cli.groups import HelpfulGroup
from carpool.cli.system_steps import Step
from carpool.client import Client
from carpool.daemon.settings_file import group_id, load_settings
from carpool.errors import CarpoolError, RefusedError, UnreachableError, UsageError
from carpool.units import format_count, format_ns
from carpool.wire.places import Places, machine_places

root_option = click.option(
    "--root", default="/", metavar="DIR", help="Below this directory instead, as in the root of an image."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
dry_option = click.option("--dry-run", is_flag=True, help="Only say what would be done.")


@click.group(cls=HelpfulGroup, short_help="One daemon for all users: install it, look at it, remove it.")
def system() -> None:
    """One daemon for all users of this machine (without it each user has one of his own).

    \b
    carpool system install --dry-run
    carpool system status
    carpool system reload
    """


@system.command(short_help="Install and start it.")
@click.option("--group", default="", help="Only members of this group may use it; made if there is none.")
@click.option("--user", default="", help="It runs as this account instead of root; made if there is none.")
@click.option("--no-start", is_flag=True, help="Do not start it yet.")
@root_option
@dry_option
@json_option
def install(group: str, user: str, no_start: bool, root: str, dry_run: bool, as_json: bool) -> None:
    """Install and start it; what is there already is left alone.

    As an account that is not root (--user) it serves carpool run; carpool submit
    needs root, to start programs as their users.

    \b
    carpool system install
    carpool system install --group gpu --dry-run
    """
    places = machine_places(root)
    if not dry_run:
        steps_of.check_root()
    found = steps_of.install_steps(places, group=group, user=user, starts=not no_start)
    for line in steps_of.warnings():
        _say(line)
    _carry_out(found, dry_run=dry_run, as_json=as_json)
    if as_json or dry_run:
        return
    _say_group(places, group)
    if not steps_of.writes_unit(places):
        _say(f"no systemd runs this machine: at each start of it, run as root: {Path(sys.argv[0])} daemon start")
    status, unreached = _ask(places)
    if status is not None:
        older = f" of carpool {status.version}; this is {__version__}: carpool system restart"
        _say(f"daemon {status.pid} serves all users{older if status.version != __version__ else ''}")
    elif not no_start:
        _say(unreached)
    if places.root != Path("/"):
        _say(f"commands find it there with CARPOOL_ROOT={places.root}")


def _say_group(places: Places, group: str) -> None:
    said = load_settings(places.settings).access.group
    if group and said != group:
        who = f"group {said}" if said else "everyone"
        _say(f"{places.settings} was there and lets {who} in; write [access] group = '{group}' into it yourself")


@system.command(short_help="Stop it and remove what was installed.")
@click.option("--force", is_flag=True, help="Even if jobs run; they go on without taking turns.")
@click.option("--purge", is_flag=True, help="Remove settings, journal and logs too.")
@root_option
@dry_option
@json_option
def uninstall(force: bool, purge: bool, root: str, dry_run: bool, as_json: bool) -> None:
    """Stop it and remove what was installed; settings, journal and logs stay.

    \b
    carpool system uninstall
    carpool system uninstall --purge --dry-run
    """
    places = machine_places(root)
    if not dry_run:
        steps_of.check_root()
    _carry_out(steps_of.uninstall_steps(places, force=force, purge=purge), dry_run=dry_run, as_json=as_json)


def _carry_out(steps: list[Step], *, dry_run: bool, as_json: bool) -> None:
    if as_json and dry_run:
        print(json.dumps({"steps": [step.says for step in steps], "is_done": False}))
        return
    for step in steps:
        if not as_json:
            print(step.says)
        if not dry_run:
            step.do()
    if as_json:
        print(json.dumps({"steps": [step.says for step in steps], "is_done": True}))
    elif not steps:
        _say("there is nothing to do")


def _say(text: str) -> None:
    print(f"carpool: {text}", file=sys.stderr)


@system.command(short_help="Have it read its settings again.")
@root_option
@json_option
def reload(root: str, as_json: bool) -> None:
    """Have it read its settings again; no job is lost. Says what counts at once, and what waits for a restart.

    \b
    carpool system reload
    """
    places = _installed(root)
    reloaded = Client(places=places).reload()
    if as_json:
        print(json.dumps({"changed": reloaded.changed, "waits": reloaded.waits}))
        return
    for key, change in reloaded.changed.items():
        print(f"{key}: {change}{' (from the next start on)' if key in reloaded.waits else ''}")
    if not reloaded.changed:
        _say(f"{places.settings} says nothing new")
    if reloaded.waits:
        _say(f"{format_count(len(reloaded.waits), 'setting')} cannot change while it runs: carpool system restart")


@system.command(short_help="Start it anew, as after an upgrade.")
@root_option
@json_option
def restart(root: str, as_json: bool) -> None:
    """Start it anew, as after an upgrade of carpool; programs run on, and it takes their jobs back.

    \b
    carpool system restart
    """
    steps_of.check_root()
    places = _installed(root)
    group_id(load_settings(places.settings).access.group)  # what is wrong there is said before anything is stopped
    before = places.find_daemon()
    if before is not None and Client(places=places).is_running():
        steps_of.stop_daemon(places)
    steps_of.start_step(places).do()
    status = Client(places=places).status()
    if as_json:
        print(json.dumps({"pid": status.pid, "version": status.version, "jobs": status.jobs}))
        return
    was = f" in place of {before.pid}" if before is not None else ""
    _say(f"daemon {status.pid} ({status.version}) runs{was}, with {format_count(status.jobs, 'job')}")
    for line in _of_other_versions(places):
        _say(line)


@system.command("status", short_help="Whether it runs, and who may use it.")
@root_option
@json_option
def show_status(root: str, as_json: bool) -> int:
    """Whether it is installed and runs, who may use it, and whether its settings can be read.

    \b
    carpool system status
    """
    places = machine_places(root)
    facts = _facts(places)
    if as_json:
        print(json.dumps(facts))
    else:
        for line in _lines(places, facts):
            print(line)
    return 0 if facts["is_running"] else UnreachableError.exit_code


def _installed(root: str) -> Places:
    places = machine_places(root)
    if not places.is_installed():
        raise RefusedError(f"no daemon for all users is installed ({places.settings}): sudo carpool system install")
    return places


def _facts(places: Places) -> dict[str, object]:
    facts: dict[str, object] = {"is_installed": places.is_installed(), "settings": str(places.settings)}
    facts |= {"run": str(places.run), "state": str(places.state), "logs": str(places.logs)}
    unit = steps_of.unit_of(places)
    facts["unit"] = str(unit) if unit.exists() else ""
    try:
        access = load_settings(places.settings).access
        facts |= {"group": access.group, "admins": list(access.admins), "private": access.private, "trouble": ""}
    except UsageError as error:
        facts["trouble"] = str(error) if places.is_installed() else ""
    status, unreached = _ask(places)
    facts |= {"is_running": status is not None, "unreached": unreached}
    if status is not None:
        facts |= {"pid": status.pid, "version": status.version, "jobs": status.jobs, "uptime_ns": status.uptime_ns}
        facts |= {"owner": steps_of.name_of(places.owner()), "devices": [device.id for device in status.devices]}
        facts["waits"] = _of_other_versions(places)
    return facts


def _ask(places: Places) -> tuple[Status | None, str]:
    """The daemon's answer, or why there is none."""
    if not places.is_installed():
        return None, ""
    try:
        return Client(places=places).status(), ""
    except (CarpoolError, OSError) as error:
        return None, str(error)


def _of_other_versions(places: Places) -> list[str]:
    """Jobs that an older or newer daemon started and this one cannot give turns to."""
    found = [job for job in Client(places=places).jobs() if "it was started by carpool" in job.reason]
    return [f"job {job.id} runs on outside the turns until it ends: {job.reason}" for job in found]


def _lines(places: Places, facts: dict[str, object]) -> list[str]:
    if not facts["is_installed"]:
        return [
            f"not installed ({places.settings}); each user has a daemon of his own",
            "to install it: sudo carpool system install",
        ]
    found = []
    if facts["is_running"]:
        uptime = facts["uptime_ns"]
        assert isinstance(uptime, int)
        found.append(
            f"daemon {facts['pid']}, carpool {facts['version']}, as {facts['owner']}, {facts['jobs']} jobs,"
            f" up {format_ns(uptime)}"
        )
    else:
        found.append(f"it does not run: {facts['unreached']}")
    if facts["trouble"]:
        found.append(f"settings that it cannot read: {facts['trouble']}")
    else:
        admins = facts["admins"]
        assert isinstance(admins, list)
        found.append(
            f"for {'group ' + str(facts['group']) if facts['group'] else 'everyone'}; admins {', '.join(admins)}"
        )
    found.append(f"settings {places.settings}, unit {facts['unit'] or 'none'}")
    found.append(f"run directory {places.run}\njournal in {places.state}, logs in {places.logs}")
    waits = facts.get("waits", [])
    assert isinstance(waits, list)
    return [*found, *waits]
