"""Environments in which the programs of a test start in less than half the time: without torch's compiler, and what
else `sitecustomize.py` of this directory names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

HERE = str(Path(__file__).parent)


def without_compiler(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment whose Python programs run `sitecustomize.py` of this directory first."""
    paths = [HERE, environment.get("PYTHONPATH", "")]
    return {**environment, "PYTHONPATH": ":".join(filter(None, paths))}


def with_compiler(environment: Mapping[str, str]) -> dict[str, str]:
    """The same environment without that: everything is as users have it."""
    paths = [path for path in environment.get("PYTHONPATH", "").split(":") if path != HERE]
    return {**environment, "PYTHONPATH": ":".join(paths)}
