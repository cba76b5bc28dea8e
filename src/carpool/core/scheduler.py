"""The one door: facts in, orders out.

`handle` takes one event and the time, changes the state, and returns the effects in the order in which they
must be performed. It never reads a clock, waits, logs or calls back: the same events at the same times give the
same effects on any machine, which is what lets one scheduler drive a live node and a simulation.

What happens inside one call, always in this order: the holders are charged up to now; the event is taken in (or
rejected); if it changed who holds which bytes, outgrown promises are covered, the queue is admitted and lanes
are resized; then free lanes are granted and turns recalled.
"""

from __future__ import annotations

from typing import assert_never

from carpool.core import admission, lanes, ledger, parking, pictures, shares
from carpool.core.accounts import begin_wanting, charge_holders, note_steps, raise_floors, reset_marks
from carpool.core.dispatch import dispatch, grant_of, next_wakeup, watch
from carpool.core.effects import (
    CloseJob,
    Effect,
    GrantLease,
    RefuseJob,
    RejectEvent,
    RememberJob,
    ResizeLane,
    RevokeLease,
    StartJob,
    StopJob,
)
from carpool.core.events import (
    CancelAsked,
    ComputeAsked,
    DeviceAdded,
    Event,
    HistoryLoaded,
    JobAdopted,
    JobDetached,
    JobEvent,
    JobExited,
    JobParked,
    JobSubmitted,
    JobUnparked,
    LeaseAsked,
    LeaseReturned,
    MoveFailed,
    NeedsMeasured,
    ProgressSeen,
    ResumeAsked,
    SuspendAsked,
    Tick,
)
from carpool.core.lifecycle import may_move
from carpool.core.model import (
    AWAY,
    ENDED,
    WANTING,
    Device,
    DeviceId,
    History,
    Job,
    JobId,
    JobState,
    LaneId,
    Nanos,
)
from carpool.core.node import Node, Settings, check_jobs
from carpool.core.policies.base import Policy
from carpool.core.settle import settle
from carpool.core.views import JobPicture, NodePicture
from carpool.errors import InternalError

ACTIVE_PERCENT = 5  # a holder that used this share of a core since the last look is computing


class Scheduler:
    """All decisions of one node."""

    def __init__(self, policy: Policy, settings: Settings | None = None) -> None:
        self._node = Node(policy=policy, settings=settings or Settings())
        self._now: Nanos = 0
        self._bytes_changed = False
        self._lanes_told: dict[LaneId, tuple[DeviceId, int, tuple[JobId, ...]]] = {}

    def handle(self, event: Event, *, now: Nanos) -> list[Effect]:
        """Take in one fact; returns what must be done now, in order."""
        if now < self._now:
            raise InternalError(f"time went back from {self._now} to {now}")
        self._now = now
        charge_holders(self._node, now=now)
        effects = self._take(event, now)
        lanes_may_change = self._bytes_changed or self._node.policy.lanes_max > 1
        if self._bytes_changed:
            self._bytes_changed = False
            effects += settle(self._node, now=now)
        for device in self._node.devices.values():
            effects += parking.park_leaving(self._node, device, now=now)
            effects += dispatch(self._node, device, now=now)
        return effects + self._tell_lanes() if lanes_may_change else effects

    def next_wakeup(self) -> Nanos | None:
        """When the driver must send a Tick if nothing else happens; None for never."""
        times = [next_wakeup(self._node, device, now=self._now) for device in self._node.devices.values()]
        return min((time for time in times if time is not None), default=None)

    def picture(self, *, now: Nanos) -> NodePicture:
        return pictures.picture_node(self._node, now=now)

    def picture_job(self, job: JobId, *, now: Nanos) -> JobPicture | None:
        found = self._node.jobs.get(job)
        return pictures.picture_job(self._node, found, now=now) if found is not None else None

    def state_of(self, job: JobId) -> JobState | None:
        found = self._node.jobs.get(job)
        return found.state if found is not None else None

    def holders(self) -> list[JobId]:
        """The jobs that hold a turn; a driver reports their progress with each Tick."""
        return [job.id for device in self._node.devices.values() for job in self._node.holders_on(device)]

    def successor(self, job: JobId) -> GrantLease | None:
        """What the return of this job's turn will grant, if nothing else happens before it (D5).

        A driver may perform it first and tell the core of the return afterwards: the same effect comes back.
        """
        lane = self._node.lane_of(self._node.jobs[job])
        if lane is None or lane.holder != job or lane.successor is None:
            return None
        return grant_of(self._node, lane, lane.successor)

    def share_trouble(self, event: ComputeAsked) -> str | None:
        """Why this job could not have this share, in words; None if it could."""
        return shares.trouble(self._node, self._node.jobs[event.job], event)

    def waiters(self, job: JobId) -> int:
        """How many other jobs wait for the lane of this job."""
        lane = self._node.lane_of(self._node.jobs[job])
        return len([other for other in self._node.waiting_in(lane) if other.id != job]) if lane else 0

    def forget(self, job: JobId) -> None:
        """Drop an ended job from the state; what was learnt of its program stays."""
        found = self._node.jobs.get(job)
        if found is not None and found.state in ENDED:
            del self._node.jobs[job]
            self._node.apart = {pair for pair in self._node.apart if job not in pair}

    def check_invariants(self) -> None:
        """Assert every numbered rule; for tests and for a driver that wants to be sure."""
        node = self._node
        for device in node.devices.values():
            ledger.check_ledger(device, node.jobs)
            lanes.check_lanes(device, node.jobs)
            shares.check_shares(node, device)
        check_jobs(node)

    # --- one short method a case -------------------------------------------------------------------------

    def _take(self, event: Event, now: Nanos) -> list[Effect]:
        match event:
            case Tick():
                return self._on_tick(now)
            case DeviceAdded():
                return self._on_device(event)
            case HistoryLoaded():
                self._node.histories[event.fingerprint] = event.history
                return []
            case JobSubmitted():
                return self._on_submitted(event, now)
            case JobAdopted():
                return self._on_adopted(event, now)
            case ComputeAsked():
                return self._on_compute(event)
            case _:
                return self._take_from_job(event, now)

    def _take_from_job(self, event: JobEvent, now: Nanos) -> list[Effect]:
        job = self._node.jobs.get(event.job)
        if job is None:
            return [self._reject(event, "no such job")]
        if not may_move(job.state, type(event)):
            return [self._reject(event, f"the job is {job.state}")]
        match event:
            case LeaseAsked():
                return self._on_asked(job, event, now)
            case LeaseReturned():
                return self._on_returned(job, event, now)
            case NeedsMeasured():
                return self._on_measured(job, event, now)
            case ProgressSeen():
                return self._on_progress(job, event, now)
            case JobDetached():
                return self._on_detached(job, event, now)
            case JobExited():
                return self._on_exited(job, event, now)
            case CancelAsked():
                return self._on_cancel(job, event, now)
            case SuspendAsked() | ResumeAsked() | JobParked() | JobUnparked() | MoveFailed():
                parking.take(self._node, job, event, now=now)
                self._bytes_changed = True
                return []
            case JobSubmitted() | JobAdopted() | ComputeAsked():
                raise InternalError(f"{type(event).__name__} is handled before")
            case _:
                assert_never(event)

    def _reject(self, event: JobEvent, reason: str) -> RejectEvent:
        return RejectEvent(job=event.job, event=type(event).__name__, reason=reason)

    def _new_job(self, event: JobSubmitted | JobAdopted, now: Nanos) -> Job:
        job = Job(id=event.job, spec=event.spec, arrived_ns=now, state_since_ns=now)
        job.history = self._node.histories.get(event.spec.fingerprint) if event.spec.fingerprint else None
        self._node.jobs[job.id] = job
        self._node.queue.append(job.id)
        self._bytes_changed = True
        return job

    def _on_device(self, event: DeviceAdded) -> list[Effect]:
        if event.device in self._node.devices:
            raise InternalError(f"device {event.device} is here already")
        self._node.devices[event.device] = Device(id=event.device, capacity_bytes=event.capacity_bytes)
        self._bytes_changed = True
        return []

    def _on_submitted(self, event: JobSubmitted, now: Nanos) -> list[Effect]:
        if event.job in self._node.jobs:
            return [self._reject(event, "a job with this id exists already")]
        job = self._new_job(event, now)
        reason = admission.refusal(self._node, job)
        if reason is None:
            return []
        self._node.queue.remove(job.id)
        self._node.move(job, RefuseJob, now=now)
        job.reason = reason
        return [RefuseJob(job=job.id, reason=reason)]

    def _on_adopted(self, event: JobAdopted, now: Nanos) -> list[Effect]:
        """Take back a job that runs already: its bytes are facts, so it gets what L1 allows at once."""
        node = self._node
        if event.job in node.jobs:
            return [self._reject(event, "a job with this id exists already")]
        device = node.devices.get(event.device)
        if device is None:
            return [self._reject(event, f"device {event.device} is not here")]
        job = self._new_job(event, now)
        node.queue.remove(job.id)
        node.move(job, StartJob, now=now, to=JobState.PARKED if event.is_parked else None)
        job.is_suspended, job.parked_bytes, job.is_paced = event.is_suspended, event.parked_bytes, event.is_paced
        job.device, job.needs, job.steps, job.live_bytes = device.id, event.needs, event.steps, event.live_bytes
        wanted = event.needs.resident_bytes if event.needs else event.spec.cap_bytes or event.live_bytes
        wanted = event.live_bytes if event.is_parked else wanted
        ledger.promise(device, job, max(0, min(wanted, ledger.free_bytes(device))))
        if event.is_parked:
            job.stayed_bytes = job.promised_bytes
            return []
        lane = admission.enter_lane(node, device, job)
        if not event.holding:
            return []
        if lane.holder is not None:
            return [RevokeLease(job=job.id, reason="its lane was taken while the daemon was away")]
        begin_wanting(node, job)
        node.move(job, LeaseAsked, now=now)
        node.move_lease(job, GrantLease, now=now)
        node.move(job, GrantLease, now=now, to=JobState.PROFILING if job.needs is None else None)
        job.charged_ns = job.last_active_ns = now
        reset_marks(node, device)
        return []

    def _on_compute(self, event: ComputeAsked) -> list[Effect]:
        job = self._node.jobs.get(event.job)
        if job is None or not may_move(job.state, ComputeAsked):
            return [self._reject(event, "no such job" if job is None else f"the job is {job.state}")]
        self._bytes_changed = True
        return shares.take(self._node, job, event)

    def _on_asked(self, job: Job, event: LeaseAsked, now: Nanos) -> list[Effect]:
        job.is_paced = event.is_paced
        if job.lane is None:
            admission.enter_lane(self._node, self._node.device_of(job), job)
            self._bytes_changed = True
        begin_wanting(self._node, job)
        self._node.move(job, LeaseAsked, now=now)
        return []

    def _on_returned(self, job: Job, event: LeaseReturned, now: Nanos) -> list[Effect]:
        node, device = self._node, self._node.device_of(job)
        note_steps(node, job, event.steps, now=now)
        if job.state in AWAY:
            parking.came_back_alone(node, job)
            self._bytes_changed = True
        if not event.wants_more:
            raise_floors(node, device)
        elif job.state not in WANTING:
            begin_wanting(node, job)
        if job.lease is not None:
            shares.refund(job, min(event.idle_ns, now - job.lease.granted_ns))
            node.move_lease(job, LeaseReturned, now=now)
            reset_marks(node, device)
        node.move(job, LeaseReturned, now=now, to=JobState.WAITING if event.wants_more else JobState.IDLE)
        if len(device.lanes) > 1 and (
            node.queue or node.outgrown_on(device) or parking.awaits_return(node, device, now=now)
        ):
            self._bytes_changed = True  # a lane that is free for a moment may be merged to let somebody in
        return []

    def _on_measured(self, job: Job, event: NeedsMeasured, now: Nanos) -> list[Effect]:
        job.needs = admission.with_margin(event.needs, job.needs, self._node.settings.margin_percent)
        if event.step_ns is not None and job.step_ns is None:
            job.step_ns = event.step_ns
            if job.mark is not None and not job.mark.mates:
                job.solo_step_ns = event.step_ns
        self._node.move(job, NeedsMeasured, now=now)
        self._bytes_changed = True
        return []

    def _on_progress(self, job: Job, event: ProgressSeen, now: Nanos) -> list[Effect]:
        used_ns, span_ns = event.cpu_ns - job.cpu_ns, now - job.last_active_ns
        if event.steps > job.steps or used_ns * 100 >= max(1, span_ns) * ACTIVE_PERCENT:
            job.last_active_ns = now
            job.cpu_ns = event.cpu_ns
        job.live_bytes = event.live_bytes
        note_steps(self._node, job, event.steps, now=now)
        return []

    def _on_detached(self, job: Job, event: JobDetached, now: Nanos) -> list[Effect]:
        device = self._node.device_of(job)
        raise_floors(self._node, device)
        self._close_lease(job, JobDetached, now)
        self._node.move(job, JobDetached, now=now)
        job.reason = event.reason
        job.is_suspended, job.parked_bytes = False, 0
        lanes.remove(device, job)
        wanted = admission.unmanaged_bytes(self._node, job)
        ledger.promise(device, job, min(wanted, job.promised_bytes + ledger.free_bytes(device)))
        self._bytes_changed = True
        return []

    def _on_exited(self, job: Job, event: JobExited, now: Nanos) -> list[Effect]:
        node = self._node
        if job.device is not None:
            raise_floors(node, node.devices[job.device])
        self._close_lease(job, JobExited, now)
        if job.state is JobState.QUEUED:
            node.queue.remove(job.id)
        failed = JobState.CANCELLED if job.is_cancelled else JobState.FAILED
        node.move(job, JobExited, now=now, to=JobState.FINISHED if event.code == 0 else failed)
        code = "exit code unknown" if event.code is None else f"exit code {event.code}"
        job.reason = event.reason or code
        job.parked_bytes = 0
        effects: list[Effect] = [CloseJob(job=job.id, state=job.state, reason=job.reason)]
        if job.device is not None:
            device = node.devices[job.device]
            lanes.remove(device, job)
            ledger.release(device, job)
            reset_marks(node, device)
        if job.state is JobState.FINISHED and job.spec.fingerprint and job.steps:
            known = job.needs or (job.history.needs if job.history is not None else None)
            past = History(needs=known, steps=job.steps, step_ns=job.step_ns, served_ns=job.served_ns)
            node.histories[job.spec.fingerprint] = past
            effects.append(RememberJob(fingerprint=job.spec.fingerprint, history=past))
        self._bytes_changed = True
        return effects

    def _on_cancel(self, job: Job, event: CancelAsked, now: Nanos) -> list[Effect]:
        job.is_cancelled = True
        if job.state is not JobState.QUEUED:
            return [] if event.is_told else [StopJob(job=job.id)]
        self._node.queue.remove(job.id)
        self._node.move(job, CancelAsked, now=now)
        job.reason = "cancelled before it started"
        self._bytes_changed = True
        return [CloseJob(job=job.id, state=job.state, reason=job.reason)]

    def _on_tick(self, now: Nanos) -> list[Effect]:
        effects: list[Effect] = []
        for device in self._node.devices.values():
            effects += watch(self._node, device, now=now)
            self._bytes_changed = self._bytes_changed or parking.is_due(self._node, now=now)
            if self._node.queue and admission.cut_open_promise(self._node, device, now=now):
                self._bytes_changed = True
        return effects

    def _close_lease(self, job: Job, cause: type, now: Nanos) -> None:
        if job.lease is not None:
            self._node.move_lease(job, cause, now=now)
            reset_marks(self._node, self._node.device_of(job))

    def _tell_lanes(self) -> list[Effect]:
        now_told: dict[LaneId, tuple[DeviceId, int, tuple[JobId, ...]]] = {}
        for device in self._node.devices.values():
            for lane in device.lanes.values():
                now_told[lane.id] = (device.id, lane.bytes, tuple(lane.jobs))
        effects: list[Effect] = []
        for lane_id, told in self._lanes_told.items():
            if lane_id not in now_told:
                effects.append(ResizeLane(device=told[0], lane=lane_id, lane_bytes=0, jobs=()))
        for lane_id, facts in now_told.items():
            if self._lanes_told.get(lane_id) != facts:
                effects.append(ResizeLane(device=facts[0], lane=lane_id, lane_bytes=facts[1], jobs=facts[2]))
        self._lanes_told = now_told
        return effects
