"""The container of a process, from what the kernel says of it and never from what a program says of itself (X16).

Container runtimes give each container a control group whose name has the container's id: 64 hexadecimal digits. What
has none but a pid or user namespace of its own is shown by that namespace's number.

Rules
  X16 A container is known by its control group or its namespaces, as the kernel shows them to the daemon.
  X17 Whoever calls from inside a container has nothing done outside of it: no program is started there, no file
      written, no daemon stopped, and no job of others ordered about, as root is in every container. Nor has anybody
      who is gone, as nobody can tell where he was.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from carpool.daemon import processes
from carpool.errors import RefusedError

OUTSIDE = frozenset(
    {"submit", "checkpoint", "stop", "reload", "tenant"}
)  # verbs that reach beyond the caller's container
SHORT = 12  # digits of an id, as the runtimes themselves show it
_ID = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:/|$)")


def container_of(pid: int) -> str:
    """The short id of the container in which a process is; `ns` and a number for a namespace without one; empty if it
    is in none, or gone, or may not be looked at."""
    found = _id_in(_groups(pid))
    if found and found != _id_in(_groups(os.getpid())):
        return found[:SHORT]
    for kind in ("pid", "user"):
        number = _namespace(pid, kind)
        if number and number != _namespace(os.getpid(), kind):
            return f"ns{number}"
    return ""


def check_call(verb: str, pid: int, *, is_others: bool = False) -> None:
    """RefusedError for a call from inside a container that would reach beyond it, or is about another's job (X17)."""
    if (
        not (is_others or verb in OUTSIDE) or pid < 0
    ):  # of another namespace than this daemon's, which may itself be in a container
        return
    if pid == 0:
        raise RefusedError(f"whoever asked to {verb} has ended; nothing was done")
    where = container_of(pid) or ("another root directory" if _root(pid) != _root(os.getpid()) else "")
    if where:
        raise RefusedError(
            f"this call comes from inside a container ({where}), and {verb} would reach beyond it; do it outside"
        )


def _root(pid: int) -> tuple[int, int]:
    """The root directory of a process; that of this one where nobody may look."""

    def read() -> tuple[int, int]:
        facts = Path(f"/proc/{pid}/root").stat()
        return facts.st_dev, facts.st_ino

    own = Path("/").stat()
    return processes.look(pid, "root", read, (own.st_dev, own.st_ino))


def _groups(pid: int) -> list[str]:
    """The control groups of a process, one of each hierarchy."""

    def read() -> str:
        return Path(f"/proc/{pid}/cgroup").read_text(errors="replace")

    lines = processes.look(pid, "cgroup", read, "").splitlines()
    return [line.split(":", 2)[2] for line in lines if line.count(":") >= 2]


def _id_in(groups: list[str]) -> str:
    """The innermost id in their names."""
    return next((ids[-1] for group in groups if (ids := _ID.findall(group))), "")


def _namespace(pid: int, kind: str) -> int:
    return processes.look(pid, f"ns/{kind}", lambda: Path(f"/proc/{pid}/ns/{kind}").stat().st_ino, 0)
