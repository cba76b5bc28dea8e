"""The family tree in the docstring is the family."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from carpool import errors

FAMILY = [found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, Exception)]


@pytest.mark.parametrize("family", FAMILY, ids=lambda found: found.__name__)
def test_every_error_is_in_the_tree_with_its_exit_code(family: type[errors.CarpoolError]) -> None:
    assert errors.__doc__ is not None
    (line,) = [line for line in errors.__doc__.splitlines() if re.search(rf"\b{family.__name__}\b", line)]
    if family not in (errors.CarpoolError, errors.AnsweredError):
        assert line.endswith(f"exit {family.exit_code}")


def defined_errors(path: Path) -> list[str]:
    """The classes of a module that are exceptions, by the names of their bases."""
    classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    bases = {each.name: [ast.unparse(base).rpartition(".")[2] for base in each.bases] for each in classes}
    return [name for name, found in bases.items() if any(re.search(r"(Error|Exception)$", base) for base in found)]


def test_every_error_of_the_package_is_in_one_module() -> None:
    package = Path(errors.__file__).parent
    elsewhere = {
        path.relative_to(package).as_posix(): found
        for path in package.rglob("*.py")
        if path != Path(errors.__file__) and "programs" not in path.parts and (found := defined_errors(path))
    }
    assert elsewhere == {}
    assert set(defined_errors(Path(errors.__file__))) - {"Endless"} == {each.__name__ for each in FAMILY}


def test_a_bug_shows_the_events_that_were_attached_to_it() -> None:
    error = errors.InternalError("a rule was broken")
    assert str(error) == "a rule was broken"
    error.attach(("7 JobSubmitted", "8 Tick"))
    assert str(error).splitlines() == ["a rule was broken", "  last events:", "  7 JobSubmitted", "  8 Tick"]


def test_a_daemons_no_keeps_its_exit_code() -> None:
    assert errors.AnsweredError("no", exit_code=2).exit_code == 2
