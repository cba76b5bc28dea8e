"""What a daemon recorded, read back: replayed call by call, or turned into jobs for a question of "what if".

The journal holds every event and effect of the core. Fed again to the same scheduler, the events must give the same
effects: `replay` compares them all. For another policy or other devices the recorded events are no use (they are what
the jobs did under the recorded one), so `scripts_of` takes from them what belongs to the jobs alone: when each came,
how long it took to start, how many iterations it made, how long they took, and what it needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from carpool.core.kernel.ids import JobId
from carpool.core.node.effects import CloseJob, Effect, GrantLease, RevokeLease, StartJob
from carpool.core.node.events import (
    HistoryLoaded,
    JobAdopted,
    JobDetached,
    JobExited,
    JobForgotten,
    JobSubmitted,
    LeaseAsked,
    LeaseReturned,
    NeedsMeasured,
    ProgressSeen,
)
from carpool.core.node.model import JobSpec, Needs
from carpool.core.node.scheduler import Scheduler
from carpool.core.node.settings import Settings
from carpool.core.node.words.views import JobPicture
from carpool.errors import InternalError, UsageError
from carpool.journal import reader
from carpool.journal.reader import Call, Recording
from carpool.policies import Guarded, Policy, find_policy
from carpool.sim.node_engine import NodeEngine
from carpool.sim.scripts import Machine, Script
from carpool.units import SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """How the replay of one life went; `difference` is a sentence, empty if every effect was as recorded."""

    run: int
    events: int
    effects: int  # compared
    difference: str
    end: str  # how the record ends, if not well: "cut" in the middle of a call, "gap", or "broken" by a bug
    missing: int  # rows that a gap left out
    pictures: Mapping[JobId, JobPicture]  # of every job, as it was last

    @property
    def end_note(self) -> str:
        """How the record ends, as a sentence; empty if it ends well."""
        match self.end:
            case "cut":
                return f"run {self.run} ends in the middle of a call, as a killed daemon leaves it"
            case "gap":
                return (
                    f"run {self.run} lacks {self.missing} rows that the disk did not take; it is compared up to there"
                )
            case "broken":
                return f"run {self.run} ends with an event that breaks a rule, in the daemon and in the replay"
            case _:
                return ""


# --- replaying -------------------------------------------------------------------------------------------------


def policy_of(recording: Recording) -> Policy:
    """The policy it was recorded under; UsageError if it is not here."""
    try:
        return find_policy(recording.policy, place="node")
    except UsageError as error:
        raise UsageError(
            f"{recording.source}: run {recording.run} was recorded under the policy '{recording.policy}',"
            f" which is not here: {error}"
        ) from error


def replay(recording: Recording) -> Replay:
    """Tell the recorded events to a new scheduler of the recorded policy, and compare every effect (J2)."""
    scheduler = Scheduler(Guarded(policy_of(recording), lambda _: None))  # it falls back where the daemon's did
    last = recording.calls[-1]
    compared, difference, end = 0, "", "gap" if recording.gap else ""
    pictures: dict[JobId, JobPicture] = {}
    for call in recording.calls:
        if isinstance(call.event, JobForgotten):
            forgotten = scheduler.picture_job(call.event.job, now=call.at_ns)
            pictures |= {forgotten.id: forgotten} if forgotten is not None else {}
        try:
            made = scheduler.handle(call.event, now=call.at_ns)
        except InternalError as error:
            if call is last and not call.effects:
                end = "broken"  # as the daemon's own scheduler did
                continue
            difference = f"{_place(recording, call)} the replay breaks a rule: {error}"
            break
        if call is last and len(call.effects) < len(made) and call.effects == made[: len(call.effects)]:
            end = end or "cut"
        elif made != call.effects:
            difference = _difference(recording, call, made)
            break
        compared += len(call.effects)
    pictures |= {picture.id: picture for picture in scheduler.picture(now=last.at_ns).jobs}
    return Replay(
        run=recording.run,
        events=len(recording.calls),
        effects=compared,
        difference=difference,
        end=end,
        missing=recording.gap,
        pictures=pictures,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """All lives of a journal, or one of them, replayed."""

    chosen: Recording  # the newest life with a job, or the one asked for
    lives: tuple[Replay, ...]
    refused: tuple[str, ...]  # why others could not be replayed

    @property
    def of_chosen(self) -> Replay:
        return next(each for each in self.lives if each.run == self.chosen.run)

    @property
    def difference(self) -> str:
        """The first one; empty if there is none."""
        return next((each.difference for each in self.lives if each.difference), "")


def replay_all(path: Path, *, run: int | None = None) -> Replays:
    """Replay every life in a journal, or one."""
    chosen = reader.read(path, run=run)
    wanted = [life for life in reader.lives(path) if run in (None, life.run)]
    lives = [
        replay(chosen if life.run == chosen.run else reader.read(path, run=life.run))
        for life in wanted
        if not life.trouble
    ]
    return Replays(chosen=chosen, lives=tuple(lives), refused=tuple(life.trouble for life in wanted if life.trouble))


def _place(recording: Recording, call: Call) -> str:
    return f"{recording.source} run {recording.run} row {call.row}: after {type(call.event).__name__}"


def _difference(recording: Recording, call: Call, made: list[Effect]) -> str:
    where = _place(recording, call)
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
    change_ns: dict[JobId, tuple[int, int]] = field(default_factory=dict)  # changes of turn, and their cost in all
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
            case ProgressSeen(job=job, changes=changes) if changes:
                self.change_ns[job] = (changes, max(0, call.event.change_ns))
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


def jobs_of(recording: Recording, pictures: Mapping[JobId, JobPicture]) -> tuple[list[Recorded], list[str]]:
    """The jobs that took turns, and the names of those that never did; `pictures` are those of the replay."""
    facts = _Facts(at_ns=recording.calls[0].at_ns)
    for call in recording.calls:
        facts.take(call)
    found, without = [], []
    for job, spec in facts.specs.items():
        picture = pictures.get(job)
        work_ns = facts.work_ns.get(job, 0)
        if picture is None or not picture.steps or not work_ns:
            without.append(str(job))
            continue
        came = facts.came_ns[job]
        changes, changes_ns = facts.change_ns.get(job, (1, 0))
        changes_ns = min(changes_ns, work_ns // 2)
        started = facts.started_ns.get(job, came)
        script = Script(
            id=job,
            submit_ns=came - recording.calls[0].at_ns,
            spec=spec,
            needs=facts.needs.get(job) or Needs(persistent_bytes=spec.cap_bytes or 0, ephemeral_bytes=0),
            steps=picture.steps,
            step_ns=max(1, (work_ns - changes_ns) // picture.steps),
            change_ns=changes_ns // changes,
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
    settings = recording.configured.settings if policy == recording.policy else Settings()
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
