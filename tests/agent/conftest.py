from __future__ import annotations

from collections.abc import Iterator

import pytest

from carpool.agent.turns import hot_path
from tests.agent.fake_daemon import FakeDaemon


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    made = FakeDaemon()
    yield made
    made.close()


@pytest.fixture(params=["c", "python"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The hot part of the points, in C and in Python: a test that uses this runs with both."""
    kind: str = request.param
    if kind == "python":
        monkeypatch.setattr(hot_path, "native", None)
    elif hot_path.native is None:
        pytest.skip("the C points are not built: they are NOT tested; install gcc, then 'make native'")
    return kind


@pytest.fixture(autouse=True)
def nobody_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner of these tests has threads that no program has; test_unknown_threads.py starts fresh Pythons."""
    monkeypatch.setattr("carpool.agent.threads.unknown_in_the_way", str)
