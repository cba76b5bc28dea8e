"""What is said of a job that is joined: the same for `carpool adopt` and for containers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def joining_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that describe it; each may also stand in the environment of the program."""
    options = [
        click.option("--name", help="What to call the job."),
        click.option("--tenant", help="Whose job it is."),
        click.option("--weight", type=float, help="Its share within its tenant."),
        click.option("--priority", type=int, help="Higher goes first, under policy priority."),
        click.option("--memory", metavar="SIZE", help="Its cap, like 2GiB."),
        click.option("--wait-memory", metavar="TIME", help="How long an allocation waits if memory is short."),
        click.option("--compute", metavar="SHARE", help="Part of the device: 30%, or 30%:60%."),
        click.option("--steps", type=int, help="Iterations it will make."),
        click.option("--device", help="A device of the node, like gpu0."),
        click.option("--on-hog", help="If it keeps its turn far too long: warn, suspend or kill."),
        click.option("--on-orphans", help="Of processes that outlive its first one: keep them, or end."),
        click.option("--no-park", is_flag=True, help="Its memory stays on the device."),
    ]
    for option in reversed(options):
        command = option(command)
    return command
