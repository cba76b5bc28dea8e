"""The door: refusals in words, events that make no sense, and every pair of a job's state and an event."""

from __future__ import annotations

from typing import get_args

import pytest

from carpool.core.cluster.events import (
    Event,
    JobArrived,
    JobEnded,
    JobFound,
    JobLeft,
    JobQueued,
    JobRefused,
    JobStarted,
    JobSuspended,
    NodeAdded,
    NodeCordoned,
    NodeDrained,
    NodeRemoved,
    NodeUncordoned,
    RatesMeasured,
    ShareGiven,
    ShareWithdrawn,
    SyncFinished,
    SyncStarted,
    Tick,
    WeightGiven,
    WorkLost,
)
from carpool.core.cluster.inventory import CardInventory
from carpool.core.cluster.model import ClusterSettings, State
from carpool.core.cluster.placement.fleet import Fleet
from carpool.core.cluster.placement.placer import Placer
from carpool.core.cluster.placement.requests import NodeSpec, Place, Request
from carpool.core.cluster.placement.rules import make_rule
from carpool.core.cluster.placer_inventory import PlacerInventory
from carpool.core.cluster.scheduler import ClusterScheduler
from carpool.core.kernel.ids import JobId, TenantId
from carpool.errors import InternalError
from carpool.policies import POLICIES
from carpool.units import SECOND
from tests.core.cluster.desk import Desk


def test_a_job_larger_than_the_cluster_is_refused_in_words() -> None:
    desk = Desk("fifo", nodes=2, cards=4)
    assert desk.come("big", 4, 4, 4) == [
        "refuse job big can never run: it wants 12 cards, the cluster has 8; ask for fewer"
    ]
    assert desk.come("wide", 5) == [
        "refuse job wide can never run: no node holds 5 cards as it wants them; ask for fewer"
    ]
    assert desk.state("big") is None


def test_a_tenant_without_a_share_is_refused_in_words() -> None:
    desk = Desk("fifo", cards=4, a=4)
    assert desk.come("x", tenant="b") == [
        "refuse job x can never run: tenant b has no share of this cluster; give it one"
    ]


def test_shares_beyond_the_cluster_are_rejected_with_the_numbers() -> None:
    desk = Desk("fifo", cards=4, a=3)
    said = desk.tell(ShareGiven(tenant=TenantId("b"), share_milli=2000))
    assert said == ["reject ShareGiven: the shares are 5 cards, the cluster has 4"]
    said = desk.tell(ShareGiven(tenant=TenantId("b"), share_milli=-1000))
    assert said == ["reject ShareGiven: tenant b: a share of -1 cards is below 0"]
    assert desk.tell(ShareGiven(tenant=TenantId("b"), share_milli=1000)) == []


def test_a_job_without_members_or_with_a_weight_of_nothing_is_refused_in_words() -> None:
    desk = Desk("fair", cards=4)
    empty = JobArrived(job=JobId("x"), members=())
    assert desk.tell(empty) == ["refuse job x can never run: it has no members; name what it wants of each node"]
    assert desk.come("x", weight=0)[0].startswith("refuse job x can never run: its weight is above 0")
    assert desk.come("x", run=-1)[0].startswith("refuse job x can never run: its weight is above 0")
    assert desk.come("x") == ["place x 0:0"]


def test_time_never_goes_back() -> None:
    desk = Desk("fifo")
    desk.come("a", at=5)
    with pytest.raises(InternalError, match="time went back"):
        desk.tell(Tick(), at=4)


def test_lost_work_counts_as_work_left() -> None:
    desk = Desk("srtf", cards=1)
    desk.come("a", run=100)
    assert desk.tell(WorkLost(lost_ns={JobId("a"): 60 * SECOND}), at=50) == []
    assert desk.come("b", run=100, at=50) == ["park a for b", "place b 0:0"]


# --- every state, every event ----------------------------------------------------------------------------------


def in_state(state: State) -> Desk:
    """A desk where the job x is in this state."""
    if state is State.RIDING:
        desk = Desk("pack", cards=1)
        desk.come("host", program="a")
        desk.come("x", program="b", at=1)
        return desk
    desk = Desk("priority", cards=1, settings=ClusterSettings(parks_at_once=False))
    if state is State.WAITING:
        desk.come("first", priority=9)
        desk.come("x")
    elif state is State.COMING:
        desk.come("first")
        desk.come("x", priority=9)
    else:
        desk.come("x")
        if state is State.LEAVING:
            desk.come("next", priority=9)
    return desk


LIVE = [State.WAITING, State.COMING, State.RUNNING, State.RIDING, State.LEAVING]


@pytest.mark.parametrize("state", LIVE)
def test_a_second_arrival_is_rejected_in_every_state(state: State) -> None:
    desk = in_state(state)
    assert desk.state("x") is state
    assert desk.come("x", at=2) == ["reject JobArrived: a job with this id is here already"]
    assert desk.state("x") is state


@pytest.mark.parametrize("state", LIVE)
def test_parked_is_believed_only_of_a_job_that_was_told_to_leave(state: State) -> None:
    desk = in_state(state)
    effects = desk.parked("x", at=2)
    if state is State.LEAVING:
        assert effects == ["place next 0:0"]
        assert desk.state("x") is State.WAITING
    else:
        assert effects == [f"reject JobSuspended: the job is {state}"]
        assert desk.state("x") is state


@pytest.mark.parametrize("state", LIVE)
def test_a_job_may_end_in_every_state_and_leaves_nothing_behind(state: State) -> None:
    desk = in_state(state)
    desk.end("x", at=2)
    assert desk.state("x") is None
    desk.come("y", priority=99, at=3)
    assert desk.state("y") in (State.RUNNING, State.COMING, State.RIDING)


def test_events_of_nobody_are_rejected() -> None:
    desk = Desk("fifo")
    assert desk.parked("x") == ["reject JobSuspended: no such job"]
    assert desk.end("x") == ["reject JobEnded: no such job"]


def test_work_lost_by_a_job_that_is_gone_is_rejected_and_that_of_the_others_counts() -> None:
    desk = Desk("srtf", cards=1)
    desk.come("a", run=100)
    lost = {JobId("gone"): 1, JobId("a"): 60 * SECOND}
    assert desk.tell(WorkLost(lost_ns=lost), at=50) == ["reject WorkLost: no such job"]
    assert desk.come("b", run=100, at=50) == ["park a for b", "place b 0:0"]
    said = desk.tell(WorkLost(lost_ns={JobId("b"): -1}), at=60)
    assert said == ["reject WorkLost: it cannot have lost -1 ns of work"]


@pytest.mark.parametrize(
    ("programs", "rates_milli", "reason"),
    [
        (("a", "b"), (500,), "2 programs and 1 rates: one rate for each of at least one program"),
        ((), (), "0 programs and 0 rates: one rate for each of at least one program"),
        (("b", "a"), (500, 500), "the programs b, a are not sorted"),
        (("a", "b"), (500, 0), "a rate of 0 thousandths: each is above 0"),
    ],
)
def test_measurements_that_cannot_be_are_rejected(
    programs: tuple[str, ...], rates_milli: tuple[int, ...], reason: str
) -> None:
    desk = in_state(State.RIDING)
    event = RatesMeasured(size_milli=1000, programs=programs, rates_milli=rates_milli)
    assert desk.tell(event, at=2) == [f"reject RatesMeasured: {reason}"]


ONE = Request(cards=1, card_milli=1000)
EVERY_EVENT: list[Event] = [
    JobArrived(job=JobId("x"), members=(ONE,)),
    JobSuspended(job=JobId("x")),
    JobEnded(job=JobId("x")),
    WorkLost(lost_ns={JobId("x"): SECOND}),
    RatesMeasured(size_milli=1000, programs=("a", "b"), rates_milli=(10, 10)),
    ShareGiven(tenant=TenantId("default"), share_milli=1000),
    WeightGiven(tenant=TenantId("default"), weight_milli=1000),
    JobFound(job=JobId("x"), members=(ONE,), places=(Place(node="n0", cards=("n0/0",)),)),
    JobFound(job=JobId("x"), members=(ONE,), places=(Place(node="n9", cards=("card",)),)),
    JobFound(job=JobId("x"), members=(ONE,), places=()),
    JobFound(job=JobId("x"), members=(ONE,), places=(Place(node="n0", cards=("n0/0",)),), is_leaving=True),
    JobFound(job=JobId("x"), members=(ONE,), places=(Place(node="n0", cards=("n0/0",)),), host=JobId("host")),
    JobQueued(job=JobId("x"), reason="no room"),
    JobStarted(job=JobId("x")),
    JobRefused(job=JobId("x"), node="n0", reason="too large"),
    JobRefused(job=JobId("x"), node="n7", reason="too large"),
    JobLeft(job=JobId("x"), reason="sent away"),
    ShareWithdrawn(tenant=TenantId("default")),
    NodeCordoned(name="n0"),
    NodeCordoned(name="n0", card="n0/0"),
    NodeCordoned(name="n0", card="other"),
    NodeCordoned(name="n1"),
    NodeDrained(name="n0"),
    NodeDrained(name="n0", card="n0/0", by_ns=400 * SECOND),
    NodeUncordoned(name="n0"),
    NodeUncordoned(name="n0", card="n0/0"),
    SyncStarted(),
    SyncFinished(),
    NodeAdded(node=NodeSpec(name="n0", cards=1)),
    NodeAdded(node=NodeSpec(name="n1", cards=1)),
    NodeRemoved(name="n0"),
    NodeRemoved(name="n1"),
    Tick(),
]


def test_every_kind_of_event_is_among_those_tried() -> None:
    assert {type(event) for event in EVERY_EVENT} == set(get_args(Event))


@pytest.mark.parametrize("event", EVERY_EVENT, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("state", [None, *LIVE])
def test_every_event_may_come_in_every_state_once_and_again(state: State | None, event: Event) -> None:
    """No exception, and all rules hold; what makes no sense comes back as a rejection with a sentence."""
    desk = in_state(state) if state is not None else Desk("priority", cards=1)
    for at in (2, 2, 500):
        said = desk.tell(event, at=at)
        assert all(len(each.partition(": ")[2]) > 5 for each in said if each.startswith("reject"))
    desk.come("y", priority=99, at=501)
    assert desk.state("y") is not None or isinstance(event, NodeRemoved)


@pytest.mark.parametrize("first", EVERY_EVENT, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("state", [None, *LIVE])
def test_every_pair_of_events_may_come_in_every_state(state: State | None, first: Event) -> None:
    """The rules hold after each, whatever came before."""
    for second in EVERY_EVENT:
        desk = in_state(state) if state is not None else Desk("priority", cards=1)
        for at, event in ((2, first), (3, second), (4, first), (500, Tick())):
            desk.tell(event, at=at)


def test_a_job_that_comes_to_no_boundary_in_time_is_revoked() -> None:
    desk = in_state(State.LEAVING)
    assert desk.tick() == (60, ["revoke x", "place next 0:0"])


# --- the two kinds of inventories ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["fifo", "las", "srtf"])
def test_counted_cards_and_the_placer_give_the_same_effects_for_whole_cards(order: str) -> None:
    nodes = [NodeSpec(name=f"n{number}", cards=4) for number in range(3)]
    said = []
    for inventory in (CardInventory(nodes), PlacerInventory(Placer(Fleet(nodes), make_rule("best_fit")))):
        desk = Desk(order)
        desk.scheduler = ClusterScheduler(inventory, POLICIES[order])
        said.append([desk.come(f"j{n}", 1 + n * 5 % 4, at=n, run=3 + n * 7 % 13) for n in range(30)])
        said[-1] += [desk.end(f"j{n}", at=40 + n) for n in range(0, 30, 3) if desk.state(f"j{n}")]
    assert said[0] == said[1]


def test_shares_of_a_card_are_placed_side_by_side_and_parked_for_one_that_wants_it_whole() -> None:
    fleet = Fleet([NodeSpec(name="n", cards=1)])
    desk = Desk("priority")
    desk.scheduler = ClusterScheduler(PlacerInventory(Placer(fleet, make_rule("best_fit"))), POLICIES["priority"])
    for name in "ab":
        half = JobArrived(job=JobId(name), members=(Request(cards=1, card_milli=500),))
        assert desk.tell(half) == [f"place {name} 0:0"]
    assert desk.come("c", 1, priority=1, at=1) == ["park a for c", "park b for c", "place c 0:0"]
    fleet.check_invariants()
