"""`carpool verify`: attack the limits of this machine and say what held."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING

import click

from carpool.cli.tables import console
from carpool.units import format_bytes

if TYPE_CHECKING:
    from carpool.bench.attacks import Outcome


@click.command(short_help="Attack the limits of this machine's GPU.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcomes as JSON.")
@click.option(
    "--device", default="", help="The GPU to attack: cuda:0 or stub:4GiB (default: the GPU if there is one)."
)
@click.option("--only-users", is_flag=True, help="Try only what one user could do to another. Needs root.")
@click.option("--strict", is_flag=True, help="Fail if anything at all is not held, not only what carpool promises.")
def verify(as_json: bool, device: str, only_users: bool, strict: bool) -> int:
    """Attack the limits of this machine's GPU, and say which attacks they withstood.

    Every attack is a small program under `carpool run --memory 256MiB` that tries to hold 384 MiB or to use the
    device without a turn, or under `--compute 25%` that tries to use all of it. Known ways past a library that lives
    inside the program are tried too, and shown as not held.

    \b
    carpool verify
    carpool verify --device stub:4GiB --json

    Exit code: 0 if no promised limit was broken, 1 if one was. Attacks that this GPU or its driver does not allow
    are not tried, and counted so. With --only-users one user attacks another, and the daemon that serves both.
    """
    if only_users:
        return verify_users(as_json=as_json)
    from carpool.bench import attacks

    name, facts = attacks.choose_device(device)
    outcomes = []
    for outcome in attacks.attack_all(name, facts):
        outcomes.append(outcome)
        if not as_json:
            print(shown(outcome, console().width), flush=True)
    broken = [each.attack.title for each in outcomes if each.is_broken]
    if as_json:
        answer = {
            "device": f"{facts.id}: {format_bytes(facts.capacity_bytes)}, {facts.title}",
            "cap_bytes": attacks.CAP_BYTES,
            "attacks": [each.as_json() for each in outcomes],
            "broken": broken,
        }
        print(json.dumps(answer))
    else:
        print(summarise(facts.title, outcomes))
    is_open = any(each.verdict != attacks.HELD for each in outcomes)
    return 1 if broken or (strict and is_open) else 0


def verify_users(*, as_json: bool) -> int:
    """What users of one machine can do to each other."""
    from carpool.bench import other_users

    outcomes = []
    for outcome in other_users.attack_users():
        outcomes.append(outcome)
        if not as_json:
            print(shown(outcome, console().width), flush=True)
    broken = [each.attack.title for each in outcomes if each.is_broken]
    kept = sum(each.verdict == "held" for each in outcomes)
    if as_json:
        print(json.dumps({"attacks": [each.as_json() for each in outcomes], "broken": broken}))
    else:
        print(f"\n{kept} of {len(outcomes)} promises to users of one machine held. What is not promised stands in")
        print("docs/security.md.")
    return 1 if broken else 0


def shown(outcome: Outcome, width: int) -> str:
    """What became of one attack, in lines of this width."""
    said = f"{outcome.verdict:<9}  {outcome.attack.title}: {outcome.why}"
    return textwrap.fill(said, width, subsequent_indent=" " * 11, break_long_words=False, break_on_hyphens=False)


def summarise(title: str, outcomes: list[Outcome]) -> str:
    """How many promises, how many kept, how many ways are known to be open."""
    promised = [each for each in outcomes if each.attack.is_promised]
    kept = sum(each.verdict == "held" for each in promised)
    untried = sum(each.verdict == "not tried" for each in promised)
    others = sum(each.verdict != "held" for each in outcomes if not each.attack.is_promised)
    return (
        f"\n{kept} of {len(promised)} promised limits held on the {title}, {untried} could not be tried;\n"
        f"{others} known ways past them are open.\n"
        "Against programs that want to escape use MIG or vGPU."
    )
