"""Random jobs of sizes that fit badly on their nodes: every decision comes to an end, and all rules hold after it."""

from __future__ import annotations

from random import Random

import pytest

from carpool.core.cluster.orders.base import ORDERS
from tests.core.cluster.desk import Desk

STEPS = 100


@pytest.mark.timeout(30)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("order", ORDERS)
def test_sizes_that_fit_badly_do_not_go_round_for_ever(order: str, seed: int) -> None:
    draws = Random(seed)
    desk = Desk(order, nodes=3, cards=5)
    live: list[str] = []
    for step in range(STEPS):
        running = [job for job in live if str(desk.state(job)) in ("running", "riding")]
        if running and draws.random() < 0.45:
            job = draws.choice(running)
            desk.end(job, at=step)
            live.remove(job)
        else:
            desk.come(
                f"j{step}", draws.randint(1, 5), at=step, priority=draws.randint(0, 3), run=draws.randint(1, 500)
            )
            live.append(f"j{step}")
