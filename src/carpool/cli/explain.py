"""`carpool explain`: what a job does or waits for, and where its time went."""

from __future__ import annotations

import json

import click

from carpool.calls import as_dict
from carpool.cli.accounts import account_lines, allowance
from carpool.cli.rows import silence_of
from carpool.client import Client
from carpool.units import format_bytes, format_ns


@click.command(short_help="Say what a job does or waits for, and where its time went.")
@click.argument("job")
@click.option("--json", "as_json", is_flag=True, help="Print the sentence and the figures as JSON.")
def explain(job: str, as_json: bool) -> None:
    """Say what a job does or waits for, with the numbers, and where its wall time went.

    \b
    carpool explain train-2     by its id, or by its name while only one has it
    """
    answer = Client().describe(job)
    found = answer.job
    if as_json:
        print(json.dumps(as_dict(found)))
        return
    print(f"{found.id}: {found.reason}")
    priority = f", priority {found.priority}" if answer.policy == "priority" else ""
    if found.user:
        print(f"  user: {found.user}, tenant: {found.tenant}")
    print(f"  allowed: {allowance(found)}{priority}")
    if found.start:
        print(f"  started {found.start}")
    if found.limit_loss:
        print(f"  {found.limit_loss}")
    if found.quantum_ns and found.quantum_why:
        print(f"  turn: {format_ns(found.quantum_ns)} while others wait: {found.quantum_why}")
    needs = found.needs
    if needs:
        gradients = found.gradient_bytes
        of_it = f" ({format_bytes(gradients)} of it gradients)" if gradients else ""
        print(
            f"  memory: {format_bytes(needs.persistent_bytes)} persistent{of_it},"
            f" {format_bytes(needs.ephemeral_bytes)} in a turn,"
            f" {format_bytes(needs.overhead_bytes)} the framework's own"
        )
    for line in account_lines(found):
        print(f"  {line}")
    for order in found.orders:
        print(f"  {order.verb} by {order.by}, {format_ns(order.after_ns)} after it came")
    if found.unwritable:
        print(f"  cannot be written to a file: {found.unwritable}")
    if silence := silence_of(found):
        print(f"  {silence}")
