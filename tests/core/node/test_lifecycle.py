"""Each (state, event) pair is tried: it moves by the table, or is rejected and leaves everything untouched."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import get_args

import pytest

from carpool.core.kernel.ids import DeviceId, JobId, LaneId
from carpool.core.node import lifecycle
from carpool.core.node.effects import Effect, GrantLease, RecallLease, RejectEvent
from carpool.core.node.events import (
    CancelAsked,
    CheckpointAsked,
    JobAdopted,
    JobDetached,
    JobEvent,
    JobExited,
    JobForgotten,
    JobParked,
    JobResized,
    JobSubmitted,
    JobUnparked,
    LeaseAsked,
    LeaseReturned,
    MigrateAsked,
    MoveFailed,
    NeedsMeasured,
    ProgramStarted,
    ProgressSeen,
    ResumeAsked,
    StartPutOff,
    SuspendAsked,
)
from carpool.core.node.lifecycle import JOB_MOVES, LEASE_MOVES, may_move
from carpool.core.node.model import (
    ENDED,
    HOLDING,
    RESIDENT,
    WANTING,
    Device,
    Job,
    JobSpec,
    JobState,
    Lane,
    Lease,
    LeaseState,
    Tenant,
)
from carpool.core.node.node import Node
from carpool.core.node.settings import Settings
from carpool.errors import InternalError
from carpool.policies import POLICIES
from carpool.units import GIB, MS
from tests.core.node.driver import CoreDriver, MakeCore, needs

J = JobId("j")
SPEC = JobSpec(name="j")
KNOWN = needs(GIB, GIB)
EVENTS: tuple[type, ...] = get_args(JobEvent)
EFFECTS: tuple[type, ...] = get_args(Effect)


def event_of(kind: type) -> JobEvent:
    """An event of this kind about job j that asks for nothing unusual."""
    made: dict[type, JobEvent] = {
        JobSubmitted: JobSubmitted(job=J, spec=SPEC),
        JobAdopted: JobAdopted(
            job=J, spec=SPEC, device=DeviceId("gpu0"), holding=False, steps=0, live_bytes=0, needs=None
        ),
        ProgramStarted: ProgramStarted(job=J),
        StartPutOff: StartPutOff(job=J, reason="no descriptor is left"),
        LeaseAsked: LeaseAsked(job=J),
        LeaseReturned: LeaseReturned(job=J, wants_more=True, steps=9),
        NeedsMeasured: NeedsMeasured(job=J, needs=KNOWN),
        ProgressSeen: ProgressSeen(job=J, steps=9, cpu_ns=MS, live_bytes=GIB),
        JobDetached: JobDetached(job=J, reason="told to"),
        JobExited: JobExited(job=J, code=0),
        CancelAsked: CancelAsked(job=J),
        JobResized: JobResized(job=J, cap_bytes=15 * GIB, weight_milli=2000, share_milli=(100, 500)),
        SuspendAsked: SuspendAsked(job=J),
        ResumeAsked: ResumeAsked(job=J),
        MigrateAsked: MigrateAsked(job=J, device=DeviceId("gpu1")),
        CheckpointAsked: CheckpointAsked(job=J, by="root"),
        JobParked: JobParked(job=J, parked_bytes=GIB, resident_bytes=0, move_ns=MS),
        JobUnparked: JobUnparked(job=J, move_ns=MS),
        MoveFailed: MoveFailed(job=J, reason="the disk is full"),
        JobForgotten: JobForgotten(job=J),
    }
    return made[kind]


# --- how job j gets into each state, beside job z that wants the lane too ----------------------------------


def _queued(core: CoreDriver) -> None:
    core.settle_in("z", needs(GIB, 15 * GIB))
    core.submit_known("j", KNOWN)


def _starting(core: CoreDriver) -> None:
    core.settle_in("z", KNOWN)
    core.submit_known("j", KNOWN)


def _waiting(core: CoreDriver) -> None:
    _starting(core)
    core.ask("j")


def _profiling(core: CoreDriver) -> None:
    core.submit_known("z", KNOWN)
    core.submit("j", cap_bytes=4 * GIB)
    core.ask("j")
    core.ask("z")


def _running(core: CoreDriver) -> None:
    core.submit_known("j", KNOWN)
    core.ask("j")
    core.settle_in("z", KNOWN)


def _idle(core: CoreDriver) -> None:
    _running(core)
    core.give_back("j", wants_more=False)


def _blocked(core: CoreDriver) -> None:
    _running(core)
    core.block("j", 2 * GIB, 20 * GIB)


def _parking(core: CoreDriver) -> None:
    _waiting(core)
    core.suspend("j")


def _parked(core: CoreDriver) -> None:
    _parking(core)
    core.parked("j", GIB)


def _unparking(core: CoreDriver) -> None:
    _parked(core)
    core.resume("j")


def _unmanaged(core: CoreDriver) -> None:
    _starting(core)
    core.detach("j")


def _finished(core: CoreDriver) -> None:
    _starting(core)
    core.exit("j", 0)


def _failed(core: CoreDriver) -> None:
    _starting(core)
    core.exit("j", 1)


def _cancelled(core: CoreDriver) -> None:
    _starting(core)
    core.cancel("j")
    core.exit("j", -15)


WAYS: dict[JobState, Callable[[CoreDriver], None]] = {
    JobState.QUEUED: _queued,
    JobState.STARTING: _starting,
    JobState.WAITING: _waiting,
    JobState.PROFILING: _profiling,
    JobState.RUNNING: _running,
    JobState.BLOCKED: _blocked,
    JobState.IDLE: _idle,
    JobState.PARKING: _parking,
    JobState.PARKED: _parked,
    JobState.UNPARKING: _unparking,
    JobState.UNMANAGED: _unmanaged,
    JobState.FINISHED: _finished,
    JobState.FAILED: _failed,
    JobState.CANCELLED: _cancelled,
}
# What the scheduler orders in the same call, because of what the event said.
FOLLOWS: dict[tuple[JobState, type], JobState] = {
    (JobState.WAITING, SuspendAsked): JobState.PARKING,
    (JobState.WAITING, MigrateAsked): JobState.PARKING,
    (JobState.BLOCKED, ProgressSeen): JobState.IDLE,  # it waits for no memory any more
    (JobState.PARKED, ResumeAsked): JobState.UNPARKING,
    (JobState.PARKING, LeaseReturned): JobState.PARKING,  # it is suspended and waits again
    (JobState.PARKED, LeaseReturned): JobState.PARKING,
}
PAIRS = [(state, kind) for state in JobState for kind in EVENTS]


def ready(make_core: MakeCore, state: JobState) -> CoreDriver:
    core = make_core("fair")
    WAYS[state](core)
    core.tick(10 * MS)
    assert core.state("j") is state
    return core


@pytest.mark.parametrize(("state", "kind"), PAIRS, ids=[f"{state}-{kind.__name__}" for state, kind in PAIRS])
def test_an_event_moves_a_job_by_the_table_or_is_rejected_and_changes_nothing(
    make_core: MakeCore, state: JobState, kind: type
) -> None:
    core = ready(make_core, state)
    if kind is MigrateAsked and may_move(state, kind):
        core.add_device("gpu1", 16 * GIB)
    before = core.scheduler.picture(now=core.now)
    wakeup = core.scheduler.next_wakeup()
    effects = core.send(event_of(kind))
    if kind is JobForgotten and state in ENDED:
        assert core.scheduler.state_of(J) is None
        return
    if may_move(state, kind):
        expected = JOB_MOVES[(state, kind)]
        if kind is LeaseReturned:
            expected = JobState.WAITING  # the event said that it wants more
        assert core.state("j") is FOLLOWS.get((state, kind), expected)
        assert not [effect for effect in effects if isinstance(effect, RejectEvent)]
        return
    [rejection] = effects
    assert isinstance(rejection, RejectEvent)
    assert (rejection.job, rejection.event) == (J, kind.__name__)
    assert rejection.reason
    assert core.scheduler.picture(now=core.now) == before
    assert core.scheduler.next_wakeup() == wakeup


@pytest.mark.parametrize("state", [state for state in JobState if may_move(state, LeaseReturned)])
def test_a_returned_turn_that_is_not_wanted_again_makes_a_job_idle(make_core: MakeCore, state: JobState) -> None:
    core = ready(make_core, state)
    core.give_back("j", wants_more=False)
    assert core.state("j") is JobState.IDLE


@pytest.mark.parametrize("state", [state for state in JobState if state not in ENDED])
def test_a_job_that_is_not_over_can_exit_at_any_time_and_leaves_nothing_behind(
    make_core: MakeCore, state: JobState
) -> None:
    core = ready(make_core, state)
    core.exit("j", 1)
    job = core.job("j")
    assert (job.state, job.lane, job.promised_bytes) == (JobState.FAILED, None, 0)
    assert "j" not in core.holders()
    assert all("j" not in lane for lane in core.lanes())


@pytest.mark.parametrize("state", sorted(ENDED))
@pytest.mark.parametrize("kind", EVENTS, ids=[kind.__name__ for kind in EVENTS])
def test_nothing_moves_a_job_that_is_over(state: JobState, kind: type) -> None:
    assert may_move(state, kind) == (kind is JobForgotten), "but it can be forgotten"


def test_the_sets_of_states_are_those_of_the_words() -> None:
    assert {JobState.WAITING, JobState.BLOCKED} | HOLDING == WANTING
    assert set(JobState) == ENDED | RESIDENT | {JobState.QUEUED}
    assert not ENDED & RESIDENT


def test_every_state_is_reached_by_the_table() -> None:
    moved = {target for (state, _), target in JOB_MOVES.items() if target is not state}
    reached = moved | {JobState.PROFILING, JobState.BLOCKED, JobState.FAILED, JobState.CANCELLED}
    assert reached == set(JobState), "a start that was put off leads back to the queue"


# --- orders of the scheduler itself: an illegal one is a bug -----------------------------------------------


def node_with(state: JobState, lease: LeaseState | None) -> tuple[Node, Job]:
    lane = Lane(id=LaneId("gpu0/1"), jobs=[J], holder=J if lease is not None else None)
    tenants = {SPEC.tenant: Tenant(id=SPEC.tenant)}
    device = Device(id=DeviceId("gpu0"), capacity_bytes=GIB, lanes={lane.id: lane}, promised={J: 0}, tenants=tenants)
    job = Job(id=J, spec=SPEC, arrived_ns=0, state=state, device=device.id, lane=lane.id)
    if lease is not None:
        job.lease = Lease(state=lease, lane=lane.id, granted_ns=0)
    node = Node(policy=POLICIES["fair"], settings=Settings(), jobs={J: job}, devices={device.id: device})
    if state is JobState.QUEUED:
        node.queue.append(J)
    return node, job


@pytest.mark.parametrize("state", list(JobState))
@pytest.mark.parametrize("cause", EVENTS + EFFECTS, ids=lambda cause: cause.__name__)
def test_a_job_is_moved_only_by_the_table(state: JobState, cause: type) -> None:
    node, job = node_with(state, None)
    if (state, cause) in JOB_MOVES:
        lifecycle.move(node, job, cause, now=5)
        assert (job.state, job.state_since_ns) == (JOB_MOVES[(state, cause)], 5)
        return
    before = copy.deepcopy(job)
    with pytest.raises(InternalError, match=f"cannot go from {state} by {cause.__name__}"):
        lifecycle.move(node, job, cause, now=5)
    assert job == before


@pytest.mark.parametrize("lease", [None, *LeaseState], ids=str)
@pytest.mark.parametrize("cause", EVENTS + EFFECTS, ids=lambda cause: cause.__name__)
def test_a_lease_is_moved_only_by_the_table(lease: LeaseState | None, cause: type) -> None:
    node, job = node_with(JobState.RUNNING, lease)
    lane = node.lane_of(job)
    assert lane is not None
    if (lease, cause) not in LEASE_MOVES:
        before = copy.deepcopy(job)
        with pytest.raises(InternalError, match=f"cannot go from {lease} by {cause.__name__}"):
            lifecycle.move_lease(node, job, cause, now=5)
        assert (job, lane.holder) == (before, J if lease is not None else None)
        return
    lifecycle.move_lease(node, job, cause, now=5)
    after = LEASE_MOVES[(lease, cause)]
    assert (job.lease.state if job.lease is not None else None) == after
    assert lane.holder == (J if after is not None else None)
    if cause is GrantLease:
        assert job.lease is not None and job.lease.granted_ns == 5
    if cause is RecallLease:
        assert job.lease is not None and job.lease.recalled_ns == 5


def test_a_lane_that_is_held_is_not_granted() -> None:
    node, job = node_with(JobState.WAITING, None)
    lane = node.lane_of(job)
    assert lane is not None
    lane.holder = JobId("somebody else")
    with pytest.raises(InternalError, match="not free"):
        lifecycle.move_lease(node, job, GrantLease, now=5)


@pytest.mark.parametrize("lease", list(LeaseState))
@pytest.mark.parametrize("ending", ["give_back", "exit", "detach"])
def test_a_turn_ends_in_every_way_held_or_recalled(make_core: MakeCore, lease: LeaseState, ending: str) -> None:
    core = ready(make_core, JobState.RUNNING)
    if lease is LeaseState.RECALLED:
        core.tick(100 * MS)
        assert core.recalled == ["j"]
    getattr(core, ending)("j")
    assert core.holders() == ["z"]
