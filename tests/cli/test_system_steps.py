"""What is said of the carpool that is to be installed for all (rule I25)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from carpool.cli import system_steps


def facts_of(path: Path, changed: dict[str, tuple[int, int, int]]) -> os.stat_result:
    """As if everything were root's, but for these."""
    mode, uid, gid = changed.get(str(path), (0o040755, 0, 0))
    return os.stat_result((mode, 0, 0, 1, uid, gid, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("facts", "is_open"),
    [
        ((0o040755, 0, 0), False),
        ((0o040775, 0, 0), False),
        ((0o041777, 0, 0), False),
        ((0o040777, 0, 0), True),
        ((0o040775, 0, 50), True),
        ((0o040755, 1000, 0), True),
    ],
)
def test_i25_who_can_write_what_is_installed_is_said(
    monkeypatch: pytest.MonkeyPatch, facts: tuple[int, int, int], is_open: bool
) -> None:
    changed = {"/opt/carpool": facts}
    monkeypatch.setattr(Path, "stat", lambda self, **_: facts_of(self, changed))
    monkeypatch.setattr(Path, "resolve", lambda self, **_: self)
    monkeypatch.setattr(system_steps, "carpool", SimpleNamespace(__file__="/opt/carpool/lib/carpool/__init__.py"))
    monkeypatch.setattr(sys, "executable", "/opt/carpool/bin/python")
    said = system_steps.warnings()
    assert len(said) == is_open
    assert not is_open or said[0].startswith("/opt/carpool can be written by others than root")
