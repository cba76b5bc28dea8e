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

from carpool.core.kernel.ids import DeviceId, JobId, Nanos
from carpool.core.node import adoption, endings, reports
from carpool.core.node.accounts import (
    account_of,
    begin_wanting,
    charge_holders,
    newcomer_level,
    note_steps,
    raise_floors,
    reset_marks,
    restore,
    sort_rows,
)
from carpool.core.node.effects import (
    Effect,
    GrantLease,
    RefuseJob,
    RejectEvent,
)
from carpool.core.node.events import (
    CancelAsked,
    DeviceAdded,
    Event,
    HistoryLoaded,
    JobAdopted,
    JobDetached,
    JobEvent,
    JobExited,
    JobParked,
    JobResized,
    JobSubmitted,
    JobUnparked,
    LeaseAsked,
    LeaseReturned,
    MigrateAsked,
    MoveFailed,
    NeedsMeasured,
    ProgressSeen,
    ResumeAsked,
    SuspendAsked,
    Tick,
)
from carpool.core.node.lifecycle import may_move
from carpool.core.node.memory import admission, lanes, ledger, resize, waiting
from carpool.core.node.model import (
    AWAY,
    ENDED,
    WAITING,
    WANTING,
    Account,
    Device,
    Job,
    JobSpec,
    JobState,
    Squeeze,
    WallTime,
)
from carpool.core.node.moves import migration, parking, rotation
from carpool.core.node.node import Node, is_holding
from carpool.core.node.settings import Settings
from carpool.core.node.settle import settle
from carpool.core.node.turns import hogs, shares
from carpool.core.node.turns.dispatch import LOOK_NS_MIN, dispatch, grant_of, next_wakeup, watch
from carpool.core.node.words import pictures
from carpool.core.node.words.views import JobPicture, NodePicture
from carpool.core.policies.base import Policy
from carpool.errors import InternalError


class Scheduler:
    """All decisions of one node."""

    def __init__(self, policy: Policy, settings: Settings | None = None) -> None:
        self._node = Node(policy=policy, settings=settings or Settings())
        self._now: Nanos = 0
        self._bytes_changed = False
        self._lanes_told: lanes.Sizes = {}

    def handle(self, event: Event, *, now: Nanos) -> list[Effect]:
        """Take in one fact; returns what must be done now, in order."""
        if now < self._now:
            raise InternalError(f"time went back from {self._now} to {now}")
        self._now = now
        charge_holders(self._node, now=now)
        effects = self._take(event, now)
        lanes_may_change = self._bytes_changed or self._node.policy.lanes_max > 1
        effects += self._settle(now)
        for device in self._node.devices.values():
            effects += dispatch(self._node, device, now=now)
        return effects + self._tell_lanes() if lanes_may_change else effects

    def _settle(self, now: Nanos) -> list[Effect]:
        """Who has which bytes, and who is told to leave; anew if the host is too full for one who was to (R5)."""
        effects: list[Effect] = []
        while True:
            if self._bytes_changed:
                effects += settle(self._node, now=now)
                sort_rows(self._node, now=now)
            self._bytes_changed = False
            for device in self._node.devices.values():
                if self._node.held_back_on(device):
                    effects += resize.trim_waiting(self._node, device)
                    effects += parking.park_leaving(self._node, device, now=now)
                if rotation.is_vain(self._node, device, now=now):
                    self._bytes_changed = True
            if not self._bytes_changed:
                return effects

    def _tell_lanes(self) -> list[Effect]:
        before, self._lanes_told = self._lanes_told, lanes.sizes(self._node.devices.values())
        return lanes.changes(before, self._lanes_told)

    def next_wakeup(self) -> Nanos | None:
        """When the driver must send a Tick if nothing else happens; None for never."""
        times = [next_wakeup(self._node, device, now=self._now) for device in self._node.devices.values()]
        return min((time for time in times if time is not None), default=None)

    def picture(self, *, now: Nanos) -> NodePicture:
        return pictures.picture_node(self._node, now=now)

    def picture_job(self, job: JobId, *, now: Nanos) -> JobPicture | None:
        found = self._node.jobs.get(job)
        return pictures.picture_job(self._node, found, now=now) if found is not None else None

    def account_of(self, job: JobId, *, now: Nanos) -> Account:
        """A live job's account; handed back with it when it comes to the next driver."""
        return account_of(self._node.jobs[job], now=now)

    def spec_of(self, job: JobId) -> JobSpec:
        return self._node.jobs[job].spec

    def state_of(self, job: JobId) -> JobState | None:
        found = self._node.jobs.get(job)
        return found.state if found is not None else None

    def move_refusal(self, job: JobId, device: DeviceId) -> str:
        """Why a job could not be moved to this device now; empty if it could."""
        return migration.refusal(self._node, self._node.jobs[job], device)

    def holders(self) -> list[JobId]:
        """The jobs that hold a turn."""
        lanes_here = [lane for device in self._node.devices.values() for lane in device.lanes.values()]
        return [lane.holder for lane in lanes_here if lane.holder is not None]

    def watched(self) -> list[JobId]:
        """The jobs in the middle of a turn, and those whose allocations wait; a driver reports their progress with
        each Tick, and that of any other when it sees that an allocation of it waits."""
        return [job.id for job in self._node.jobs.values() if is_holding(job) or waiting.is_asking(job)]

    def successor(self, job: JobId) -> GrantLease | None:
        """What the return of this job's turn will grant, if nothing else happens before it (D5). A driver may perform
        it first and tell the core of the return afterwards: the same effect comes back."""
        lane = self._node.lane_of(self._node.jobs[job])
        if lane is None or lane.holder != job or lane.successor is None:
            return None
        return grant_of(self._node, lane, lane.successor)

    def unheard_until(self, job: JobId) -> Nanos | None:
        """Until when a driver need not hear that this recalled holder's turn went on: the successor will hardly have
        had his quantum. None: at once, as limits count turns, or another device's events may change who follows."""
        node, holder = self._node, self._node.jobs[job]
        if node.device_of(holder).has_shares or len(node.devices) > 1 or holder.lease is None:
            return None
        since = holder.lease.recalled_ns or self._now
        late = self._now + max(LOOK_NS_MIN, self._now - since)  # ever later if it takes longer than usual
        return max(late, since + (holder.service.step_ns or 0) + node.quantum_ns)

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
            rotation.check_claim(node, device)
            shares.check_shares(node, device)
        migration.check_moves(node)
        node.check_jobs()

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
            case _:
                return self._take_from_job(event, now)

    def _take_from_job(self, event: JobEvent, now: Nanos) -> list[Effect]:
        job = self._node.jobs.get(event.job)
        if job is None:
            return [self._reject(event, "no such job")]
        if not may_move(job.state, type(event)):
            return [self._reject(event, f"the job is {job.state}")]
        return self._take_known(job, event, now)

    def _take_known(self, job: Job, event: JobEvent, now: Nanos) -> list[Effect]:
        match event:
            case LeaseAsked():
                return self._on_asked(job, event, now)
            case LeaseReturned():
                return self._on_returned(job, event, now)
            case NeedsMeasured():
                self._bytes_changed = True
                return reports.measured(self._node, job, event, now=now)
            case ProgressSeen():
                self._bytes_changed = bool(event.pending_bytes or job.memory.pending_bytes)
                return reports.seen(self._node, job, event, now=now)
            case JobDetached() | JobExited() | CancelAsked():
                return self._on_leaving(job, event, now)
            case (
                SuspendAsked()
                | ResumeAsked()
                | JobParked()
                | JobUnparked()
                | MoveFailed()
                | JobResized()
                | MigrateAsked()
            ):
                return self._on_room(job, event, now)
            case JobSubmitted() | JobAdopted():
                raise InternalError(f"{type(event).__name__} is handled before")
            case _:
                assert_never(event)

    def _reject(self, event: JobEvent, reason: str) -> RejectEvent:
        return RejectEvent(job=event.job, event=type(event).__name__, reason=reason)

    def _new_job(self, event: JobSubmitted | JobAdopted, now: Nanos) -> Job:
        job = Job(id=event.job, spec=event.spec, arrived_ns=now, state_since_ns=now, wall=WallTime(row_since_ns=now))
        job.history = self._node.histories.get(event.spec.fingerprint) if event.spec.fingerprint else None
        job.service.level, job.wanting_since_ns = newcomer_level(self._node, job), now
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
        if event.account is not None:
            restore(job, event.account, "memory", now=now)
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
        return adoption.take_back(node, device, job, event, now=now)

    def _on_asked(self, job: Job, event: LeaseAsked, now: Nanos) -> list[Effect]:
        job.share.is_paced = event.is_paced
        if job.lane is None:
            admission.enter_lane(self._node, self._node.device_of(job), job)
            self._bytes_changed = True
        job.move.came_ns = now if job.state is JobState.STARTING else job.move.came_ns
        job.memory.pending_bytes = 0
        if job.squeeze is Squeeze.TRIMMING:
            job.squeeze = Squeeze.ASKED  # whoever was told before is gone
        begin_wanting(self._node, job)
        self._node.move(job, LeaseAsked, now=now)
        self._bytes_changed = self._bytes_changed or self._node.device_of(job).is_pressed  # it may be parked now (W5)
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
            hogs.turn_ended(node, job, now=now)
            if event.idle_ns:
                shares.refund(job, min(event.idle_ns, now - job.lease.granted_ns), now=now)
            node.move_lease(job, LeaseReturned, now=now)
            if len(device.lanes) > 1:
                reset_marks(node, device)
        node.move(job, LeaseReturned, now=now, to=WAITING if event.wants_more else JobState.IDLE)
        if (
            ledger.was_given(job)
            or device.is_pressed
            or (
                len(device.lanes) > 1
                and (node.queue or node.outgrown_on(device) or parking.awaits_return(node, device, now=now))
            )
        ):
            self._bytes_changed = True  # a lane that is free for a moment may be merged to let somebody in
        return []

    def _on_leaving(self, job: Job, event: JobDetached | JobExited | CancelAsked, now: Nanos) -> list[Effect]:
        was, effects = job.state, list[Effect]()
        match event:
            case JobDetached():
                endings.detach(self._node, job, event, now=now)
            case JobExited():
                effects = endings.end(self._node, job, event, now=now)
            case CancelAsked():
                effects = endings.cancel(self._node, job, event, now=now)
        self._bytes_changed = job.state is not was
        return effects

    def _on_room(self, job: Job, event: parking.ParkingEvent | JobResized | MigrateAsked, now: Nanos) -> list[Effect]:
        """What changes who holds which bytes where."""
        effects: list[Effect] = []
        if isinstance(event, JobResized):
            reason = resize.refusal(self._node, job, event)
            effects = [self._reject(event, reason)] if reason is not None else resize.take(self._node, job, event)
        elif isinstance(event, MigrateAsked):
            effects = migration.take(self._node, job, event, now=now)
        else:
            parking.take(self._node, job, event, now=now)
            rotation.note_move(self._node, job, now=now)
        self._bytes_changed = not any(isinstance(effect, RejectEvent) for effect in effects)
        return effects

    def refusal_of(self, event: JobResized) -> str | None:
        """Why this would be rejected; None if it would not."""
        return resize.refusal(self._node, self._node.jobs[event.job], event)

    def _on_tick(self, now: Nanos) -> list[Effect]:
        effects: list[Effect] = []
        for device in self._node.devices.values():
            effects += watch(self._node, device, now=now)
            is_due = parking.is_due(self._node, now=now) or rotation.is_due(self._node, device, now=now)
            is_due = is_due or waiting.is_due(device, now=now)
            self._bytes_changed = self._bytes_changed or is_due
            if self._node.queue and admission.cut_open_promise(self._node, device, now=now):
                self._bytes_changed = True
        return effects
