"""Answers in place of a daemon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.wire import framing
from carpool.wire import messages as m
from carpool.wire.places import find_places
from tests.impostor import impostor


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, object]]]:
    """Each call gets the next of these."""
    monkeypatch.setenv("CARPOOL_DIR", str(tmp_path))
    answers: list[dict[str, object]] = []
    with impostor(find_places(), lambda: framing.encode(m.Reply(answer=answers.pop(0), error="", code=0))):
        yield answers
