"""What every test of the C guests needs: a job's shared page, and a place for the stand-in driver's books."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.wire.page import Page
from tests.agent.fake_daemon import FakeDaemon


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    page = Page.create(tmp_path / "page")
    yield page
    page.close()


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    """The daemon's side, played by the test; whoever was connected may be gone when it closes."""
    daemon = FakeDaemon()
    yield daemon
    daemon.close()


@pytest.fixture
def books(tmp_path: Path) -> Path:
    return tmp_path / "books"
