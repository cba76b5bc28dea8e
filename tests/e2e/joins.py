"""Programs that become jobs by joining, as text; they take plain turns, so that nothing waits for torch."""

from __future__ import annotations

from tests.e2e.node import PYTHON, Node, Started

# `turns(until)` takes turns until the file of that name is in the directory where the program runs.
BEGIN = """
import os, sys, time
import carpool
from carpool.errors import CarpoolError


def turns(until):
    end = time.monotonic() + 90
    while not os.path.exists(until) and time.monotonic() < end:
        with carpool.turn():
            sum(range(20000))
        time.sleep(0.005)
"""


def join(node: Node, text: str, *arguments: str, **options: object) -> Started:
    """Run a program as it is: nobody has made a job of it."""
    return Started(node, [PYTHON, "-c", BEGIN + text, *arguments], cwd=node.files, **options)


def stop(node: Node, name: str = "stop") -> None:
    """Let the programs that wait for this file end."""
    (node.files / name).touch()
