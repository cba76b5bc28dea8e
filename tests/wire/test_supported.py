"""Which Pythons and torches are served: in one table, and the same words wherever they are said."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import carpool
from carpool.wire import supported

INJECTED = Path(carpool.__file__).parent / "agent" / "inject" / "sitecustomize.py"
PYTHONS = [
    ("cpython", (2, 7), ""),
    ("cpython", (3, 8), ""),
    ("cpython", (3, 10), ""),
    ("cpython", (3, 11), ""),
    ("cpython", (3, 14), ""),
    ("cpython", (3, 14), "t"),
    ("cpython", (3, 15), ""),
    ("cpython", (4, 0), ""),
    ("pypy", (3, 11), ""),
    ("pypy", (3, 9), ""),
]


@pytest.mark.parametrize("is_any", [False, True])
@pytest.mark.parametrize(("implementation", "version", "flags"), PYTHONS)
def test_z10_the_injected_file_and_the_table_say_the_same_of_a_python(
    implementation: str, version: tuple[int, int], flags: str, is_any: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CARPOOL_JOB", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("CARPOOL_ANY_VERSION", "1" if is_any else "")
    why_not = runpy.run_path(str(INJECTED))["_why_not"]
    monkeypatch.setitem(
        why_not.__globals__,
        "sys",
        SimpleNamespace(version_info=version, implementation=SimpleNamespace(name=implementation), abiflags=flags),
    )
    assert why_not() == supported.trouble_of(implementation, version, flags, is_any=is_any)


def test_z10_what_was_tried_takes_turns_and_nothing_else_does() -> None:
    def served(implementation: str, version: tuple[int, int], flags: str) -> bool:
        return not supported.trouble_of(implementation, version, flags, is_any=False)

    assert [each for each in PYTHONS if served(*each)] == [("cpython", (3, 11), ""), ("cpython", (3, 14), "")]
    assert supported.trouble_of("cpython", (3, 15), "t", is_any=True) == ""
    assert supported.trouble_of("pypy", (3, 11), "", is_any=True) != ""
    assert supported.trouble_of("cpython", (3, 10), "", is_any=True) == "Python 3.10 is older than 3.11"


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("2.6.0", ""),
        ("2.13.0+cpu", ""),
        ("2.15.1a0+git1234", ""),
        ("0.0-stand-in", ""),
        ("unknown", ""),
        ("2.5.1", "torch 2.5.1 is older than 2.6; CARPOOL_ANY_VERSION=1 tries it all the same"),
        ("2.16.0.dev20261101", "torch 2.16.0.dev20261101 is newer than 2.15; CARPOOL_ANY_VERSION=1 tries it all"),
    ],
)
def test_z10_a_torch_is_judged_by_its_first_two_numbers(version: str, says: str) -> None:
    assert supported.torch_trouble(version, is_any=False).startswith(says)
    assert bool(supported.torch_trouble(version, is_any=False)) == bool(says)
    assert supported.torch_trouble(version, is_any=True) == ""


def test_z10_the_injected_file_keeps_to_what_old_pythons_read() -> None:
    """No string that begins with f, no annotation, no `from __future__ import annotations`."""
    tree = ast.parse(INJECTED.read_text(), feature_version=(3, 4))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.AnnAssign | ast.NamedExpr)]
