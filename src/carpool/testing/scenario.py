"""Scenarios: small files that say which jobs come when, and which decisions must follow; every driver can run them.

A decision is the kind of an effect and the job's name: `grant low`. Times are not compared, because a real daemon's
are never the same twice; the order of decisions is.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from carpool.core.node.effects import CloseJob, Effect, GrantLease, RecallLease, RefuseJob, StartJob
from carpool.core.node.model import JobSpec, Needs
from carpool.sim.node_engine import NodeEngine
from carpool.sim.scripts import Machine, Script
from carpool.units import MIB, parse_bytes, parse_duration_ns

WORDS: dict[type, str] = {
    StartJob: "start",
    GrantLease: "grant",
    RecallLease: "recall",
    RefuseJob: "refuse",
    CloseJob: "close",
}
NEEDS = Needs(persistent_bytes=MIB, ephemeral_bytes=MIB)  # a scripted job holds next to nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedJob:
    """A job of a scenario: comes, makes its steps, ends."""

    name: str
    at_ns: int
    steps: int
    step_ns: int
    memory: str
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    policy: str
    device: str
    jobs: tuple[ScriptedJob, ...]
    expected: tuple[str, ...]


def load_scenario(path: Path) -> Scenario:
    data = tomllib.loads(path.read_text())
    jobs = tuple(
        ScriptedJob(
            name=job["name"],
            at_ns=parse_duration_ns(job["at"]),
            steps=job["steps"],
            step_ns=parse_duration_ns(job["step"]),
            memory=job["memory"],
            priority=job.get("priority", 0),
        )
        for job in data["job"]
    )
    expected = tuple(data["expected"])
    return Scenario(name=path.stem, policy=data["policy"], device=data["device"], jobs=jobs, expected=expected)


def run_scenario(scenario: Scenario) -> list[str]:
    """The decisions in virtual time."""
    found: list[str] = []
    scripts = [
        Script(
            id=job.name,
            submit_ns=job.at_ns,
            spec=JobSpec(name=job.name, cap_bytes=parse_bytes(job.memory), steps=job.steps, priority=job.priority),
            needs=NEEDS,
            steps=job.steps,
            step_ns=job.step_ns,
        )
        for job in scenario.jobs
    ]
    machine = Machine(devices=(("cpu", parse_bytes(scenario.device)),))
    NodeEngine(scenario.policy, machine, watch=lambda _at, _event, effects: found.extend(decisions(effects))).run(
        scripts
    )
    return found


def decisions(effects: Iterable[Effect]) -> list[str]:
    """The effects that are decisions, in words; a daemon's job `low-1` is called `low`."""
    return [f"{WORDS[type(effect)]} {_name(effect)}" for effect in effects if type(effect) in WORDS]


def _name(effect: Effect) -> str:
    job = str(getattr(effect, "job", ""))
    name, _, number = job.rpartition("-")
    return name if number.isdecimal() and name else job
