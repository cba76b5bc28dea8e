"""Which processes come of which, from a list of all with their parents."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def children_of(parents: Mapping[int, int]) -> dict[int, list[int]]:
    """Whom each process started, of a list that has the parent of each."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    return children


def with_descendants(pids: set[int], children: Mapping[int, Collection[int]]) -> set[int]:
    """These processes and all that they started: what became of their environments, a user may not be told."""
    found, rest = set(pids), list(pids)
    while rest:
        new = [child for child in children.get(rest.pop(), ()) if child not in found]
        found.update(new)
        rest += new
    return found
