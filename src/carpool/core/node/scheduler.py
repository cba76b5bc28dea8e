"""The node's scheduler: facts in, orders out.

`handle` takes one event and the time, changes the state, and returns the effects in the order in which they
must be performed. It never reads a clock, waits, logs or calls back: the same events at the same times give the
same effects on any machine, which is what lets one scheduler drive a live node and a simulation.

What happens inside one call are the phases of `handle` and `_settle`, always in that order. Bytes are settled only if
the device was touched: the modules that change who holds or wants bytes mark that themselves (memory/ledger.py). A
plain hand-over of a turn touches nothing.
"""

from __future__ import annotations

from carpool.core.kernel.ids import DeviceId, JobId, Nanos, TenantId
from carpool.core.node import accounts, adoption, endings, lifecycle, tenants
from carpool.core.node.effects import Effect, GrantLease, RefuseJob, RejectEvent, ResizeLane
from carpool.core.node.events import (
    CancelAsked,
    DeviceAdded,
    Event,
    HistoryLoaded,
    JobAdopted,
    JobDetached,
    JobEvent,
    JobExited,
    JobForgotten,
    JobResized,
    JobSubmitted,
    LeaseAsked,
    LeaseReturned,
    MigrateAsked,
    NeedsMeasured,
    NodeConfigured,
    ProgramStarted,
    ProgressSeen,
    SettingsChanged,
    StartPutOff,
    TenantSet,
    Tick,
)
from carpool.core.node.memory import admission, ledger, queue, resize, waiting
from carpool.core.node.model import AWAY, WAITING, Account, Device, Job, JobSpec, JobState, Why
from carpool.core.node.moves import departures, lending, migration, returns, rotation
from carpool.core.node.node import Node, is_asking, is_holding, next_try
from carpool.core.node.settings import Settings
from carpool.core.node.turns import choice, dispatch, hogs, packing, parts, shares
from carpool.core.node.words import explain, pictures, tenant_pictures
from carpool.core.node.words.views import JobPicture, NodePicture, TenantPicture
from carpool.core.policies.base import Policy
from carpool.errors import InternalError
from carpool.units import SECOND


class Scheduler:
    """All decisions of one node."""

    def __init__(self, policy: Policy, settings: Settings | None = None) -> None:
        self._node = Node(policy=policy, settings=settings or Settings())
        tenants.configure(self._node, self._node.settings)
        self._now: Nanos = 0
        self._lanes_told: ledger.Sizes = {}

    def handle(self, event: Event, *, now: Nanos) -> list[Effect]:
        """Take in one fact; returns what must be done now, in order."""
        if now < self._now:
            raise InternalError(f"time went back from {self._now} to {now}")
        self._now = now
        self._charge(now)
        effects = self._take(event, now)
        is_touched = self._is_touched()
        may_change_lanes = is_touched or self._node.policy.lanes_max > 1
        while True:
            effects += self._settle(now) if is_touched else []
            effects += self._let_leave(now)
            if not (is_touched := self._has_vain_claim(now)):
                break
        effects += self._dispatch(now)
        return effects + self._tell_lanes() if may_change_lanes else effects

    def _settle(self, now: Nanos) -> list[Effect]:
        """Who has which bytes: first those who are here, then those who come back, then the queue."""
        node, devices = self._node, list(self._node.devices.values())
        effects: list[Effect] = []
        if node.has_terms:
            lending.review(node, now=now)
        coming = migration.settle(node, now=now) if len(devices) > 1 else []
        for device in devices:
            accounts.raise_floors(node, device)
            if node.has_departure(device, Why.SENT_AWAY):
                hogs.forgive(node, device)
            effects += self._cover(device, now)
            effects += waiting.settle(node, device, now=now) if node.is_concerned(device) else []
            if node.awaits_return(device, now=now):
                rivals = queue.rivals(node, device, now=now)
                coming += returns.unpark_fitting(node, device, rivals, now=now)
            self._review_claim(device, now)
        if node.has_guarantees:
            lending.call_back(node, now=now)
        effects += queue.admit(node, now=now) if node.queue else []
        for device in devices:
            self._review_claim(device, now)
            if node.awaits_return(device, now=now):
                coming += returns.unpark_fitting(node, device, [], now=now)
        if node.has_claimants(now=now):
            rotation.make_room(node, now=now)
        # A job may take its bytes back only after its cap, and those of the others, say so.
        effects += [each for device in devices if node.has_shares(device) for each in shares.settle(node, device)]
        effects += [
            each for device in devices for job in node.jobs_on(device) for each in admission.tell_cap(node, job)
        ]
        lifecycle.sort_rows(node, now=now)
        if node.has_guarantees:
            lending.note_loans(node, now=now)
        ledger.note_settled(devices)
        return effects + coming

    # --- the phases, one short method each -------------------------------------------------------------------

    def _charge(self, now: Nanos) -> None:
        """Whoever holds a turn has had it until now."""
        for device in self._node.devices.values():
            if device.has_shares:
                lifecycle.end_limits(self._node, device, now=now)
                shares.charge_holders(self._node, device, now=now)
        accounts.charge_holders(self._node, now=now)

    def _is_touched(self) -> bool:
        """Whether this event changed who holds or wants bytes."""
        for device in self._node.devices.values():  # noqa: SIM110 - asked twice at every event; a generator takes twice as long
            if device.is_touched:
                return True
        return False

    def _cover(self, device: Device, now: Nanos) -> list[Effect]:
        """Cut lanes to what their jobs need, and make the promises hold what everybody here needs."""
        node = self._node
        ledger.shrink(device, node.jobs)
        effects: list[Effect] = []
        for job in sorted(node.jobs_on(device), key=lambda job: (job.arrived_ns, job.id)):
            if not admission.cover(node, job):
                effects += queue.merge_and_cover(node, device, job, now=now)
        ledger.shrink(device, node.jobs)
        return effects

    def _review_claim(self, device: Device, now: Nanos) -> None:
        if device.claimant is not None:
            rotation.review(self._node, device, now=now)

    def _let_leave(self, now: Nanos) -> list[Effect]:
        """Tell those who are held back and wait at a boundary to become smaller, or to go."""
        effects: list[Effect] = []
        for device in self._node.devices.values():
            if self._node.has_departure(device):
                if self._node.has_departure(device, Why.SHRINKS):
                    effects += resize.trim_waiting(self._node, device)
                effects += departures.park_leaving(self._node, device, now=now)
        return effects

    def _has_vain_claim(self, now: Nanos) -> bool:
        """Whether bytes are settled anew, because one who was to leave does not: the host is too full for it (R5)."""
        for device in self._node.devices.values():
            if device.claimant is not None and rotation.is_vain(self._node, device, now=now):
                return True
        return False

    def _dispatch(self, now: Nanos) -> list[Effect]:
        """Who has the device now: turns are recalled and granted. What this changes of bytes is settled already."""
        effects: list[Effect] = []
        for device in self._node.devices.values():
            effects += dispatch.dispatch(self._node, device, now=now)
        if self._is_touched():
            ledger.clear_touches(self._node.devices.values())
        return effects

    def _tell_lanes(self) -> list[Effect]:
        """Tell the driver of lanes that were closed, opened or resized."""
        before, after = self._lanes_told, ledger.sizes(self._node.devices.values())
        self._lanes_told = after
        gone = [(lane, (facts[0], 0, tuple[JobId, ...]())) for lane, facts in before.items() if lane not in after]
        changed = [(lane, facts) for lane, facts in after.items() if before.get(lane) != facts]
        return [
            ResizeLane(device=device, lane=lane, lane_bytes=size, jobs=jobs)
            for lane, (device, size, jobs) in [*gone, *changed]
        ]

    def next_wakeup(self) -> Nanos | None:
        """When the driver must send a Tick if nothing else happens; None for never."""
        times = [time for device in self._node.devices.values() for time in self._looks(device, self._now)]
        start_ns = self._node.next_start_look()
        return min(times if start_ns is None else [*times, start_ns], default=None)

    def _looks(self, device: Device, now: Nanos) -> list[Nanos]:
        """When this device next needs a Tick; nothing while nobody waits for anybody."""
        node = self._node
        times = choice.next_looks(node, device, now=now)
        tries = [next_try(job, now=now) for job in node.lively_on(device)]
        tries.append(rotation.next_look(node, device, now=now))
        times += [time for time in tries if time is not None]
        times += waiting.next_looks(node, device, now=now)
        if node.queue:
            quiet = [job for job in node.jobs_on(device) if admission.is_open_and_quiet(job)]
            patience_ns = node.settings.start_patience_ns
            times += [max(now + SECOND, job.state_since_ns + patience_ns) for job in quiet]
        return times

    def picture(self, *, now: Nanos) -> NodePicture:
        reasons = {job.id: explain.explain(self._node, job, now=now) for job in self._node.jobs.values()}
        return pictures.picture_node(self._node, reasons, now=now)

    def tenants(self, *, now: Nanos) -> tuple[TenantPicture, ...]:
        """All tenants of whom something is said or who have jobs here, with what they have, lend and borrow."""
        return tenant_pictures.picture_tenants(self._node, now=now)

    def lent(self, *, now: Nanos) -> dict[TenantId, Nanos]:
        """What each tenant has lent of its guaranteed part until now, on all devices; empty where nobody has one."""
        return parts.lent_ns(self._node, now=now)

    def picture_job(self, job: JobId, *, now: Nanos) -> JobPicture | None:
        found = self._node.jobs.get(job)
        if found is None:
            return None
        return pictures.picture_job(self._node, found, explain.explain(self._node, found, now=now), now=now)

    def account_of(self, job: JobId, *, now: Nanos) -> Account:
        """A live job's account; handed back with it when it comes to the next driver."""
        return lifecycle.account_of(self._node.jobs[job], now=now)

    def standing_of(self, job: JobId, *, now: Nanos) -> lifecycle.Standing:
        """What its account would have that is new, told in a tenth of the time."""
        return lifecycle.standing_of(self._node.jobs[job], now)

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
        lively = (job for device in self._node.devices.values() for job in self._node.lively_on(device))
        return [job.id for job in lively if is_holding(job) or is_asking(job)]

    def successor(self, job: JobId) -> GrantLease | None:
        """What the return of this job's turn will grant, if nothing else happens before it (D5). A driver may perform
        it first and tell the core of the return afterwards: the same effect comes back."""
        lane = self._node.lane_of(self._node.jobs[job])
        if lane is None or lane.holder != job or lane.successor is None:
            return None
        return dispatch.grant_of(self._node, lane, lane.successor)

    def unheard_until(self, job: JobId) -> Nanos | None:
        """Until when a driver need not hear that this recalled holder's turn went on: the successor will hardly have
        had its quantum. None: at once, as limits count turns, or another device's events may change who follows."""
        return choice.unheard_until(self._node, self._node.jobs[job], now=self._now)

    def waiters(self, job: JobId) -> int:
        """How many other jobs wait for the lane of this job."""
        lane = self._node.lane_of(self._node.jobs[job])
        return len([other for other in self._node.waiting_in(lane) if other.id != job]) if lane else 0

    def check_invariants(self) -> None:
        """Assert every numbered rule; for tests and for a driver that wants to be sure."""
        node = self._node
        for device in node.devices.values():
            ledger.check_ledger(device, node.jobs)
            ledger.check_lanes(device, node.jobs)
            rotation.check_claim(node, device)
            shares.check_shares(node, device)
        departures.check_departures(node)
        migration.check_moves(node)
        node.check_jobs()

    # --- one short method a case -------------------------------------------------------------------------

    def _take(self, event: Event, now: Nanos) -> list[Effect]:
        match event:
            case LeaseReturned() | LeaseAsked() | ProgressSeen():  # most of them
                return self._take_from_job(event, now)
            case Tick():
                return self._on_tick(now)
            case NodeConfigured():
                return self._on_configured(event)
            case DeviceAdded():
                return self._on_device(event)
            case SettingsChanged():
                return self._on_settings(event)
            case TenantSet():
                return self._on_tenant(event, now)
            case HistoryLoaded():
                endings.remember(self._node, event.fingerprint, event.history)
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
        if (job.state, type(event)) not in lifecycle.JOB_MOVES:
            return [self._reject(event, f"the job is {job.state}")]
        return self._take_known(job, event, now)

    def _take_known(self, job: Job, event: JobEvent, now: Nanos) -> list[Effect]:
        match event:
            case LeaseReturned():
                return self._on_returned(job, event, now)
            case LeaseAsked():
                return self._on_asked(job, event, now)
            case NeedsMeasured():
                return self._on_measured(job, event, now)
            case ProgressSeen():
                return self._on_seen(job, event, now)
            case JobDetached() | JobForgotten() | ProgramStarted() | StartPutOff():
                self._take_rare(job, event, now)
                return []
            case JobExited():
                return endings.end(self._node, job, event, now=now)
            case CancelAsked():
                return self._on_cancelled(job, event, now)
            case JobResized():
                lifecycle.note_order(job, event, now=now)
                reason = resize.refusal(self._node, job, event)
                return [self._reject(event, reason)] if reason is not None else resize.take(self._node, job, event)
            case MigrateAsked():
                return migration.take(self._node, job, event, now=now)
            case JobSubmitted() | JobAdopted():
                raise InternalError(f"{type(event).__name__} is handled before")
            case _:
                departures.take(self._node, job, event, now=now)
                return []

    def _reject(self, event: JobEvent, reason: str) -> RejectEvent:
        return RejectEvent(job=event.job, event=type(event).__name__, reason=reason)

    def _on_configured(self, event: NodeConfigured) -> list[Effect]:
        if self._node.devices or self._node.jobs:
            raise InternalError("a node is configured before it has devices and jobs")
        self._node.settings = event.settings
        tenants.configure(self._node, event.settings)
        return []

    def _on_tenant(self, event: TenantSet, now: Nanos) -> list[Effect]:
        reason = tenants.refusal_of(self._node, event)
        if reason:
            return [RejectEvent(job=None, event=type(event).__name__, reason=reason)]
        tenants.take(self._node, event)
        resize.keep_priorities(self._node)
        lending.begin_anew(self._node, now=now)
        return []

    def _on_settings(self, event: SettingsChanged) -> list[Effect]:
        self._node.settings = self._node.settings.with_live(event.settings)
        for device in self._node.devices.values():
            ledger.touch(device)
        return []

    def _on_device(self, event: DeviceAdded) -> list[Effect]:
        if event.device in self._node.devices:
            raise InternalError(f"device {event.device} is here already")
        self._node.devices[event.device] = Device(id=event.device, capacity_bytes=event.capacity_bytes)
        return []

    def _on_submitted(self, event: JobSubmitted, now: Nanos) -> list[Effect]:
        if event.job in self._node.jobs:
            return [self._reject(event, "a job with this id exists already")]
        job = adoption.new_job(self._node, event, now=now)
        node = self._node
        reason = tenants.refusal(node, job.spec) or queue.refusal(node, job) or shares.refusal(node, job.spec)
        if reason is None:
            resize.keep_priority(node, job)
            return []
        lifecycle.move(self._node, job, RefuseJob, now=now)
        lifecycle.note_reason(job, reason)
        return [RefuseJob(job=job.id, reason=reason)]

    def _on_adopted(self, event: JobAdopted, now: Nanos) -> list[Effect]:
        if event.job in self._node.jobs:
            return [self._reject(event, "a job with this id exists already")]
        device = self._node.devices.get(event.device)
        if device is None:
            return [self._reject(event, f"device {event.device} is not here")]
        effects = adoption.take_back(self._node, device, event, now=now)
        resize.keep_priority(self._node, self._node.jobs[event.job])
        return effects

    def _on_asked(self, job: Job, event: LeaseAsked, now: Nanos) -> list[Effect]:
        node, device = self._node, self._node.device_of(job)
        shares.note_pace(job, event.is_paced)
        if job.lane is None:
            admission.enter_lane(node, device, job)
        if job.state is JobState.STARTING:
            departures.arrive(job, now=now)
        if job.memory.pending_bytes:
            ledger.ask(device, job, 0)
        if job.departures:
            resize.ask_again(node, job)
        lifecycle.move(node, job, LeaseAsked, now=now)
        return []

    def _on_returned(self, job: Job, event: LeaseReturned, now: Nanos) -> list[Effect]:
        node = self._node
        if job.memory.denial and event.steps > job.service.steps:
            ledger.forget_denial(job)
        accounts.note_steps(node, job, event.steps, now=now)
        if job.state in AWAY:
            departures.came_back_alone(node, job)
        if job.lease is not None:
            if job.lease.hog_steps:
                hogs.turn_ended(node, job, now=now)
            waits = {"stall_ns": 0, "stall_held_ns": event.stall_held_ns, "pause_ns": event.pause_ns}
            idle_ns = accounts.note_waits(node, job, **waits)
            if idle_ns:
                shares.refund(job, min(idle_ns, now - job.lease.granted_ns), now=now)
            accounts.note_end(job, wants_more=event.wants_more)
            lifecycle.move_lease(node, job, LeaseReturned, now=now)
        lifecycle.move(node, job, LeaseReturned, now=now, to=WAITING if event.wants_more else JobState.IDLE)
        return []

    def _take_rare(
        self, job: Job, event: JobDetached | JobForgotten | ProgramStarted | StartPutOff, now: Nanos
    ) -> None:
        """It runs, was not started, takes no more turns, or is over and nobody asks for it any more."""
        match event:
            case ProgramStarted():
                lifecycle.note_started(self._node, job)
            case StartPutOff():
                endings.put_off(self._node, job, event, now=now)
            case JobDetached():
                endings.detach(self._node, job, event, now=now)
            case JobForgotten():
                lifecycle.forget(self._node, job)
                packing.forget(self._node, job.id)

    def _on_cancelled(self, job: Job, event: CancelAsked, now: Nanos) -> list[Effect]:
        was_queued = job.state is JobState.QUEUED
        effects = endings.cancel(self._node, job, event, now=now)
        return effects if was_queued else effects + waiting.give_up(job, now=now)

    def _on_measured(self, job: Job, event: NeedsMeasured, now: Nanos) -> list[Effect]:
        """Its first turns were measured, or it outgrew what was known of it."""
        node = self._node
        needs = admission.with_margin(event.needs, job.memory.needs, node.settings.margin_percent)
        ledger.learn_needs(node.device_of(job), job, needs, event.needs)
        if event.step_ns is not None:
            accounts.learn_first_step(node, job, event.step_ns)
        if event.steps_total is not None:
            accounts.learn_length(job, event.steps_total)
        lifecycle.move(node, job, NeedsMeasured, now=now)
        return resize.judge(node, job)

    def _on_seen(self, job: Job, event: ProgressSeen, now: Nanos) -> list[Effect]:
        """What the page and the operating system say of it now."""
        if event.steps > job.service.steps and job.memory.denial:
            ledger.forget_denial(job)
        ledger.see_live(job, event.live_bytes)
        if event.is_recount:
            accounts.recount(job, event.steps)
        accounts.note_waits(
            self._node, job, stall_ns=event.stall_ns, stall_held_ns=event.stall_held_ns, pause_ns=event.pause_ns
        )
        accounts.see_signs(self._node, job, steps=event.steps, cpu_ns=event.cpu_ns, now=now)
        accounts.note_changes(job, event.changes, event.change_ns)
        if not event.pending_bytes and not job.memory.pending_bytes:
            return []
        return waiting.take(self._node, job, event.pending_bytes, now=now)

    def refusal_of(self, event: JobResized | TenantSet) -> str | None:
        """Why this would be rejected; None if it would not."""
        if isinstance(event, TenantSet):
            return tenants.refusal_of(self._node, event) or None
        return resize.refusal(self._node, self._node.jobs[event.job], event)

    def _on_tick(self, now: Nanos) -> list[Effect]:
        """Time passed: look at holders, and at what may be decided differently by now."""
        node, effects = self._node, list[Effect]()
        lifecycle.review_starts(node, now=now)
        for device in node.devices.values():
            effects += hogs.watch(node, device, now=now)
            is_due = returns.is_due(node, now=now) or rotation.is_due(node, device, now=now)
            if is_due or waiting.is_due(node, device, now=now):
                ledger.touch(device)
            if node.queue:
                admission.cut_open_promise(node, device, now=now)
        return effects
