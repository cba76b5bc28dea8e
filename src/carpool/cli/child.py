"""How a runner's program comes to be: forked from a warm parent, if that was asked for and would be the same, or as a
child of the runner. Either way the runner has of it a pid, news, a way to send signals, and its processor time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from carpool.client import PYTHON_IGNORES
from carpool.daemon.start_and_end import WARM
from carpool.errors import ColdStartError, PeerError
from carpool.wire.places import Places

if TYPE_CHECKING:
    from carpool.cli.warm_start import WarmProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A program as its runner would start it."""

    argv: list[str]
    environment: Mapping[str, str]
    own: frozenset[str]  # of these variables, those that differ from job to job
    mask: frozenset[int]  # signals that are blocked in it
    ignored: frozenset[int]
    stays: bool  # it outlives its runner


class Child:
    """A program that this process started itself, in its own process group."""

    cpu_s = 0.0  # the kernel counts it among this process's children

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def go(self) -> None:
        """It runs already."""

    def poll(self) -> tuple[bool, int | None]:
        """Whether something new is known, and its status as wait(2) has it."""
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        return pid == self.pid, status

    def send(self, number: int, *, to_group: bool = False) -> None:
        """Send it a signal; what goes to the group, its runner has had itself."""
        os.kill(self.pid, number)


def texts_of(told: object) -> dict[str, str]:
    """Variables as the daemon told them."""
    if not isinstance(told, dict) or not all(isinstance(each, str) for pair in told.items() for each in pair):
        raise PeerError("the daemon's variables for the program are no names and texts")
    return told


def merged_environment(user: Mapping[str, str], added: Mapping[str, object]) -> dict[str, str]:
    """The user's environment with carpool's words: some set, some put in front, some only where unset."""
    merged = dict(user)
    parts = {key: texts_of(added.get(key, {})) for key in ("set", "prepend", "default")}
    merged.update(parts["set"])
    for name, value in parts["prepend"].items():
        before = merged.get(name)
        merged[name] = f"{value}:{before}" if before else value
    if not any(name.startswith(("OMP_WAIT", "GOMP_")) for name in merged):
        for name, value in parts["default"].items():
            merged.setdefault(name, value)
    return merged


def start_child(wish: Wish) -> Child:
    """OSError or ValueError if the system refuses."""
    # On the program's own PATH: a background runner has the daemon's, which may be another one.
    path = shutil.which(wish.argv[0], path=wish.environment.get("PATH")) or wish.argv[0]
    return Child(os.posix_spawn(path, wish.argv, wish.environment, setsigmask=wish.mask, setsigdef=PYTHON_IGNORES))


def start_warm(places: Places, wish: Wish, *, is_urgent: Callable[[], bool]) -> tuple[Child | WarmProgram, str]:
    """Have it forked, or start it cold where that would not be the same; and how it started, with the reason."""
    if places.is_machine:
        return start_child(wish), "cold: the machine's daemon keeps no warm parents"
    from carpool.cli import warm_start

    try:
        return warm_start.start(places, wish, is_urgent=is_urgent), WARM
    except ColdStartError as error:
        return start_child(wish), f"cold: {error}"
