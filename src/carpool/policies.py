"""All policies there are: those of carpool itself, one file each in core/policies."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import carpool.core.policies
from carpool.core.policies.base import Policy
from carpool.core.policies.view import JobView

__all__ = ["POLICIES", "JobView", "Policy", "names_for"]


def _built_in() -> Iterator[Policy]:
    """One of every policy class that a file of core/policies defines."""
    folder = carpool.core.policies
    for found in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
        for kind in policies_in(importlib.import_module(found.name)):
            yield kind()


def policies_in(module: ModuleType) -> list[type[Policy]]:
    """The policy classes that the module defines itself, not those it imports."""
    kinds = [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]
    return [each for each in kinds if issubclass(each, Policy) and not inspect.isabstract(each)]


POLICIES: dict[str, Policy] = {policy.name: policy for policy in _built_in()}


def names_for(place: str) -> list[str]:
    """The built-in policies that run on a node, or in a cluster."""
    return [name for name, policy in POLICIES.items() if place in policy.runs_on]
