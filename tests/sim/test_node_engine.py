"""The node in virtual time: the daemon's own scheduler, scripted jobs, and figures that can be computed by hand."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import get_args

import pytest

from carpool.core.kernel.ids import DeviceId, JobId, LaneId
from carpool.core.node.effects import (
    CloseJob,
    DenyMemory,
    Effect,
    ExplainWait,
    GrantLease,
    MoveJob,
    NameHog,
    ParkJob,
    RecallLease,
    RefuseJob,
    RejectEvent,
    RememberJob,
    ResizeLane,
    RevokeLease,
    SetCap,
    SetCompute,
    StartJob,
    StopJob,
    TrimJob,
    UnparkJob,
)
from carpool.core.node.events import Event, NeedsMeasured, ProgramStarted
from carpool.core.node.model import History, HogStep, JobSpec, JobState, Needs
from carpool.core.node.settings import Settings
from carpool.errors import InternalError
from carpool.sim.ideal import Work, mean_completion_least, shared_completions
from carpool.sim.node_engine import NodeEngine
from carpool.sim.outcome import Outcome
from carpool.sim.scripts import Machine, Script
from carpool.sim.workload import lognormal, script_of
from carpool.units import GIB, MIB, MS, SECOND

CARD = Machine(devices=(("card", 16 * GIB),))


def script(name: str, *, steps: int, at: int = 0, step_ms: int = 10, size: int = MIB, busy: int = 1000) -> Script:
    return Script(
        id=name,
        submit_ns=at * MS,
        spec=JobSpec(name=name, steps=steps, fingerprint=name),
        needs=Needs(persistent_bytes=size, ephemeral_bytes=MIB),
        steps=steps,
        step_ns=step_ms * MS,
        busy_milli=busy,
        is_known=True,
    )


def ends(outcome: Outcome) -> dict[str, int]:
    return {job.id: job.end_ns // MS for job in outcome.jobs}


def test_first_come_first_served_runs_one_after_the_other() -> None:
    outcome = NodeEngine("fifo", CARD).run([script("a", steps=10), script("b", steps=5, at=1)])
    assert ends(outcome) == {"a": 100, "b": 150}
    assert outcome.busy_milli_ns == 150 * MS * 1000
    assert [(span.job, span.from_ns // MS, span.to_ns // MS) for span in outcome.spans] == [
        ("a", 0, 100),
        ("b", 100, 150),
    ]


def test_jobs_of_one_moment_come_in_their_order_whatever_they_are_called() -> None:
    names = [f"job-{number}" for number in range(12)]
    outcome = NodeEngine("fifo", CARD).run([script(name, steps=2) for name in names])
    assert [span.job for span in outcome.spans] == names


def test_a_short_job_gets_the_turn_at_the_next_boundary_after_the_quantum() -> None:
    settings = Settings(quantum_ns=20 * MS)
    outcome = NodeEngine("srtf", CARD, settings=settings).run([script("a", steps=100), script("b", steps=2, at=41)])
    assert ends(outcome) == {"a": 1020, "b": 70}  # told at 41 ms, given back at 50
    assert {job.id: job.preemptions for job in outcome.jobs} == {"a": 1, "b": 0}


def test_a_hand_over_costs_what_the_machine_says() -> None:
    machine = replace(CARD, switch_ns=MS)
    assert ends(NodeEngine("fifo", machine).run([script("a", steps=10), script("b", steps=5)])) == {
        "a": 101,
        "b": 152,
    }


def test_starting_takes_the_time_the_script_says_while_others_compute() -> None:
    jobs = [replace(script("a", steps=10), start_ns=25 * MS), script("b", steps=5)]
    outcome = NodeEngine("fifo", CARD).run(jobs)
    assert {span.job: span.from_ns // MS for span in reversed(outcome.spans)} == {"b": 0, "a": 30}
    assert outcome.makespan_ns // MS == 150


def test_a_job_without_room_waits_until_another_ends() -> None:
    jobs = [script("a", steps=10, size=10 * GIB), script("b", steps=5, size=10 * GIB)]
    outcome = NodeEngine("fair", CARD).run(jobs)
    assert ends(outcome) == {"a": 100, "b": 150}
    assert outcome.refused == ()


def test_a_job_that_can_never_fit_is_refused() -> None:
    outcome = NodeEngine("fifo", CARD).run([script("a", steps=10), script("huge", steps=1, size=17 * GIB)])
    assert ends(outcome) == {"a": 100}
    assert [job for job, _ in outcome.refused] == ["huge"]


def test_jobs_side_by_side_share_the_device_only_where_they_need_it() -> None:
    half = [script("a", steps=20, busy=500), script("b", steps=20, busy=500)]
    assert max(ends(NodeEngine("pack", CARD).run(half)).values()) == 200  # as if each were alone
    whole = [script("a", steps=20), script("b", steps=20)]
    assert max(ends(NodeEngine("pack", CARD).run(whole)).values()) == 400


def test_memory_held_is_what_stays_and_the_scratch_of_who_computes() -> None:
    outcome = NodeEngine("fifo", CARD).run([script("a", steps=10)])
    assert outcome.held_byte_ns == 2 * MIB * 100 * MS


def test_shortest_first_and_fair_come_close_to_their_ideals() -> None:
    jobs = lognormal(40, seed=2, mean_s=20.0)
    scripts = [replace(script_of(job), needs=Needs(persistent_bytes=0, ephemeral_bytes=0)) for job in jobs]
    works = [Work(job.submit_ns, job.service_ns) for job in jobs]
    settings = Settings(quantum_ns=SECOND, watch_ns=SECOND)
    shortest = NodeEngine("srtf", CARD, settings=settings).run(scripts)
    mean = sum(job.completion_ns for job in shortest.jobs) / len(jobs)
    assert mean == pytest.approx(mean_completion_least(works, 1), rel=0.02)
    fair = NodeEngine("fair", CARD, settings=settings).run(scripts)
    mean = sum(job.completion_ns for job in fair.jobs) / len(jobs)
    assert mean == pytest.approx(sum(shared_completions(works, 1)) / len(jobs), rel=0.03)


def test_two_runs_are_the_same() -> None:
    scripts = [script_of(job, is_known=False) for job in lognormal(30, seed=1, mean_s=5.0)]
    assert NodeEngine("fair", CARD).run(scripts) == NodeEngine("fair", CARD).run(scripts)


def test_progress_is_told_up_to_the_last_job() -> None:
    told: list[int] = []
    NodeEngine("fifo", CARD).run([script("a", steps=1), script("b", steps=1)], progress=told.append)
    assert told == [1, 2]


def test_no_jobs_are_no_time_and_two_of_one_name_are_a_mistake() -> None:
    assert NodeEngine("fifo", CARD).run([]).makespan_ns == 0
    with pytest.raises(InternalError, match="two scripts are called a"):
        NodeEngine("fifo", CARD).run([script("a", steps=1), script("a", steps=1)])


# --- every effect ----------------------------------------------------------------------------------------------


def test_a_job_that_the_scheduler_ends_is_over_and_the_others_go_on() -> None:
    impatient = Settings(hog_factor=0, hog_floor_ns=100 * MS, watch_ns=50 * MS, quantum_ns=20 * MS)
    hog = script("hog", steps=3, step_ms=60_000)
    hog = replace(hog, spec=replace(hog.spec, on_hog="kill"))
    outcome = NodeEngine("fair", CARD, settings=impatient).run([hog, script("b", steps=5, at=1000)])
    assert [job.id for job in outcome.jobs] == ["b"]
    [(job, reason)] = outcome.refused
    assert job == "hog"
    assert "boundary" in reason or "hog" in reason, reason
    assert ends(outcome)["b"] < 60_000


def test_a_job_that_is_ended_while_it_comes_back_does_nothing_any_more() -> None:
    engine = NodeEngine("fair", CARD)
    engine._begin([script("a", steps=5)])
    while not engine._jobs["a"].is_holding:
        at, _, what, job, version = heapq.heappop(engine._heap)
        engine._happen(at, what, job, version)
    engine._perform(StopJob(job=JobId("a")), 0)
    while engine._heap:
        at, _, what, job, version = heapq.heappop(engine._heap)
        engine._happen(at, what, job, version)
    assert not engine._jobs["a"].is_holding
    assert engine._devices["card"].resident_bytes == 0
    assert list(engine._refused) == ["a"]


ORDERS: dict[type, Effect] = {
    CloseJob: CloseJob(job=JobId("a"), state=JobState.FAILED, reason="it was ended"),
    DenyMemory: DenyMemory(job=JobId("a"), reason="there is none"),
    ExplainWait: ExplainWait(job=JobId("a"), reason="no room"),
    GrantLease: GrantLease(job=JobId("a"), lane=LaneId("x"), lane_bytes=1, is_shared=False),
    MoveJob: MoveJob(job=JobId("a"), source=DeviceId("card"), device=DeviceId("other")),
    NameHog: NameHog(job=JobId("a"), step=HogStep.WARNED, reason="late"),
    ParkJob: ParkJob(job=JobId("a"), limit_bytes=1, reason="another wants its place"),
    RecallLease: RecallLease(job=JobId("a"), reason="another is next"),
    RefuseJob: RefuseJob(job=JobId("a"), reason="too large"),
    RejectEvent: RejectEvent(job=JobId("a"), event="LeaseAsked", reason="the job is queued"),
    RememberJob: RememberJob(fingerprint="f", history=History(needs=None, steps=1, step_ns=1, served_ns=1)),
    ResizeLane: ResizeLane(device=DeviceId("card"), lane=LaneId("x"), lane_bytes=1, jobs=()),
    RevokeLease: RevokeLease(job=JobId("a"), reason="it rests"),
    SetCap: SetCap(job=JobId("a"), cap_bytes=1),
    SetCompute: SetCompute(job=JobId("a"), limit_milli=500),
    StartJob: StartJob(job=JobId("a"), device=DeviceId("card")),
    StopJob: StopJob(job=JobId("a")),
    TrimJob: TrimJob(job=JobId("a")),
    UnparkJob: UnparkJob(job=JobId("a")),
}
IMPOSSIBLE = {DenyMemory, RejectEvent}  # a script gives no cause for these


@pytest.mark.parametrize("kind", get_args(Effect), ids=lambda kind: kind.__name__)
def test_every_effect_is_performed_or_named_as_one_that_cannot_be(kind: type) -> None:
    machine = Machine(devices=(("card", 16 * GIB), ("other", 16 * GIB)))
    engine = NodeEngine("fair", machine)
    engine._begin([script("a", steps=5)])
    engine._perform(ORDERS[StartJob], 0)
    if kind in (RecallLease, RevokeLease):
        engine._perform(ORDERS[GrantLease], 0)
    if kind not in IMPOSSIBLE:
        engine._perform(ORDERS[kind], 0)
        return
    with pytest.raises(InternalError, match="job a"):
        engine._perform(ORDERS[kind], 0)


def test_a_job_that_is_to_become_smaller_says_what_it_needs() -> None:
    engine = NodeEngine("fair", CARD, watch=lambda at, event, effects: told.append(event))
    told: list[Event] = []
    engine._begin([script("a", steps=5)])
    while not engine._jobs["a"].is_holding:
        at, _, what, job, version = heapq.heappop(engine._heap)
        engine._happen(at, what, job, version)
    engine._perform(TrimJob(job=JobId("a")), 0)
    while not isinstance(told[-1], NeedsMeasured):
        at, _, what, job, version = heapq.heappop(engine._heap)
        engine._happen(at, what, job, version)
    assert told[-1].needs == Needs(persistent_bytes=MIB, ephemeral_bytes=MIB)


def test_a_queue_that_is_released_starts_no_more_at_once_than_the_bound_says() -> None:
    starting: set[str] = set()
    most = 0

    def watch(_at: int, event: Event, effects: list[Effect]) -> None:
        nonlocal most
        if isinstance(event, ProgramStarted):
            starting.discard(event.job)
        starting.update(effect.job for effect in effects if isinstance(effect, StartJob))
        most = max(most, len(starting))

    jobs = [script(f"j{number}", steps=3) for number in range(12)]
    settings = Settings(starts_max=3)
    outcome = NodeEngine("fair", CARD, settings=settings, watch=watch).run(
        [replace(each, start_ns=SECOND) for each in jobs]
    )
    assert len(outcome.jobs) == 12
    assert most == 3
