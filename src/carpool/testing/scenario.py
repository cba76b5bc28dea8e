"""Scenarios: small files that say which jobs come when, and which decisions must follow; every driver can run them.

A decision is the kind of an effect and the job's name: `grant low`. Times are not compared, because a real daemon's
are never the same twice; the order of decisions is.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from carpool.core.kernel.ids import TenantId
from carpool.core.node.effects import (
    CloseJob,
    Effect,
    GrantLease,
    ParkJob,
    RecallLease,
    RefuseJob,
    StartJob,
    UnparkJob,
)
from carpool.core.node.model import JobSpec, Needs
from carpool.core.node.settings import Settings
from carpool.daemon.settings_file import parse_tenant
from carpool.sim.node_engine import NodeEngine
from carpool.sim.scripts import Machine, Script
from carpool.units import MIB, parse_bytes, parse_duration_ns

WORDS: dict[type, str] = {
    StartJob: "start",
    GrantLease: "grant",
    RecallLease: "recall",
    RefuseJob: "refuse",
    CloseJob: "close",
    ParkJob: "park",
    UnparkJob: "unpark",
}
USUAL = ("start", "grant", "recall", "refuse", "close")  # what is compared where a scenario does not say
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
    tenant: str = "default"
    holds: int = 0  # bytes all the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    policy: str
    device: str
    jobs: tuple[ScriptedJob, ...]
    expected: tuple[str, ...]
    words: tuple[str, ...] = USUAL  # the decisions that are compared
    until: str = ""  # the last decision that is compared; empty: all are
    tenants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # as in carpool.toml


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
            tenant=job.get("tenant", "default"),
            holds=parse_bytes(job["holds"]) if "holds" in job else 0,
        )
        for job in data["job"]
    )
    return Scenario(
        name=path.stem,
        policy=data["policy"],
        device=data["device"],
        jobs=jobs,
        expected=tuple(data["expected"]),
        words=tuple(data.get("words", USUAL)),
        until=data.get("until", ""),
        tenants=data.get("tenant", {}),
    )


def run_scenario(scenario: Scenario) -> list[str]:
    """The decisions in virtual time."""
    said: list[Effect] = []
    scripts = [
        Script(
            id=job.name,
            submit_ns=job.at_ns,
            spec=JobSpec(
                name=job.name,
                tenant=TenantId(job.tenant),
                cap_bytes=parse_bytes(job.memory),
                steps=job.steps,
                priority=job.priority,
            ),
            needs=Needs(persistent_bytes=job.holds, ephemeral_bytes=MIB) if job.holds else NEEDS,
            steps=job.steps,
            step_ns=job.step_ns,
        )
        for job in scenario.jobs
    ]
    machine = Machine(devices=(("cpu", parse_bytes(scenario.device)),))
    terms = {TenantId(name): parse_tenant(dict(table), name).terms() for name, table in scenario.tenants.items()}

    def watch(_at: int, _event: object, effects: list[Effect]) -> None:
        said.extend(effects)

    NodeEngine(scenario.policy, machine, settings=Settings(tenants=terms), watch=watch).run(scripts)
    return decisions(said, scenario)


def decisions(effects: Iterable[Effect], scenario: Scenario) -> list[str]:
    """The effects that the scenario compares, in words; a daemon's job `low-1` is called `low`."""
    told = [(WORDS[type(effect)], effect) for effect in effects if type(effect) in WORDS]
    found = [f"{word} {_name(effect)}" for word, effect in told if word in scenario.words]
    return found[: found.index(scenario.until) + 1] if scenario.until in found else found


def _name(effect: Effect) -> str:
    job = str(getattr(effect, "job", ""))
    name, _, number = job.rpartition("-")
    return name if number.isdecimal() and name else job
