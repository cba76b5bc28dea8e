"""The node every test gets: nothing runs in it yet, and nothing is left of it afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.machine import Machine, Population, make_population
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


@pytest.fixture(scope="session")
def population() -> Iterator[Population]:
    """Users that only this run of the tests has, and their Python; skipped where there can be none."""
    yield from make_population()


@pytest.fixture
def machine(population: Population) -> Iterator[Machine]:
    """A machine of several users; its daemon is not started yet."""
    made = Machine(population)
    yield made
    made.close()
