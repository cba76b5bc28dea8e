"""Feeds a scheduler by hand: a clock that moves only when told, and every rule checked after every event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypedDict, TypeVar, Unpack

from carpool.core.kernel.ids import DeviceId, JobId, Nanos, TenantId
from carpool.core.node.effects import Effect, GrantLease, ParkJob, RecallLease, RevokeLease, SetCap, UnparkJob
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
    ProgramStarted,
    ProgressSeen,
    ResumeAsked,
    StartPutOff,
    SuspendAsked,
    TenantSet,
    Tick,
)
from carpool.core.node.model import History, JobSpec, JobState, Needs, Why
from carpool.core.node.scheduler import Scheduler
from carpool.core.node.settings import Settings, TenantTerms
from carpool.core.node.words.views import DevicePicture, JobPicture, LanePicture, TenantPicture
from carpool.policies import POLICIES
from carpool.units import GIB, MS

E = TypeVar("E", bound=Effect)
STEP: Nanos = 10 * MS
WATCH_NS = Settings().watch_ns
# What was measured is what is promised, and one unknown job takes all that is free: so that tests can count.
EXACT = Settings(margin_percent=0, open_share_divisor=1)
NOBODY_MOVES = Settings(margin_percent=0, open_share_divisor=1, move_percent=0)


class SpecFields(TypedDict, total=False):
    tenant: str
    weight_milli: int
    priority: int
    cap_bytes: int
    wait_memory_ns: int
    guaranteed_milli: int
    limit_milli: int
    steps: int
    device: str
    on_hog: str
    may_park: bool
    fingerprint: str


@dataclass(kw_only=True)
class Turn:
    job: str
    granted_ns: Nanos
    ended_ns: Nanos | None = None


def spec_of(name: str, fields: SpecFields) -> JobSpec:
    device = fields.get("device")
    return JobSpec(
        name=name,
        tenant=TenantId(fields.get("tenant", "default")),
        weight_milli=fields.get("weight_milli", 1000),
        priority=fields.get("priority", 0),
        cap_bytes=fields.get("cap_bytes"),
        wait_memory_ns=fields.get("wait_memory_ns"),
        guaranteed_milli=fields.get("guaranteed_milli", 0),
        limit_milli=fields.get("limit_milli", 1000),
        steps=fields.get("steps"),
        on_hog=fields.get("on_hog", "suspend"),
        may_park=fields.get("may_park", True),
        device=DeviceId(device) if device is not None else None,
        fingerprint=fields.get("fingerprint", ""),
    )


def needs(persistent_bytes: int, ephemeral_bytes: int, overhead_bytes: int = 0) -> Needs:
    return Needs(persistent_bytes=persistent_bytes, ephemeral_bytes=ephemeral_bytes, overhead_bytes=overhead_bytes)


def only(effects: list[Effect], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


class CoreDriver:
    """One scheduler, its clock, and the log of every turn it gave."""

    def __init__(
        self, policy: str = "fair", *, settings: Settings = EXACT, capacity_bytes: int = 16 * GIB, devices: int = 1
    ) -> None:
        self.scheduler = Scheduler(POLICIES[policy], settings)
        self.now: Nanos = 0
        self.effects: list[Effect] = []  # all there were
        self.turns: list[Turn] = []
        self.recalled: list[str] = []
        self.steps: dict[str, int] = {}
        self.caps: dict[str, int] = {}  # what each was told last that it may hold
        self.moves: dict[str, ParkJob | UnparkJob] = {}  # ordered and not answered
        self.move_ns: Nanos = 20 * MS  # what a copy takes
        self.change_ns: dict[str, Nanos] = {}  # what a change of turn costs it, where its program says so
        self.trouble: dict[str, str] = {}  # why a job cannot be moved
        for index in range(devices):
            self.add_device(f"gpu{index}", capacity_bytes)

    def send(self, event: Event) -> list[Effect]:
        effects = self.scheduler.handle(event, now=self.now)
        self.scheduler.check_invariants()
        self._end_turns()
        for effect in effects:
            match effect:
                case GrantLease():
                    self.recalled = [job for job in self.recalled if job != effect.job]
                    self.turns.append(Turn(job=effect.job, granted_ns=self.now))
                case RecallLease():
                    self.recalled.append(effect.job)
                case RevokeLease():
                    self.recalled = [job for job in self.recalled if job != effect.job]
                case ParkJob() | UnparkJob():
                    self.moves[effect.job] = effect
                case SetCap():
                    self.caps[effect.job] = effect.cap_bytes
                case _:
                    pass
        self.effects += effects
        return effects

    def _end_turns(self) -> None:
        holding = set(self.scheduler.holders())
        for turn in self.turns:
            if turn.ended_ns is None and turn.job not in holding:
                turn.ended_ns = self.now
        self.recalled = [job for job in self.recalled if job in holding]

    # --- facts ------------------------------------------------------------------------------------------

    def add_device(self, device: str, capacity_bytes: int) -> list[Effect]:
        return self.send(DeviceAdded(device=DeviceId(device), capacity_bytes=capacity_bytes))

    def tenant(self, tenant: str, terms: TenantTerms | None) -> list[Effect]:
        return self.send(TenantSet(tenant=TenantId(tenant), terms=terms))

    def remember(
        self,
        fingerprint: str,
        known: Needs | None,
        *,
        steps: int = 100,
        step_ns: Nanos | None = None,
        served_ns: Nanos = 0,
    ) -> list[Effect]:
        history = History(needs=known, steps=steps, step_ns=step_ns, served_ns=served_ns)
        return self.send(HistoryLoaded(fingerprint=fingerprint, history=history))

    def submit(self, job: str, **fields: Unpack[SpecFields]) -> list[Effect]:
        return self.send(JobSubmitted(job=JobId(job), spec=spec_of(job, fields)))

    def submit_known(self, job: str, known: Needs, **fields: Unpack[SpecFields]) -> list[Effect]:
        """A job whose program was measured in an earlier run: it starts with a lane and is never profiled."""
        fields.setdefault("fingerprint", f"program of {job}")
        self.remember(fields["fingerprint"], known)
        return self.submit(job, **fields)

    def settle_in(self, job: str, known: Needs, **fields: Unpack[SpecFields]) -> list[Effect]:
        """A known job that was started and wants turns."""
        self.submit_known(job, known, **fields)
        return self.ask(job)

    def adopt(
        self,
        job: str,
        *,
        holding: bool,
        known: Needs | None = None,
        on: str = "gpu0",
        steps_made: int = 0,
        live_bytes: int = 0,
        parked_bytes: int | None = None,
        is_suspended: bool = False,
        **fields: Unpack[SpecFields],
    ) -> list[Effect]:
        self.steps[job] = steps_made
        return self.send(
            JobAdopted(
                job=JobId(job),
                spec=spec_of(job, fields),
                device=DeviceId(on),
                holding=holding,
                steps=steps_made,
                live_bytes=live_bytes,
                needs=known,
                is_parked=parked_bytes is not None,
                parked_bytes=parked_bytes or 0,
                held_for=(Why.SUSPENDED,) if is_suspended else (),
            )
        )

    def ask(self, job: str, *, is_paced: bool = False) -> list[Effect]:
        return self.send(LeaseAsked(job=JobId(job), is_paced=is_paced))

    def share(self, job: str, guaranteed_milli: int, limit_milli: int) -> list[Effect]:
        return self.send(JobResized(job=JobId(job), share_milli=(guaranteed_milli, limit_milli)))

    def give_back(
        self, job: str, *, wants_more: bool = True, steps: int | None = None, idle_ns: Nanos = 0
    ) -> list[Effect]:
        self.steps[job] = self.steps.get(job, 0) + 1 if steps is None else steps
        returned = LeaseReturned(job=JobId(job), wants_more=wants_more, steps=self.steps[job], pause_ns=idle_ns)
        return self.send(returned)

    def measure(
        self, job: str, measured: Needs, *, step_ns: Nanos | None = None, steps_total: int | None = None
    ) -> list[Effect]:
        return self.send(NeedsMeasured(job=JobId(job), needs=measured, step_ns=step_ns, steps_total=steps_total))

    def report(
        self, job: str, *, steps: int | None = None, cpu_ns: Nanos = 0, live_bytes: int = 0, pending_bytes: int = 0
    ) -> list[Effect]:
        """What the page and the operating system say of a job; without steps it made none."""
        self.steps[job] = self.steps.get(job, 0) if steps is None else steps
        return self.send(
            ProgressSeen(
                job=JobId(job),
                steps=self.steps[job],
                cpu_ns=cpu_ns,
                live_bytes=live_bytes,
                pending_bytes=pending_bytes,
                changes=self._changes(job),
                change_ns=self._changes(job) * self.change_ns.get(job, 0),
            )
        )

    def _changes(self, job: str) -> int:
        """How many turns of it, after its first, began when others had had the device."""
        return max(0, sum(turn.job == job for turn in self.turns) - 1) if job in self.change_ns else 0

    def block(self, job: str, live_bytes: int, pending_bytes: int) -> list[Effect]:
        """An allocation of a holder waits: it is seen twice, and nothing helped between."""
        self.report(job, live_bytes=live_bytes, pending_bytes=pending_bytes)
        return self.report(job, live_bytes=live_bytes, pending_bytes=pending_bytes)

    def started(self, job: str) -> list[Effect]:
        return self.send(ProgramStarted(job=JobId(job)))

    def put_off(self, job: str, reason: str) -> list[Effect]:
        return self.send(StartPutOff(job=JobId(job), reason=reason))

    def detach(self, job: str, reason: str = "it was told to") -> list[Effect]:
        return self.send(JobDetached(job=JobId(job), reason=reason))

    def exit(self, job: str, code: int | None = 0, reason: str = "") -> list[Effect]:
        return self.send(JobExited(job=JobId(job), code=code, reason=reason))

    def cancel(self, job: str, *, is_told: bool = False) -> list[Effect]:
        return self.send(CancelAsked(job=JobId(job), is_told=is_told))

    def forget(self, job: str) -> list[Effect]:
        return self.send(JobForgotten(job=JobId(job)))

    def resize(
        self, job: str, cap_bytes: int | None = None, *, weight_milli: int | None = None, may_end: bool = False
    ) -> list[Effect]:
        return self.send(JobResized(job=JobId(job), cap_bytes=cap_bytes, weight_milli=weight_milli, may_end=may_end))

    def suspend(self, job: str) -> list[Effect]:
        return self.send(SuspendAsked(job=JobId(job)))

    def resume(self, job: str) -> list[Effect]:
        return self.send(ResumeAsked(job=JobId(job)))

    def migrate(self, job: str, device: str) -> list[Effect]:
        return self.send(MigrateAsked(job=JobId(job), device=DeviceId(device)))

    def parked(self, job: str, parked_bytes: int, resident_bytes: int = 0, *, move_ns: Nanos = MS) -> list[Effect]:
        event = JobParked(job=JobId(job), parked_bytes=parked_bytes, resident_bytes=resident_bytes, move_ns=move_ns)
        return self.send(event)

    def unparked(self, job: str, *, move_ns: Nanos = MS) -> list[Effect]:
        return self.send(JobUnparked(job=JobId(job), move_ns=move_ns))

    def move_failed(self, job: str, reason: str = "the disk is full") -> list[Effect]:
        return self.send(MoveFailed(job=JobId(job), reason=reason))

    def move(self, job: str) -> list[Effect]:
        """The job does the move it was told: all but the framework's share leaves, everything comes back."""
        order = self.moves.pop(job)
        if self.state(job) not in (JobState.PARKING, JobState.UNPARKING):
            return []
        if job in self.trouble:
            return self.move_failed(job, self.trouble[job])
        if isinstance(order, UnparkJob):
            return self.unparked(job, move_ns=self.move_ns)
        known = self.job(job).needs
        stays = known.overhead_bytes if known is not None else 0
        return self.parked(job, order.limit_bytes - stays, stays, move_ns=self.move_ns)

    def tick(self, after_ns: Nanos = 0) -> list[Effect]:
        self.now += after_ns
        return self.send(Tick())

    def look_for(self, span_ns: Nanos) -> list[Effect]:
        """Nobody does anything for so long; the driver looks as often as it should."""
        return [effect for _ in range(span_ns // WATCH_NS) for effect in self.tick(WATCH_NS)]

    def wait(self, span_ns: Nanos) -> None:
        self.now += span_ns

    def run(self, span_ns: Nanos, *, step_ns: dict[str, Nanos] | None = None) -> None:
        """Everybody behaves: holders make steps, and give a recalled turn back one step later; moves are made."""
        length = step_ns or {}
        end = self.now + span_ns
        while self.now < end:
            if self.moves:
                self.now += self.move_ns
                self.move(next(iter(self.moves)))
                continue
            if self.recalled:
                self.now += length.get(self.recalled[0], STEP)
                self.give_back(self.recalled[0])
                continue
            wakeup = self.scheduler.next_wakeup()
            woken = min(end, wakeup if wakeup is not None else end)
            span, self.now = woken - self.now, woken
            for job in self.scheduler.holders():
                self.report(job, steps=self.steps.get(job, 0) + span // length.get(job, STEP), cpu_ns=self.now)
            self.tick()

    # --- what is to be seen ---------------------------------------------------------------------------

    def job(self, job: str) -> JobPicture:
        picture = self.scheduler.picture_job(JobId(job), now=self.now)
        assert picture is not None, f"no job {job}"
        return picture

    def state(self, job: str) -> JobState:
        return self.job(job).state

    def reason(self, job: str) -> str:
        return self.job(job).reason

    def holders(self) -> list[str]:
        return [str(job) for job in self.scheduler.holders()]

    def tenants(self) -> dict[str, TenantPicture]:
        return {each.id: each for each in self.scheduler.tenants(now=self.now)}

    def device(self, device: str = "gpu0") -> DevicePicture:
        picture = self.scheduler.picture(now=self.now)
        return next(each for each in picture.devices if each.id == device)

    def lane_of(self, job: str) -> LanePicture:
        picture = self.job(job)
        assert picture.device is not None
        return next(lane for lane in self.device(picture.device).lanes if lane.id == picture.lane)

    def lanes(self, device: str = "gpu0") -> list[set[str]]:
        return [{str(job) for job in lane.jobs} for lane in self.device(device).lanes]

    def served_ns(self, job: str) -> Nanos:
        return self.job(job).served_ns

    def longest_gap_ns(self, job: str, *, since_ns: Nanos = 0) -> Nanos:
        """The longest time the job, wanting turns all along, was without one."""
        longest, left = 0, since_ns
        for turn in self.turns:
            if turn.job == job and (turn.ended_ns is None or turn.ended_ns > since_ns):
                longest = max(longest, turn.granted_ns - left)
                left = turn.ended_ns if turn.ended_ns is not None else self.now
        return max(longest, self.now - left)


class MakeCore(Protocol):
    def __call__(
        self, policy: str = "fair", *, settings: Settings = EXACT, capacity_bytes: int = 16 * GIB, devices: int = 1
    ) -> CoreDriver: ...
