"""Environments in which the programs of a test start in half the time: with a torch that has no compiler."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

HERE = str(Path(__file__).parent)


def without_compiler(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment whose Python programs run `sitecustomize.py` of this directory first."""
    paths = [HERE, environment.get("PYTHONPATH", "")]
    return {**environment, "PYTHONPATH": ":".join(filter(None, paths))}


def with_compiler(environment: Mapping[str, str]) -> dict[str, str]:
    """The same environment without that."""
    paths = [path for path in environment.get("PYTHONPATH", "").split(":") if path != HERE]
    return {**environment, "PYTHONPATH": ":".join(paths)}
