from __future__ import annotations

from collections.abc import Iterator

import pytest

from carpool.core.node.settings import Settings
from carpool.units import GIB
from tests.core.node.driver import EXACT, CoreDriver, MakeCore


@pytest.fixture
def make_core() -> Iterator[MakeCore]:
    """Makes drivers; at the end of the test every rule of each must still hold."""
    made: list[CoreDriver] = []

    def make(
        policy: str = "fair", *, settings: Settings = EXACT, capacity_bytes: int = 16 * GIB, devices: int = 1
    ) -> CoreDriver:
        made.append(CoreDriver(policy, settings=settings, capacity_bytes=capacity_bytes, devices=devices))
        return made[-1]

    yield make
    for core in made:
        core.scheduler.check_invariants()
        assert core.scheduler.picture(now=core.now)


@pytest.fixture
def core(make_core: MakeCore) -> CoreDriver:
    """One device of 16 GiB under the fair policy."""
    return make_core()
