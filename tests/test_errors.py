"""The family tree in the docstring is the family."""

from __future__ import annotations

import re

import pytest

from carpool import errors

FAMILY = [found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, Exception)]


@pytest.mark.parametrize("family", FAMILY, ids=lambda found: found.__name__)
def test_every_error_is_in_the_tree_with_its_exit_code(family: type[errors.CarpoolError]) -> None:
    assert errors.__doc__ is not None
    (line,) = [line for line in errors.__doc__.splitlines() if re.search(rf"\b{family.__name__}\b", line)]
    if family not in (errors.CarpoolError, errors.AnsweredError):
        assert line.endswith(f"exit {family.exit_code}")


def test_a_daemons_no_keeps_its_exit_code() -> None:
    assert errors.AnsweredError("no", exit_code=2).exit_code == 2
