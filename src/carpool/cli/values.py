"""Values of options: what cannot be read is said with the option, or the variable, it came from."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import click
from click.core import ParameterSource

from carpool.errors import UsageError

Value = TypeVar("Value")
WEIGHT_MAX = 1_000_000


def parsed(option: str, parse: Callable[[str], Value], text: str) -> Value:
    """What `parse` makes of the text of `--option`; its UsageError names where the text stands."""
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"{origin(option)}: {error}") from error


def origin(option: str) -> str:
    """Where the value of an option of the running command stands: `--memory`, or `CARPOOL_MEMORY`."""
    context = click.get_current_context(silent=True)
    for parameter in context.command.params if context is not None else ():
        if context is None or option not in parameter.opts or parameter.name is None:
            continue
        is_set = context.get_parameter_source(parameter.name) is ParameterSource.ENVIRONMENT
        if is_set and isinstance(parameter.envvar, str) and parameter.envvar in os.environ:
            return parameter.envvar
    return option


def weight_milli(weight: float) -> int:
    """What `--weight` says, in thousandths."""
    if not 0 < weight <= WEIGHT_MAX:
        raise UsageError(f"--weight {weight} must be above 0 and at most {WEIGHT_MAX}")
    return max(1, round(weight * 1000))


def between(option: str, value: object, least: float, most: float) -> float:
    """A number within these bounds."""
    number = float(str(value))
    if not least <= number <= most:  # NaN is not between anything
        raise UsageError(f"{option} is {number}; it must be between {least:g} and {most:g}")
    return number
