"""Jobs that stall after their iterations: what the simulator says of them, by hand and as the daemon does it."""

from __future__ import annotations

import pytest

from carpool.bench.stalls import predict
from carpool.core.node.effects import Effect, RecallLease
from carpool.core.node.events import Event, LeaseReturned
from carpool.core.node.model import JobSpec, Needs
from carpool.sim.node_engine import NodeEngine
from carpool.sim.outcome import JobOutcome
from carpool.sim.scripts import Machine, Script
from carpool.sim.traces import TraceJob
from carpool.sim.workload import script_of
from carpool.units import GIB, MIB, MS, SECOND

CARD = Machine(devices=(("card", 16 * GIB),))


def script(name: str, *, steps: int, step_ms: int, stall_ms: int = 0, priority: int = 0) -> Script:
    return Script(
        id=name,
        submit_ns=0,
        spec=JobSpec(name=name, steps=steps, fingerprint=name, priority=priority),
        needs=Needs(persistent_bytes=MIB, ephemeral_bytes=MIB),
        steps=steps,
        step_ns=step_ms * MS,
        stall_ns=stall_ms * MS,
        is_known=True,
    )


def run(policy: str, *scripts: Script) -> dict[str, JobOutcome]:
    return {job.id: job for job in NodeEngine(policy, CARD).run(scripts).jobs}


def speed(job: JobOutcome) -> float:
    return job.service_ns / job.completion_ns


def test_a_job_that_stalls_takes_as_long_alone_as_its_iterations_and_its_stalls() -> None:
    assert run("fair", script("a", steps=10, step_ms=4, stall_ms=6))["a"].completion_ns == (10 * 4 + 9 * 6) * MS


@pytest.mark.parametrize("policy", ["fair", "priority", "las"])
def test_d7_a_half_stalling_job_keeps_its_speed_beside_one_that_only_computes(policy: str) -> None:
    jobs = run(
        policy, script("computes", steps=4000, step_ms=9), script("stalls", steps=200, step_ms=40, stall_ms=41)
    )
    assert speed(jobs["stalls"]) >= 0.9
    served = jobs["computes"].service_ns / (jobs["computes"].completion_ns)
    assert served >= 0.5, "and the other has its share"


@pytest.mark.parametrize("policy", ["fair", "priority", "fifo"])
def test_two_half_stalling_jobs_fill_each_others_stalls(policy: str) -> None:
    jobs = run(policy, *(script(name, steps=200, step_ms=40, stall_ms=41) for name in ("a", "b")))
    assert all(speed(job) >= 0.9 for job in jobs.values())


def test_d7_a_job_that_hardly_stalls_has_no_more_than_its_share() -> None:
    jobs = run(
        "fair", script("computes", steps=3000, step_ms=10), script("pauses", steps=1000, step_ms=30, stall_ms=4)
    )
    # While both run each has half: the shorter job of 30 s of work ends when it has had it, not before.
    assert jobs["pauses"].completion_ns >= 1.8 * 30 * SECOND


def test_a_server_costs_a_training_what_it_computes() -> None:
    jobs = run(
        "priority",
        script("serves", steps=30, step_ms=2, stall_ms=998, priority=1),
        script("t", steps=2000, step_ms=15),
    )
    assert speed(jobs["t"]) >= 0.99 and speed(jobs["serves"]) >= 0.98


def test_whoever_comes_while_a_holder_stalls_has_the_turn_then() -> None:
    told: list[tuple[int, Event, list[Effect]]] = []
    engine = NodeEngine("fair", CARD, watch=lambda at, event, effects: told.append((at, event, effects)))
    late = script("late", steps=5, step_ms=10)
    late = Script(**{name: getattr(late, name) for name in late.__slots__} | {"submit_ns": 200 * MS})
    engine.run([script("stalls", steps=5, step_ms=10, stall_ms=500), late])
    taken = [(at, event) for at, event, _ in told if isinstance(event, LeaseReturned) and not event.wants_more]
    at, event = taken[0]
    assert (at, event.job, event.pause_ns) == (200 * MS, "stalls", 190 * MS)
    assert not [effect for _, _, effects in told for effect in effects if isinstance(effect, RecallLease)]


def test_a_trace_says_how_long_a_job_stalls() -> None:
    made = script_of(TraceJob(id="a", submit_ns=0, service_ns=100 * MS, iterations=10, stall_ns=4 * MS))
    assert (made.step_ns, made.stall_ns) == (6 * MS, 4 * MS)


def test_the_prediction_of_the_bench_is_of_both_pairs() -> None:
    said = predict(step_ns=40 * MS, stall_ns=40 * MS, computing_ns=10 * MS)
    assert set(said) == {"stalling_beside_computing", "stalling_beside_stalling"}
    assert all(0.9 <= each <= 1 for each in said.values())


def test_the_prediction_of_the_bench_knows_what_changes_of_turn_cost() -> None:
    costs = {"first": 10 * MS, "second": 10 * MS, "computing": 0}
    free = predict(step_ns=40 * MS, stall_ns=40 * MS, computing_ns=10 * MS)
    paid = predict(step_ns=40 * MS, stall_ns=40 * MS, computing_ns=10 * MS, change_ns=costs)
    assert all(paid[name] < free[name] for name in free), (paid, free)
