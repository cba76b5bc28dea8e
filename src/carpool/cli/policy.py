"""`carpool policy`: which policies there are, and what is wrong with one of yours."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass

import click
from rich import box
from rich.markup import escape
from rich.table import Table

from carpool.cli.groups import HelpfulGroup
from carpool.cli.tables import console
from carpool.core.policies.base import Policy
from carpool.errors import UsageError
from carpool.policies import POLICIES, entry_points, find_policy, load
from carpool.testing.policies import check_live_policy, check_policy, review_policy
from carpool.units import format_ns


@click.group(cls=HelpfulGroup, short_help="List policies, and check one of yours.")
def policy() -> None:
    """List the policies there are, and check one of yours.

    \b
    carpool policy list
    carpool policy check ./mine.py:Mine
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy as the list shows it."""

    name: str
    rule: str
    origin: str
    runs_on: tuple[str, ...] = ()
    quantum_ns: int | None = 0  # None: chosen
    lanes_max: int = 0


@policy.command(name="list")
@click.option("--also", default="", metavar="A,B", help="And some of yours, like ./mine.py:Mine.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def list_policies(also: str, as_json: bool) -> None:
    """Show all: the rule, where it comes from, where it can run.

    Carpool's own, those that installed packages bring (entry points of the group carpool.policies), and the files
    that you name.

    \b
    carpool policy list
    carpool policy list --also ./mine.py:Mine --json
    """
    references = [each.strip() for each in also.split(",")]
    rows = [_row(each, "built in") for each in POLICIES.values()]
    for name, entry in sorted(entry_points().items()):
        package = entry.dist.name if entry.dist is not None else entry.value
        try:
            rows.append(_row(find_policy(name), f"entry point of {package}"))
        except UsageError as error:
            rows.append(Row(name=name, rule=f"cannot be used: {error}", origin=f"entry point of {package}"))
    rows += [
        _row(find_policy(each), f"file {each}" if ".py" in each else f"module {each}") for each in references if each
    ]
    if as_json:
        shown = [{name: getattr(row, name) for name in Row.__slots__} for row in rows]
        print(json.dumps({"policies": shown}))
        return
    _show(rows)


def _row(found: Policy, origin: str) -> Row:
    return Row(
        name=found.name,
        rule=rule_of(found),
        origin=origin,
        runs_on=found.runs_on,
        quantum_ns=found.quantum_ns,
        lanes_max=found.lanes_max,
    )


def rule_of(found: Policy) -> str:
    """The first sentence of a policy's own words."""
    words = inspect.getdoc(type(found)) if type(found).__doc__ else None
    return " ".join((words or "it says nothing of itself: give its class a docstring").split("\n\n")[0].split())


def _show(rows: list[Row]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("policy", "runs on", "quantum", "lanes", "origin", "rule"):
        table.add_column(column, no_wrap=column == "policy")
    for row in rows:
        quantum = "chosen" if row.quantum_ns is None else format_ns(row.quantum_ns) if row.quantum_ns else "–"
        places, lanes = ", ".join(row.runs_on) or "–", str(row.lanes_max or "–")
        table.add_row(row.name, places, quantum, lanes, escape(row.origin), escape(row.rule))
    console().print(table)


@policy.command()
@click.argument("reference")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def check(reference: str, as_json: bool) -> int:
    """Say what is wrong with a policy; exit code 1 if anything is.

    It is asked about many random jobs: whether its ranks are whole numbers, the same when asked again, whether it
    raises, gives reasons, and how long a decision takes. A hint is what may be meant so.

    \b
    carpool policy check ./mine.py:Mine
    carpool policy check ./mine.py:Mine --json
    """
    found = load(reference)
    review = review_policy(found)
    name = str(getattr(found, "name", "")) or reference
    if as_json:
        said = {
            "policy": name,
            "reference": reference,
            "runs_on": list(getattr(found, "runs_on", ())),
            "faults": list(review.faults),
            "hints": list(review.hints),
            "decision_us": review.decision_us,
        }
        print(json.dumps(said))
        return 1 if review.faults else 0
    out = console()
    for fault in review.faults:
        out.print(f"fault: {fault}", highlight=False, markup=False, soft_wrap=True)
    for hint in review.hints:
        out.print(f"hint: {hint}", highlight=False, markup=False, soft_wrap=True)
    if not review.faults:
        out.print(
            f"{name} keeps the contract; it runs on {' and '.join(found.runs_on)}; a decision among 8 jobs takes"
            f" {review.decision_us:g} µs",
            highlight=False,
            soft_wrap=True,
        )
    return 1 if review.faults else 0


def checked(reference: str, *, place: str, is_live: bool = False) -> Policy:
    """The policy of an option, before anything is started with it; one that is not carpool's own is tried first."""
    found, check = find_policy(reference, place=place), check_live_policy if is_live else check_policy
    complaints = check(found) if reference not in POLICIES else []
    if complaints:
        raise UsageError(f"policy {reference}: {complaints[0]}")
    return found
