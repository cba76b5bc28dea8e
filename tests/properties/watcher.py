"""An independent opinion of what a scheduler may do, drawn from the events and effects alone.

It keeps its own account of who wants and who holds a turn and for how long, and states the rules again in its own
words over the pictures; it never looks inside the scheduler.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from carpool.core.kernel.ids import SHARE_ONE, JobId, Nanos
from carpool.core.node.effects import (
    CloseJob,
    DenyMemory,
    Effect,
    GrantLease,
    MoveJob,
    NameHog,
    ParkJob,
    RecallLease,
    RefuseJob,
    RejectEvent,
    RevokeLease,
    SetCap,
    StartJob,
    StopJob,
    TrimJob,
    UnparkJob,
)
from carpool.core.node.events import (
    CancelAsked,
    DeviceAdded,
    Event,
    HistoryLoaded,
    JobAdopted,
    JobDetached,
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
    NodeConfigured,
    ProgressSeen,
    SettingsChanged,
    TenantSet,
    Tick,
)
from carpool.core.node.lifecycle import may_move
from carpool.core.node.model import ASKED_FOR, AWAY, ENDED, HELD_ONLY, HOLDING, RESIDENT, HogStep, JobState
from carpool.core.node.scheduler import Scheduler
from carpool.core.node.settings import Settings
from carpool.core.node.words.views import DevicePicture, JobPicture, NodePicture
from carpool.policies import POLICIES

NUMBER = re.compile(r"\d")


@dataclass(kw_only=True)
class Books:
    """Who has what, as far as a driver can know."""

    wanting: set[JobId] = field(default_factory=set)
    held: dict[JobId, Nanos] = field(default_factory=dict)  # since when
    recalled: set[JobId] = field(default_factory=set)
    queued: set[JobId] = field(default_factory=set)
    parking: dict[JobId, int] = field(default_factory=dict)  # told to park, with how many bytes at most
    unparking: set[JobId] = field(default_factory=set)
    trimming: set[JobId] = field(default_factory=set)
    blocked: set[JobId] = field(default_factory=set)  # lost its turn because its allocation waits
    may_end: set[JobId] = field(default_factory=set)  # somebody allowed its end
    fixed: set[JobId] = field(default_factory=set)  # its memory never leaves its device
    total_ns: Nanos = 0  # of all turns that are over
    turns: dict[JobId, int] = field(default_factory=dict)

    def grant(self, job: JobId, now: Nanos) -> None:
        self.held[job] = now
        self.turns[job] = self.turns.get(job, 0) + 1

    def end(self, job: JobId, now: Nanos) -> None:
        if job in self.held:
            self.total_ns += now - self.held.pop(job)
        self.recalled.discard(job)


class WatchedScheduler:
    """A scheduler each of whose answers is checked against the rules."""

    def __init__(self, policy: str, settings: Settings) -> None:
        self.policy, self.settings = policy, settings
        self.scheduler = Scheduler(POLICIES[policy], settings)
        self.now: Nanos = 0
        self.books = Books()
        self.log: list[tuple[Nanos, Event]] = []
        self.said: list[list[Effect]] = []
        self.forgotten_ns: Nanos = 0

    def send(self, event: Event) -> list[Effect]:
        if not self._is_legal(event):
            self.send(Tick())  # whatever is due by now has nothing to do with the event
        if not self._is_legal(event):
            return self._send_in_vain(event)
        if isinstance(event, MigrateAsked):
            self.send(Tick())
            if self._is_refused(event):
                return self._send_in_vain(event)
        successor = self.scheduler.successor(event.job) if isinstance(event, LeaseReturned) else None
        effects = self._hand_over(event)
        assert successor is None or successor in effects, "a driver may have told him already (D5)"
        assert not [effect for effect in effects if isinstance(effect, RejectEvent)]
        self._take(event, effects)
        for effect in effects:
            self._follow(effect, event)
        self.check()
        return effects

    def _is_refused(self, event: MigrateAsked) -> bool:
        """V1: whether the scheduler would refuse this move; a job that fits without any doubt must not be."""
        refusal = self.scheduler.move_refusal(event.job, event.device)
        job = self.job(event.job)
        target = next((each for each in self.picture().devices if each.id == event.device), None)
        is_sound = target is not None and job.moving_to is None and job.device != event.device
        is_sound = is_sound and event.job not in self.books.fixed  # its memory stays where it is (P6)
        is_sound = is_sound and "promised to others" not in refusal  # its guarantee has no room (S3)
        is_sound = is_sound and target is not None and target.claimant is None  # room is made for another (R3)
        if target is not None and is_sound and job.needs is not None:
            total = job.needs.resident_bytes + job.needs.ephemeral_bytes
            room = target.capacity_bytes if job.is_suspended and job.state is JobState.PARKED else target.free_bytes
            assert not (refusal and total <= min(room, target.free_bytes)), refusal
        assert is_sound or refusal
        return bool(refusal)

    def _send_in_vain(self, event: Event) -> list[Effect]:
        """An event that makes no sense is rejected and changes nothing."""
        before = self.picture()
        effects = self._hand_over(event)
        assert [type(effect) for effect in effects] == [RejectEvent]
        assert self.picture() == before
        return effects

    def _hand_over(self, event: Event) -> list[Effect]:
        effects = self.scheduler.handle(event, now=self.now)
        self.log.append((self.now, event))
        self.said.append(effects)
        return effects

    def forget(self, job: JobId) -> None:
        if self.state(job) in ENDED:
            self.forgotten_ns += self.job(job).served_ns
        self.send(JobForgotten(job=job))

    def replay(self) -> None:
        """The same events at the same times give the same effects."""
        again = Scheduler(POLICIES[self.policy], self.settings)
        for (now, event), said in zip(self.log, self.said, strict=True):
            assert again.handle(event, now=now) == said

    # --- pictures ---------------------------------------------------------------------------------------

    def picture(self) -> NodePicture:
        return self.scheduler.picture(now=self.now)

    def job(self, job: JobId) -> JobPicture:
        picture = self.scheduler.picture_job(job, now=self.now)
        assert picture is not None
        return picture

    def state(self, job: JobId) -> JobState | None:
        return self.scheduler.state_of(job)

    def jobs_in(self, *states: JobState) -> list[JobId]:
        return [job.id for job in self.picture().jobs if job.state in states]

    def may_run(self, job: JobPicture, node: NodePicture) -> bool:
        """A turn is for jobs whose bytes are promised, and for the oldest of the device in any case (D2); not for
        those that are to leave or to shrink (P4, R1) and not for him for whom they do."""
        device = next(each for each in node.devices if each.id == job.device)
        if is_leaving(job) or device.claimant == job.id:
            return False
        is_short = any(each.state is JobState.BLOCKED for each in node.jobs if each.device == job.device)
        return is_covered(job, device) or (is_oldest(job, node) and not is_short)

    # --- the books --------------------------------------------------------------------------------------

    def _is_legal(self, event: Event) -> bool:
        match event:
            case NodeConfigured() | DeviceAdded() | SettingsChanged() | HistoryLoaded() | Tick():
                return True
            case TenantSet():
                return self.scheduler.refusal_of(event) is None
            case JobSubmitted():
                return self.state(event.job) is None
            case JobAdopted():
                here = {device.id for device in self.picture().devices}
                return self.state(event.job) is None and event.device in here
            case _:
                state = self.state(event.job)
                if state is None or not may_move(state, type(event)):
                    return False
                return not isinstance(event, JobResized) or self.scheduler.refusal_of(event) is None

    def _take(self, event: Event, effects: list[Effect]) -> None:
        books = self.books
        if isinstance(event, LeaseAsked | NeedsMeasured | JobDetached | JobExited):
            books.trimming.discard(event.job)
        if isinstance(event, LeaseAsked | LeaseReturned | JobDetached | JobExited) or (
            isinstance(event, ProgressSeen) and not event.pending_bytes
        ):
            books.blocked.discard(event.job)
        if isinstance(event, JobSubmitted | JobAdopted) and not event.spec.may_park:
            books.fixed.add(event.job)
        match event:
            case JobSubmitted():
                books.queued.add(event.job)
            case JobAdopted():
                revoked = any(isinstance(each, RevokeLease) and each.job == event.job for each in effects)
                if event.holding and not revoked:
                    books.grant(event.job, self.now)
            case LeaseAsked():
                books.wanting.add(event.job)
            case LeaseReturned():
                books.end(event.job, self.now)
                books.wanting.discard(event.job)
                self._back(event.job)
                if event.wants_more:
                    books.wanting.add(event.job)
            case JobDetached() | JobExited():
                books.end(event.job, self.now)
                books.wanting.discard(event.job)
                books.queued.discard(event.job)
                self._back(event.job)
            case _:
                self._take_moves(event)

    def _take_moves(self, event: Event) -> None:
        books = self.books
        match event:
            case JobParked():
                books.parking.pop(event.job, None)
            case JobUnparked():
                books.unparking.discard(event.job)
                books.wanting.add(event.job)
            case MoveFailed():
                if event.job in books.parking:
                    books.wanting.add(event.job)
                self._back(event.job)
            case JobResized():
                if event.may_end:
                    books.may_end.add(event.job)
            case _:
                pass

    def _back(self, job: JobId) -> None:
        self.books.parking.pop(job, None)
        self.books.unparking.discard(job)

    def _follow(self, effect: Effect, event: Event) -> None:
        books = self.books
        match effect:
            case GrantLease():
                assert effect.job in books.wanting | books.blocked, f"{effect} to a job that wants no turn"
                assert effect.job not in books.held, f"{effect} to a job that has one"
                self._check_measured_alone(effect.job)
                books.wanting.discard(effect.job)
                books.blocked.discard(effect.job)
                books.grant(effect.job, self.now)
            case RecallLease():
                assert effect.job in books.held and effect.job not in books.recalled
                books.recalled.add(effect.job)
            case RevokeLease():
                is_adopted = isinstance(event, JobAdopted) and event.job == effect.job
                assert effect.job in books.held or is_adopted
                if isinstance(event, ProgressSeen):
                    books.blocked.add(effect.job)
                books.end(effect.job, self.now)
            case DenyMemory():
                self._check_denial(effect)
            case ParkJob() | UnparkJob() | MoveJob() | TrimJob():
                self._follow_move(effect)
            case StopJob():
                is_hog = any(isinstance(each, NameHog) and each.step is HogStep.ENDED for each in self.said[-1])
                asked = effect.job in books.may_end or isinstance(event, CancelAsked)
                assert asked or is_hog, "Z3, H2: nobody is ended unasked"
            case SetCap():
                self._check_cap(effect)
            case StartJob() | RefuseJob():
                assert effect.job in books.queued, f"{effect} of a job that is not queued"
                books.queued.remove(effect.job)
            case CloseJob():
                books.queued.discard(effect.job)
            case _:
                pass

    def _follow_move(self, effect: ParkJob | UnparkJob | MoveJob | TrimJob) -> None:
        books = self.books
        match effect:
            case ParkJob():
                self._check_may_park(effect)
                books.wanting.remove(effect.job)
                books.parking[effect.job] = effect.limit_bytes
            case TrimJob():
                assert effect.job in books.wanting, "Z2: at a boundary"
                books.trimming.add(effect.job)
            case UnparkJob():
                assert effect.job not in books.unparking
                assert set(self.job(effect.job).departures) <= HELD_ONLY, "P4: only a resumed job comes back"
                books.unparking.add(effect.job)
            case MoveJob():
                job = self.job(effect.job)
                assert (job.device, job.kept_on) == (effect.device, None), "V3: counted there, and there only"
                assert effect.source != effect.device

    def _check_cap(self, effect: SetCap) -> None:
        """Z2: nobody is told a cap below what it is known to need, unless it came with that cap."""
        job = self.job(effect.job)
        if job.is_shrinking and job.state is not JobState.BLOCKED:
            assert job.needs is not None
            known = job.needs.persistent_bytes + job.needs.ephemeral_bytes + job.needs.overhead_bytes
            assert effect.cap_bytes >= max(known, job.cap_bytes or 0)

    def _check_denial(self, effect: DenyMemory) -> None:
        """W4 to W8: only what waits and has no room fails; under its cap, before its deadline, only while nobody
        moves, and if it was told to wait only where everybody waits for memory."""
        node = self.picture()
        job = next(each for each in node.jobs if each.id == effect.job)
        assert NUMBER.search(effect.reason)
        if "was told to end" in effect.reason:
            return  # W8: also that of a holder, which is shown as waiting when it was seen twice
        assert job.pending_bytes
        if effect.reason.startswith("memory cap reached"):
            return  # whatever it is promised: a resize may have lowered the cap meanwhile
        assert job.promised_bytes < job.live_bytes + job.pending_bytes
        if "as long as --wait-memory allows" in effect.reason:
            return
        here = [each for each in node.jobs if each.device == job.device and each.state not in ENDED]
        assert not any(each.state in (JobState.PARKING, JobState.UNPARKING) for each in here)
        if "nobody there can go on" in effect.reason:
            assert all(each.pending_bytes or each.state in (JobState.PARKED, JobState.WAITING) for each in here)

    def _check_may_park(self, effect: ParkJob) -> None:
        """P1, P6, L5: only a job that waits and may leave is told to go, and never beyond the host budget."""
        assert effect.job in self.books.wanting and effect.job not in self.books.held
        assert effect.job not in self.books.fixed
        node = self.picture()
        assert node.host_bytes == sum(job.parked_bytes for job in node.jobs)
        assert node.host_bytes_max is None or node.host_bytes <= node.host_bytes_max

    def _check_measured_alone(self, granted: JobId) -> None:
        """D3: no turn is given beside a job that is being measured, nor to such a job beside others."""
        node = self.picture()
        job = next(each for each in node.jobs if each.id == granted)
        beside = [each for each in node.jobs if each.device == job.device and each.state in HOLDING]
        if len(beside) > 1:
            assert all(each.state is not JobState.PROFILING for each in beside), f"{granted} beside {beside}"

    # --- the rules --------------------------------------------------------------------------------------

    def check(self) -> None:
        self.scheduler.check_invariants()
        node = self.picture()
        for device in node.devices:
            self._check_bytes(device, node)
            self._check_claim(device, node)
            self._check_lanes(device, node)
            self._check_nobody_is_kept_waiting(device, node)
        self._check_books(node)
        self._check_wakeup(node)
        for job in node.jobs:
            assert job.reason
            if job.state in (JobState.WAITING, JobState.PARKED) or (
                job.state is JobState.QUEUED and ASKED_FOR.isdisjoint(job.departures)
            ):
                assert NUMBER.search(job.reason), job.reason

    def _check_bytes(self, device: DevicePicture, node: NodePicture) -> None:
        """L1 and L2."""
        promised = [job.promised_bytes for job in node.jobs if job.device == device.id]
        promised += [job.kept_bytes for job in node.jobs if job.kept_on == device.id]
        assert all(job.state in AWAY and job.device != device.id for job in node.jobs if job.kept_on == device.id), (
            "V2"
        )
        lanes = [lane.bytes for lane in device.lanes]
        assert all(count >= 0 for count in promised + lanes)
        assert sum(promised) + sum(lanes) <= device.capacity_bytes
        assert device.free_bytes == device.capacity_bytes - sum(promised) - sum(lanes)
        assert all(job.promised_bytes == 0 for job in node.jobs if job.state not in RESIDENT)
        assert all(job.parked_bytes == 0 for job in node.jobs if job.state not in AWAY), "L6"

    def _check_claim(self, device: DevicePicture, node: NodePicture) -> None:
        """R3: whoever leaves for another leaves for the one claimant of his device, which waits for it."""
        leaving = [job for job in node.jobs if job.device == device.id and job.leaving_for is not None]
        assert {job.leaving_for for job in leaving} <= {device.claimant}
        assert all(job.state is not JobState.PARKED for job in leaving)
        if device.claimant is not None:
            claimant = next(job for job in node.jobs if job.id == device.claimant)
            assert leaving
            assert claimant.state in (JobState.QUEUED, JobState.PARKED, JobState.WAITING)
            assert ASKED_FOR.isdisjoint(claimant.departures)

    def _check_lanes(self, device: DevicePicture, node: NodePicture) -> None:
        """N1 to N3: one lane a managed job, one holder a lane, no empty lane, no more than the policy allows."""
        placed = [job for lane in device.lanes for job in lane.jobs]
        assert len(placed) == len(set(placed))
        managed = RESIDENT - {JobState.UNMANAGED, JobState.PARKED}
        assert set(placed) == {job.id for job in node.jobs if job.device == device.id and job.state in managed}
        assert len(device.lanes) <= POLICIES[self.policy].lanes_max
        for lane in device.lanes:
            assert lane.jobs
            assert lane.holder is None or lane.holder in lane.jobs
            assert all(job.lane == lane.id for job in node.jobs if job.id in lane.jobs)

    def _check_nobody_is_kept_waiting(self, device: DevicePicture, node: NodePicture) -> None:
        """D1: a free lane for which somebody waits who may run is granted, unless a newcomer is measured alone."""
        here = [job for job in node.jobs if job.device == device.id]
        able = [job for job in here if job.state is JobState.WAITING and self.may_run(job, node)]
        waiting = {job.id for job in able if not is_at_limit(job)}
        holders = [job for job in here if job.state in HOLDING]
        for lane in device.lanes:
            if lane.holder is None and waiting & set(lane.jobs):
                may_be_new = (JobState.WAITING, JobState.BLOCKED)  # also in the middle of its very first turn
                newcomers = [job for job in here if job.state in may_be_new and job.needs is None]
                is_measuring = any(job.state is JobState.PROFILING for job in holders)
                assert len(device.lanes) > 1 and holders and (newcomers or is_measuring)
        for job in holders:
            if not self.may_run(job, node):
                assert job.id in self.books.recalled, "an outgrown holder is asked for its turn"

    def _check_books(self, node: NodePicture) -> None:
        """A1, and that the scheduler and a driver agree about everybody."""
        books = self.books
        assert set(self.scheduler.holders()) == set(books.held)
        for job in node.jobs:
            assert (job.state in HOLDING) == (job.id in books.held)
            assert (job.state is JobState.WAITING) == (job.id in books.wanting)
            assert (job.state is JobState.BLOCKED) == (job.id in books.blocked)
            assert (job.state is JobState.QUEUED) == (job.id in books.queued)
            assert (job.state is JobState.PARKING) == (job.id in books.parking)
            assert (job.state is JobState.UNPARKING) == (job.id in books.unparking)
            if job.state not in ENDED:
                assert sum(job.spent_ns.values()) == self.now - job.arrived_ns, "A4"
            assert sum(job.waited_for_ns.values()) <= job.spent_ns.get("turn", 0), "A4"
        served = sum(job.served_ns for job in node.jobs) + self.forgotten_ns
        assert served == books.total_ns + sum(self.now - since for since in books.held.values())

    def _check_wakeup(self, node: NodePicture) -> None:
        wakeup = self.scheduler.next_wakeup()
        assert wakeup is None or wakeup > self.now
        if any(job.state is JobState.WAITING and not is_leaving(job) for job in node.jobs):
            assert wakeup is not None


def is_leaving(job: JobPicture) -> bool:
    return bool(job.departures)


def is_at_limit(job: JobPicture) -> bool:
    """S1: it has had what it may have, and says when its next turn is due."""
    return job.limit_milli < SHARE_ONE and "its next turn is due in" in job.reason


def is_covered(job: JobPicture, device: DevicePicture) -> bool:
    if job.needs is None:
        return True
    lane_bytes = next((lane.bytes for lane in device.lanes if lane.id == job.lane), 0)
    resident = job.needs.persistent_bytes + job.needs.overhead_bytes
    split = job.promised_bytes >= resident and lane_bytes >= job.needs.ephemeral_bytes
    return split or job.promised_bytes >= resident + job.needs.ephemeral_bytes


def is_oldest(job: JobPicture, node: NodePicture) -> bool:
    here = [each for each in node.jobs if each.device == job.device and each.lane is not None]
    rivals = [
        (each.arrived_ns, each.id) for each in here if not is_leaving(each) and each.state is not JobState.BLOCKED
    ]
    return (job.arrived_ns, job.id) == min(rivals)
