"""Who imports whom, read from the source. Imports inside functions and for the type checker count too: a module that
names another one has to be read with it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2]
ROOT = PACKAGE.parents[1]
CORE = "carpool.core"
# Who may import whom: only what stands lower, so the first row imports nothing of ours. tests/test_architecture.py
# checks it, docs/house.svg shows it.
LAYERS: list[set[str]] = [
    {"units", "errors"},
    {"core", "wire", "devices", "calls"},
    {"agent", "client", "journal", "policies"},
    {"daemon", "sim", "k8s", "serve", "remote"},
    {"cli", "bench", "testing"},
]
Graph = Mapping[str, frozenset[str]]  # a module to the modules of ours it imports


def sources() -> dict[str, Path]:
    """Every module of the package by its dotted name; packages by the name of their folder."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def graph() -> Graph:
    """The imports of the whole package."""
    modules = sources()
    return {name: frozenset(imported(path.read_text(), name, modules)) for name, path in modules.items()}


def imported(source: str, name: str, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules of ours that one module names; `from carpool.core.node import lanes` names lanes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in modules and each.name != name)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, name, modules)
            for each in node.names:
                target = f"{base}.{each.name}" if f"{base}.{each.name}" in modules else base
                if target in modules and target != name:
                    yield target


def _base(node: ast.ImportFrom, name: str, modules: Mapping[str, Path]) -> str:
    if not node.level:
        return node.module or ""
    is_folder = modules[name].name == "__init__.py"
    parts = name.split(".")
    above = parts[: len(parts) - node.level + is_folder]
    return ".".join([*above, node.module] if node.module else above)


def within(whole: Graph, prefix: str) -> Graph:
    """The part of a graph below one package; its empty folders left out."""
    inside = {name for name in whole if name.startswith(f"{prefix}.")}
    return {name: targets & inside for name, targets in whole.items() if name in inside}


def longest_chain(whole: Graph) -> list[str]:
    """The longest chain of imports, topmost first. Modules that import each other count as one step each."""
    rings = _rings(whole)
    ring_of = {name: ring for ring in rings for name in ring}
    best: dict[frozenset[str], list[str]] = {}
    for ring in rings:  # those that are imported come first
        below = [best[ring_of[target]] for name in ring for target in whole[name] if ring_of[target] is not ring]
        best[ring] = sorted(ring) + max(below, key=len, default=[])
    return max(best.values(), key=len, default=[])


def _rings(whole: Graph) -> list[frozenset[str]]:
    """Groups of modules that reach each other (mostly of one), imported ones first: Tarjan's algorithm."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[frozenset[str]] = []

    def visit(name: str) -> None:
        numbers[name] = lowest[name] = len(numbers)
        stack.append(name)
        for target in sorted(whole[name]):
            if target not in numbers:
                visit(target)
            if target in stack:
                lowest[name] = min(lowest[name], lowest[target])
        if lowest[name] == numbers[name]:
            start = stack.index(name)
            found.append(frozenset(stack[start:]))
            del stack[start:]

    for name in sorted(whole):
        if name not in numbers:
            visit(name)
    return found


def short(name: str) -> str:
    """A module's name without the package's."""
    return name.removeprefix("carpool.")
