"""What a program may call itself: the functions that `carpool` offers, loaded at their first use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from carpool.agent.turns import process


@contextmanager
def turn() -> Iterator[None]:
    """Take a turn for a piece of device work: `with carpool.turn(): step()`. Does nothing outside a job."""
    turns = process.current_turns()
    if turns is None:
        yield
        return
    with turns.turn():
        yield
