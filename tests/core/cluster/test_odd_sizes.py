"""Jobs of sizes that fit badly on their nodes: every decision ends, and who is owed cards has them if that can be."""

from __future__ import annotations

from random import Random

import pytest

from carpool.policies import names_for
from tests.core.cluster.desk import Desk

STEPS = 100


@pytest.mark.timeout(30)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("order", names_for("cluster"))
def test_o6_sizes_that_fit_badly_do_not_go_round_for_ever(order: str, seed: int) -> None:
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


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("order", ["fifo", "las", "priority", "srtf"])
def test_a_job_that_is_owed_cards_waits_only_if_no_node_could_hold_it_without_loans_and_smaller_jobs(
    order: str, seed: int
) -> None:
    """O2 where sizes do not nest. No more can be promised: four jobs of 3 never fit on three nodes of 5."""
    draws = Random(seed)
    cards = draws.choice([5, 7])
    desk = Desk(order, nodes=3, cards=cards, a=cards, b=cards + 2, c=cards - 2)
    live: list[str] = []
    for step in range(STEPS):
        if live and draws.random() < 0.45:
            job = live.pop(draws.randrange(len(live)))
            desk.end(job, at=step)
        else:
            size, tenant = draws.randint(1, cards), draws.choice("abc")
            desk.come(
                f"j{step}", size, at=step, tenant=tenant, run=draws.randint(1, 500), priority=draws.randint(0, 3)
            )
            live.append(f"j{step}")
        assert not find_wronged(desk, cards)


def find_wronged(desk: Desk, cards: int) -> list[str]:
    """The jobs that fit into their share, have no cards, and could have some on a node."""
    cluster = desk.scheduler._cluster
    wronged: list[str] = []
    for pool in cluster.pools.values():
        for job in pool.waiting:
            if pool.owns(job, job.key, cluster.now):
                for jobs in cluster.occupancy.on_node:
                    kept = [each.size_milli for each in jobs if each.is_owned and each.size_milli >= job.size_milli]
                    if sum(kept) + job.size_milli <= 1000 * cards:
                        wronged.append(job.id)
    return wronged
