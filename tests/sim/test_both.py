"""The cluster's scheduler and those of its nodes together: placed, queued, refused, left there, lost."""

from __future__ import annotations

import pytest

from carpool.core.cluster.placement.requests import CardSpec, NodeSpec, node_of
from carpool.core.kernel.ids import JobId
from carpool.core.policies.fifo import Fifo
from carpool.core.policies.priority import Priority
from carpool.sim.both import Both, Work
from carpool.units import GIB, SECOND


def nodes(count: int = 2, gib: int = 16) -> list[NodeSpec]:
    return [node_of(f"n{number}", (CardSpec(id=f"GPU-{number}", card_bytes=gib * GIB),)) for number in range(count)]


def work(name: str, gib: int, seconds: int, **more: int) -> Work:
    return Work(id=name, card_bytes=gib * GIB, run_ns=seconds * SECOND, **more)


@pytest.fixture(autouse=True)
def every_step_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """After every fact that has been dealt with, cluster and nodes say the same of every card."""
    happen = Both._happen

    def checked(self: Both, what: str, who: str, version: int) -> None:
        happen(self, what, who, version)
        assert self.disagreements() == []
        self.cluster.check_invariants()

    monkeypatch.setattr(Both, "_happen", checked)


def test_a_job_is_placed_by_the_cluster_and_runs_by_its_node() -> None:
    both = Both(nodes(1), Fifo())
    both.submit(work("a", 4, 10))
    both.submit(work("b", 4, 10))
    story = both.run()
    assert story.of("a") == ["placed on GPU-0", "starts", "ends"]
    assert story.of("b") == ["placed on GPU-0", "starts", "ends"]
    assert both.now == 20 * SECOND, "one after the other, or in turns: a card is one card"


def test_a_job_that_is_queued_on_its_node_is_known_to_be_and_its_wait_is_no_run_time() -> None:
    both = Both(nodes(1), Fifo())
    both.submit_locally("n0", work("local", 12, 30), "GPU-0")
    both.submit(work("a", 8, 10))
    while both.story.of("a")[-1:] != ["placed on GPU-0"] and "queued" not in "".join(both.story.of("a")):
        both._happen(*_next(both))
    queued = both.cluster.picture_job(JobId("a"), now=20 * SECOND)
    assert queued is not None
    assert queued.reason.startswith("it is placed on GPU-0 of n0, and waits in the queue of its node: ")
    assert queued.attained_ns == 0
    story = both.run()
    assert [line.partition(":")[0] for line in story.of("a")] == ["placed on GPU-0", "queued there", "starts", "ends"]
    assert both.now == 40 * SECOND


def _next(both: Both) -> tuple[str, str, int]:
    at_ns, _, what, who, version = both._clock.pop(0)
    both.now = at_ns
    return what, who, version


def test_a_job_that_its_node_refuses_goes_to_another_and_never_back() -> None:
    """The cluster was told that the card of n0 is larger than it is."""
    both = Both(nodes(2), Fifo(), true_bytes={"GPU-0": 4 * GIB})
    both.submit(work("a", 8, 10))
    said = both.run().of("a")
    assert [line.partition(":")[0] for line in said] == [
        "placed on GPU-0",
        "refused there",
        "placed on GPU-1",
        "starts",
        "ends",
    ]


def test_a_job_that_every_node_refuses_is_refused_with_what_the_last_one_said() -> None:
    both = Both(nodes(1), Fifo(), true_bytes={"GPU-0": 4 * GIB})
    both.submit(work("a", 8, 10))
    said = both.run().of("a")
    assert said[-1].startswith("refused: job a can never run: no node holds 1 cards as it wants them; ask for fewer;")
    assert "node n0 said: " in said[-1]


def test_a_job_that_left_its_node_is_placed_again() -> None:
    both = Both(nodes(2), Fifo())
    both.submit(work("a", 8, 10, leaves_ns=4 * SECOND))
    assert both.run().of("a") == ["placed on GPU-0", "starts", "placed on GPU-0", "starts", "ends"]
    assert both.now == 10 * SECOND, "what it had done is not lost"


def test_the_jobs_of_a_lost_node_go_on_elsewhere() -> None:
    both = Both(nodes(2), Fifo())
    both.submit(work("a", 8, 10))
    both.submit(work("b", 12, 10))
    both.lose_node_at("n0", 5 * SECOND)
    story = both.run()
    assert story.of("a")[:3] == ["placed on GPU-0", "starts", "revoked"]
    assert story.of("a")[4:] == ["placed on GPU-1", "starts", "ends"]
    assert story.of("a")[3].startswith("waits: it wants 1 card")
    assert story.of("b") == ["placed on GPU-1", "starts", "ends"]


def test_a_drained_node_suspends_its_job_which_goes_on_elsewhere() -> None:
    both = Both(nodes(2), Fifo())
    both.submit(work("a", 8, 10))
    both.drain_at("n0", 4 * SECOND)
    assert both.run().of("a") == [
        "placed on GPU-0",
        "starts",
        "to leave GPU-0: node n0 is drained",
        "placed on GPU-1",
        "starts",
        "ends",
    ]
    assert both.now == 10 * SECOND + SECOND // 2


def test_an_owner_of_priority_gets_the_card_when_the_other_has_left_it() -> None:
    both = Both(nodes(1), Priority())
    both.submit(work("low", 16, 10, card_milli=1000))
    both.submit(work("high", 16, 5, card_milli=1000, at_ns=2 * SECOND, priority=9))
    story = both.run()
    assert story.of("high") == ["placed on GPU-0", "starts", "ends"]
    assert "to leave GPU-0: job high needs the cards" in story.of("low")
    assert story.of("low")[-1] == "ends"
