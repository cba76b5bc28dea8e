from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.desk import Desk


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.close()
