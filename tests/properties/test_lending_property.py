"""The contract of lending on random tenants: owners have their cards in time, no work is lost, nobody goes round."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.cluster.lending import DEADLINE_NS, World

TRACES = 1000


def evicts_in_a_circle(world: World) -> bool:
    """Whether two jobs evicted each other with no job coming, ending or changing its level in between."""
    evictions = set(world.evictions)
    return any((when, whom, who) in evictions for when, who, whom in evictions)


@pytest.mark.slow
def test_in_a_thousand_random_traces_every_owner_has_its_cards_within_the_deadline() -> None:
    claims = 0
    for seed in range(TRACES):
        world = World(seed).run()
        claims += len(world.waits_ns)
        assert max(world.waits_ns, default=0) <= DEADLINE_NS, seed
        assert not world.revoked, seed
    assert claims > TRACES / 2  # the traces are crowded enough to mean something


@given(seed=st.integers(1_000, 1_000_000), order=st.sampled_from(["fifo", "las", "priority", "srtf", "tiresias"]))
@settings(max_examples=60, deadline=None)
def test_no_two_jobs_evict_each_other_in_a_loop_and_all_work_is_done(seed: int, order: str) -> None:
    world = World(seed, order).run()
    assert not evicts_in_a_circle(world)
    assert all(person.ended and person.left_ns == 0 for person in world.jobs.values())
