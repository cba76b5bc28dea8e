"""`carpool tenant`: what groups of users may have on the machine's daemon; looked at by all, changed by admins."""

from __future__ import annotations

import json
import sys

import click

from carpool.cli.groups import HelpfulGroup
from carpool.client import Client
from carpool.errors import UsageError
from carpool.units import format_bytes, format_ns

json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
save_option = click.option("--save", is_flag=True, help="Write it into carpool.toml too, for the next start.")
LISTS = ("members", "devices")
SAID = ("members", "weight", "guaranteed", "memory", "compute", "jobs", "priorities", "devices", "order")
USUAL: dict[str, object] = {"weight": 1.0}


@click.group(cls=HelpfulGroup, short_help="What groups of users may have: list, show, set, unset.")
def tenant() -> None:
    """What groups of users may have on the machine's daemon.

    \b
    carpool tenant list
    carpool tenant set lab --members ana,@students --weight 2 --memory 16GiB
    """


@tenant.command(name="list", short_help="All tenants, and what each has now.")
@json_option
def list_tenants(as_json: bool) -> None:
    """All tenants of whom something is said or who have jobs, and what each has now.

    \b
    carpool tenant list --json
    """
    found = Client().tenants()
    if as_json:
        print(json.dumps(found))
        return
    if not found:
        print("no tenants: nothing is said of any, and nobody has a job; see: carpool tenant set --help")
    for each in found:
        print("\n".join(_lines(each)))


@tenant.command(short_help="What one tenant may have, and has now.")
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """What one tenant may have, and has now.

    \b
    carpool tenant show lab
    """
    _print_one(Client(), name, as_json=as_json)


@tenant.command(name="set", short_help="Change what a tenant may have (admins).")
@click.argument("name")
@click.option("--members", metavar="A,@B", help="Its users, and groups of the system with an @.")
@click.option("--weight", type=float, help="What it counts under fair.")
@click.option("--guaranteed", metavar="25%", help="Its part of each device, time and memory; lent while it is idle.")
@click.option("--memory", metavar="SIZE", help="At most so much on all devices.")
@click.option("--compute", metavar="50%", help="At most so much of each device's time.")
@click.option("--jobs", type=int, help="At most so many jobs on devices at once.")
@click.option("--priorities", metavar="0..5", help="Which ones its jobs may have.")
@click.option("--devices", metavar="A,B", help="On which its jobs may run.")
@click.option("--order", metavar="POLICY", help="How its own jobs go.")
@save_option
@json_option
def set_(name: str, save: bool, as_json: bool, **said: object) -> None:
    """Change what a tenant may have, at once; what is not named stays, and '' takes a thing back.

    \b
    carpool tenant set lab --members ana,@students --guaranteed 25%
    carpool tenant set lab --memory 16GiB --save
    """
    settings = {key: _split(value) if key in LISTS else value for key, value in said.items() if value is not None}
    if not settings:
        raise UsageError("nothing is to be changed; name it, like: --weight 2")
    client = Client()
    client.set_tenant(name, settings, save=save)
    _print_one(client, name, as_json=as_json)


@tenant.command(short_help="Say nothing of a tenant any more (admins).")
@click.argument("name")
@save_option
@json_option
def unset(name: str, save: bool, as_json: bool) -> None:
    """Say nothing of a tenant any more: it may have what tenants without a table may have.

    \b
    carpool tenant unset lab --save
    """
    Client().set_tenant(name, None, save=save)
    if as_json:
        print(json.dumps({"name": name, "is_named": False}))
    else:
        print(f"nothing is said of tenant {name} any more", file=sys.stderr)


def _split(value: object) -> list[str]:
    return [each.strip() for each in str(value).split(",") if each.strip()]


def _print_one(client: Client, name: str, *, as_json: bool) -> None:
    found = next((each for each in client.tenants() if each["name"] == name), None)
    if found is None:
        raise UsageError(f"nothing is known of tenant {name}; see: carpool tenant list")
    print(json.dumps(found) if as_json else "\n".join(_lines(found)))


def _lines(found: dict[str, object]) -> list[str]:
    head = str(found["name"]) + ("" if found.get("is_named") else " (as all that are not named)")
    said = [f"{key} {_words(found[key])}" for key in SAID if found.get(key, USUAL.get(key)) not in _nothing(key)]
    lines = [head, f"  may have: {', '.join(said) or 'anything, and nothing is guaranteed'}"]
    if "jobs_now" in found:
        times = {"lent": found.get("lent_ns"), "borrowed": found.get("borrowed_ns")}
        more = [f"{word} {format_ns(span)}" for word, span in times.items() if isinstance(span, int) and span]
        held = found.get("promised_bytes")
        room = [f"{format_bytes(held)} promised"] if isinstance(held, int) else []
        lines.append("  has now: " + ", ".join([f"jobs {found['jobs_now']}", *room, *more]))
    return lines


def _nothing(key: str) -> tuple[object, ...]:
    return ("", 0, [], None, USUAL.get(key))


def _words(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
