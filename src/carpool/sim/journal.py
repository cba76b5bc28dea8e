"""What a daemon recorded, read back: replayed call by call, or turned into jobs for a question of "what if".

The journal holds every event and effect of the core. Fed again to the same scheduler, the events must give the same
effects: `replay` compares them all. For another policy or other devices the recorded events are no use (they are what
the jobs did under the recorded one), so `scripts_of` takes from them what belongs to the jobs alone: when each came,
how long it took to start, how many iterations it made, how long they took, and what it needed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import msgspec

from carpool.core.kernel.ids import JobId
from carpool.core.node.effects import CloseJob, Effect, GrantLease, RevokeLease, StartJob
from carpool.core.node.events import (
    DeviceAdded,
    Event,
    HistoryLoaded,
    JobAdopted,
    JobDetached,
    JobEvent,
    JobExited,
    JobSubmitted,
    LeaseAsked,
    LeaseReturned,
    NeedsMeasured,
    NodeConfigured,
    Tick,
)
from carpool.core.node.model import JobSpec, Needs
from carpool.core.node.scheduler import Scheduler
from carpool.core.node.settings import Settings
from carpool.errors import CarpoolError, UsageError
from carpool.policies import POLICIES
from carpool.sim.node_engine import Machine, NodeEngine, Script
from carpool.units import SECOND, parse_duration_ns, parse_tenants

EVENTS = {kind.__name__: kind for kind in (*get_args(JobEvent), NodeConfigured, DeviceAdded, HistoryLoaded, Tick)}
EFFECTS = {kind.__name__: kind for kind in get_args(Effect)}


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon was told at its start, as far as its decisions depend on it."""

    policy: str = "fair"
    device: str = ""
    quantum: str = ""
    tenant_weights: str = ""

    def settings(self) -> Settings:
        return Settings(
            quantum_ns=parse_duration_ns(self.quantum) if self.quantum else None,
            tenant_weights_milli=parse_tenants(self.tenant_weights) if self.tenant_weights else {},
        )


@dataclass(slots=True, kw_only=True)
class Call:
    """One call of the core: what it was told, when, and what it ordered."""

    row: int
    at_ns: int
    event: Event
    effects: list[Effect]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One life of a daemon."""

    source: str
    run: int
    config: Config
    calls: list[Call]

    @property
    def devices(self) -> tuple[tuple[str, int], ...]:
        found = [call.event for call in self.calls if isinstance(call.event, DeviceAdded)]
        return tuple((str(event.device), event.capacity_bytes) for event in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """How a replay went; `difference` is a sentence, empty if every effect was as recorded."""

    events: int
    effects: int  # compared
    difference: str
    is_cut: bool  # the journal ends in the middle of a call, as a killed daemon leaves it
    scheduler: Scheduler


# --- reading ---------------------------------------------------------------------------------------------------


def read(path: Path, *, run: int | None = None) -> Recording:
    """The newest life of the daemon that had a job, or the one asked for."""
    if not path.is_file():
        raise UsageError(f"there is no journal {path}; a daemon writes one when it runs")
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            chosen = _choose_run(db, path) if run is None else run
            row = db.execute("select config from runs where run = ?", (chosen,)).fetchone()
            rows = db.execute(
                "select rowid, at_ns, kind, name, body from log where run = ? order by rowid", (chosen,)
            ).fetchall()
        finally:
            db.close()
    except sqlite3.Error as error:
        raise UsageError(f"{path} cannot be read as a journal: {error}") from error
    if row is None:
        raise UsageError(f"{path} has no run {chosen}")
    calls = list(_calls(path, rows))
    if not calls or not isinstance(calls[0].event, NodeConfigured | DeviceAdded):
        raise UsageError(f"{path} row {calls[0].row if calls else 1}: the beginning of run {chosen} is not there")
    return Recording(source=str(path), run=chosen, config=_config(path, row[0]), calls=calls)


def _choose_run(db: sqlite3.Connection, path: Path) -> int:
    with_jobs = "select max(run) from log where name in ('JobSubmitted', 'JobAdopted')"
    for query in (with_jobs, "select max(run) from log"):
        found = db.execute(query).fetchone()[0]
        if found is not None:
            return int(found)
    raise UsageError(f"{path} row 1: the journal is empty")


def _config(path: Path, text: object) -> Config:
    try:
        config = msgspec.json.decode(str(text), type=Config)
        config.settings()
    except (msgspec.MsgspecError, CarpoolError) as error:
        raise UsageError(f"{path}: the daemon's configuration in it cannot be read: {error}") from error
    if config.policy not in POLICIES:
        raise UsageError(f"{path}: it was recorded under the policy '{config.policy}', which is not here")
    return config


def _calls(path: Path, rows: list[tuple[int, int, str, str, bytes]]) -> Iterator[Call]:
    call: Call | None = None
    for row, at_ns, kind, name, body in rows:
        table = EVENTS if kind == "event" else EFFECTS if kind == "effect" else {}
        try:
            fact = msgspec.json.decode(body, type=table[name])
        except KeyError:
            raise UsageError(f"{path} row {row}: nobody knows the {kind} '{name}'") from None
        except (msgspec.MsgspecError, TypeError) as error:
            raise UsageError(f"{path} row {row}: {name} cannot be read: {error}") from error
        if kind == "event":
            if call is not None:
                yield call
            call = Call(row=row, at_ns=at_ns, event=fact, effects=[])
        elif call is None:
            raise UsageError(f"{path} row {row}: an effect without its event")
        else:
            call.effects.append(fact)
    if call is not None:
        yield call


# --- replaying -------------------------------------------------------------------------------------------------


def replay(recording: Recording) -> Replay:
    """Feed the recorded events to a new scheduler under the recorded policy and compare every effect."""
    scheduler = Scheduler(POLICIES[recording.config.policy], recording.config.settings())
    compared, difference, is_cut = 0, "", False
    for number, call in enumerate(recording.calls):
        try:
            made = scheduler.handle(call.event, now=call.at_ns)
        except CarpoolError as error:
            difference = f"{recording.source} row {call.row}: {type(call.event).__name__} is impossible here: {error}"
            break
        is_last = number == len(recording.calls) - 1
        if is_last and len(call.effects) < len(made) and call.effects == made[: len(call.effects)]:
            is_cut = True
        elif made != call.effects and not difference:
            difference = _difference(recording, call, made)
        compared += len(call.effects)
    events = len(recording.calls)
    return Replay(events=events, effects=compared, difference=difference, is_cut=is_cut, scheduler=scheduler)


def _difference(recording: Recording, call: Call, made: list[Effect]) -> str:
    where = f"{recording.source} row {call.row}: after {type(call.event).__name__}"
    for was, now in zip(call.effects, made, strict=False):
        if was != now:
            return f"{where} the daemon ordered {was}, the replay {now}"
    if len(made) > len(call.effects):
        return f"{where} the replay ordered {made[len(call.effects)]}, the daemon nothing more"
    return f"{where} the daemon ordered {call.effects[len(made)]}, the replay nothing more"


# --- jobs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One job as it was: its script for a simulation, and how it really fared."""

    script: Script
    waited_ns: int  # in the queue and for turns
    completion_ns: int | None  # None: it was not over when the journal ended


@dataclass(slots=True)
class _Facts:
    """What the calls say of each job; times are those of the first such call."""

    specs: dict[JobId, JobSpec] = field(default_factory=dict)
    came_ns: dict[JobId, int] = field(default_factory=dict)
    started_ns: dict[JobId, int] = field(default_factory=dict)
    asked_ns: dict[JobId, int] = field(default_factory=dict)
    closed_ns: dict[JobId, int] = field(default_factory=dict)
    needs: dict[JobId, Needs] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)  # fingerprints of programs that ran in an earlier life
    work_ns: dict[JobId, int] = field(default_factory=dict)  # time holding a turn; side by side it is shared out
    device: dict[JobId, str] = field(default_factory=dict)
    holders: dict[str, list[JobId]] = field(default_factory=dict)  # by device
    at_ns: int = 0

    def take(self, call: Call) -> None:
        self._count_work(call.at_ns)
        self._take_event(call)
        self._take_effects(call)

    def _count_work(self, now: int) -> None:
        for holders in self.holders.values():
            for job in holders:
                self.work_ns[job] = self.work_ns.get(job, 0) + (now - self.at_ns) // len(holders)
        self.at_ns = now

    def _hold(self, job: JobId) -> None:
        holders = self.holders.setdefault(self.device.get(job, ""), [])
        if job not in holders:
            holders.append(job)

    def _let_go(self, job: JobId) -> None:
        holders = self.holders.get(self.device.get(job, ""), [])
        if job in holders:
            holders.remove(job)

    def _take_event(self, call: Call) -> None:
        match call.event:
            case LeaseReturned(job=job) | JobExited(job=job) | JobDetached(job=job):
                self._let_go(job)
            case JobSubmitted(job=job, spec=spec) | JobAdopted(job=job, spec=spec):
                self.came_ns.setdefault(job, call.at_ns)
                self.specs.setdefault(job, spec)
                if isinstance(call.event, JobAdopted):
                    self.device[job] = call.event.device
                    if call.event.holding:
                        self._hold(job)
            case LeaseAsked(job=job):
                self.asked_ns.setdefault(job, call.at_ns)
            case NeedsMeasured(job=job):
                self.needs[job] = call.event.needs
            case HistoryLoaded(fingerprint=fingerprint):
                self.known.add(fingerprint)
            case _:
                pass

    def _take_effects(self, call: Call) -> None:
        for effect in call.effects:
            match effect:
                case StartJob():
                    self.started_ns.setdefault(effect.job, call.at_ns)
                    self.device[effect.job] = effect.device
                case GrantLease():
                    self._hold(effect.job)
                case RevokeLease():
                    self._let_go(effect.job)
                case CloseJob():
                    self.closed_ns.setdefault(effect.job, call.at_ns)
                case _:
                    pass


def jobs_of(recording: Recording, scheduler: Scheduler) -> tuple[list[Recorded], list[str]]:
    """The jobs that took turns, and the names of those that never did; `scheduler` is that of the replay."""
    facts = _Facts(at_ns=recording.calls[0].at_ns)
    for call in recording.calls:
        facts.take(call)
    found, without = [], []
    for job, spec in facts.specs.items():
        picture = scheduler.picture_job(job, now=recording.calls[-1].at_ns)
        work_ns = facts.work_ns.get(job, 0)
        if picture is None or not picture.steps or not work_ns:
            without.append(str(job))
            continue
        came = facts.came_ns[job]
        started = facts.started_ns.get(job, came)
        script = Script(
            id=job,
            submit_ns=came - recording.calls[0].at_ns,
            spec=spec,
            needs=facts.needs.get(job) or Needs(persistent_bytes=spec.cap_bytes or 0, ephemeral_bytes=0),
            steps=picture.steps,
            step_ns=max(1, work_ns // picture.steps),
            start_ns=max(0, facts.asked_ns.get(job, started) - started),
            is_known=spec.fingerprint in facts.known,
        )
        closed = facts.closed_ns.get(job)
        completion = closed - came if closed is not None else None
        found.append(Recorded(script=script, waited_ns=picture.waited_ns, completion_ns=completion))
    return found, without


def scripts_for(jobs: list[Recorded], devices: tuple[tuple[str, int], ...]) -> list[Script]:
    """The scripts for a node with these devices; a job bound to a device that is not there may use any."""
    names = {name for name, _ in devices}
    scripts = []
    for job in jobs:
        spec = job.script.spec
        bound = spec.device if spec.device in names else None
        scripts.append(replace(job.script, spec=replace(spec, device=bound)))
    return scripts


# --- what if ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Supposed:
    """The recorded jobs under some policy on some devices."""

    policy: str
    devices: tuple[tuple[str, int], ...]
    wait_s: float  # average: in the queue and for turns
    completion_s: float  # average
    jobs: int  # that both averages cover
    refused: int


def suppose(
    recording: Recording, jobs: list[Recorded], policy: str, devices: tuple[tuple[str, int], ...]
) -> Supposed:
    """What would have become of these jobs."""
    settings = recording.config.settings() if policy == recording.config.policy else Settings()
    outcome = NodeEngine(policy, Machine(devices=devices), settings=settings).run(scripts_for(jobs, devices))
    count = max(1, len(outcome.jobs))
    return Supposed(
        policy=policy,
        devices=devices,
        wait_s=sum(job.queued_ns for job in outcome.jobs) / count / SECOND,
        completion_s=sum(job.completion_ns for job in outcome.jobs) / count / SECOND,
        jobs=len(outcome.jobs),
        refused=len(outcome.refused),
    )
