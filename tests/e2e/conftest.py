"""The node every test gets: nothing runs in it yet, and nothing is left of it afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.node import Node


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.close()


@pytest.fixture(scope="module")
def module_node() -> Iterator[Node]:
    """One node for all tests of a module; for what only looks at the same runs."""
    made = Node()
    yield made
    made.close()
