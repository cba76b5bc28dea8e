"""One node in virtual time, turn by turn: the very scheduler of the daemon, with scripted jobs instead of processes.

`NodeEngine` stands in for the daemon's loop and for the programs. It hands the scheduler the facts a daemon would
hand it (a job asks, is granted, runs iterations, is recalled, gives back at its next boundary, is measured, ends), in
the same order and with the same timer rule, and performs the effects. It decides nothing.

What a job does is a `Script`: how long it takes to start, how long an iteration takes alone, what it needs, and what
a change of turn costs it, which it reports as a program does. How far it has come is in running.py. A job with
`stall_ns` has nothing on the device for so long after every iteration: it waits for input or for a request. As the
agent does, it gives its turn back then if somebody waits; as the daemon does, the engine takes it for whoever comes
meanwhile.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import assert_never

from carpool.core.kernel.ids import DeviceId, JobId
from carpool.core.node.effects import (
    CloseJob,
    DenyMemory,
    Effect,
    ExplainWait,
    GrantLease,
    MoveJob,
    NameHog,
    ParkJob,
    RecallLease,
    RefuseJob,
    RejectEvent,
    RememberJob,
    ResizeLane,
    RevokeLease,
    SetCap,
    SetCompute,
    StartJob,
    StopJob,
    TrimJob,
    UnparkJob,
)
from carpool.core.node.events import (
    DeviceAdded,
    Event,
    HistoryLoaded,
    JobExited,
    JobParked,
    JobSubmitted,
    JobUnparked,
    LeaseAsked,
    LeaseReturned,
    NeedsMeasured,
    NodeConfigured,
    ProgramStarted,
    ProgressSeen,
    Tick,
)
from carpool.core.node.model import History, JobState
from carpool.core.node.scheduler import Scheduler
from carpool.core.node.settings import Settings
from carpool.errors import InternalError
from carpool.policies import find_policy
from carpool.sim.outcome import JobOutcome, Outcome, Span
from carpool.sim.running import DeviceUse, Running
from carpool.sim.scripts import MILLI, Machine, Script
from carpool.units import SECOND
from carpool.wire.protocol import STALL_NS

LAUNCH_NS = 100_000_000  # until a runner has started a program, of what its start takes
LOOK_EVERY_NS = 200_000_000  # as the daemon: holders are looked at no more often than this
MEASURED_STEPS = 2  # as the agent: a job knows its needs after its second iteration
KILLED = -9  # the exit code of a job that the scheduler ended

# Effects that ask nothing of a running job.
Words = (
    CloseJob | DenyMemory | ExplainWait | NameHog | RefuseJob | RejectEvent | RememberJob | ResizeLane | SetCap
) | SetCompute
Watch = Callable[[int, Event, list[Effect]], None]  # sees every call of the scheduler


class NodeEngine:
    """Runs scripts to their ends under one policy. Use once."""

    def __init__(
        self, policy: str, machine: Machine, *, settings: Settings | None = None, watch: Watch | None = None
    ) -> None:
        self._scheduler = Scheduler(find_policy(policy))
        self._settings = settings or Settings()
        self._policy = policy
        self._machine = machine
        self._watch = watch
        self._devices = {name: DeviceUse(capacity) for name, capacity in machine.devices}
        self._jobs: dict[str, Running] = {}
        self._heap: list[tuple[int, int, str, str, int]] = []  # time, number, what, job, version
        self._number = 0
        self._timer_ns: int | None = None
        self._looked_ns = -LOOK_EVERY_NS
        self._spans: list[Span] = []
        self._done: dict[str, JobOutcome] = {}
        self._refused: dict[str, str] = {}
        self._events = 0

    def run(self, scripts: Sequence[Script], *, progress: Callable[[int], None] | None = None) -> Outcome:
        """All jobs to their ends; `progress` is told how many are done."""
        self._begin(scripts)
        told = 0
        if not scripts:
            return self._outcome(scripts)
        while self._heap or self._timer_ns is not None:
            if self._timer_ns is not None and (not self._heap or self._timer_ns < self._heap[0][0]):
                self._fire(self._timer_ns)
            else:
                at, _, what, job, version = heapq.heappop(self._heap)
                self._happen(at, what, job, version)
            ended = len(self._done) + len(self._refused)
            if progress is not None and ended > told:
                told = ended
                progress(ended)
            if ended == len(self._jobs):
                return self._outcome(scripts)
        raise InternalError(f"{len(self._jobs) - len(self._done)} jobs of the simulation wait for ever")

    def _begin(self, scripts: Sequence[Script]) -> None:
        self._tell(NodeConfigured(policy=self._policy, settings=self._settings), 0)
        for name, device in self._devices.items():
            self._tell(DeviceAdded(device=DeviceId(name), capacity_bytes=device.capacity_bytes), 0)
        at = -1
        for script in sorted(scripts, key=lambda each: each.submit_ns):
            if script.id in self._jobs:
                raise InternalError(f"two scripts are called {script.id}")
            if script.is_known:
                past = History(
                    needs=script.needs, steps=script.steps, step_ns=script.step_ns, served_ns=script.work_ns
                )
                self._tell(HistoryLoaded(fingerprint=script.spec.fingerprint, history=past), 0)
            self._jobs[script.id] = Running(script=script)
            at = max(
                script.submit_ns, at + 1
            )  # no daemon hears of two jobs in one nanosecond: first come, first said
            self._push(at, "submit", script.id)

    # --- what happens --------------------------------------------------------------------------------------------

    def _happen(self, at: int, what: str, job: str, version: int) -> None:
        live = self._jobs[job]
        if live.is_killed:
            return
        match what:
            case "submit":
                self._tell(JobSubmitted(job=JobId(job), spec=live.script.spec), at)
            case "started":
                self._tell(ProgramStarted(job=JobId(job)), at)
            case "ready":
                self._take_stalled(live.device, at)
                self._tell(LeaseAsked(job=JobId(job)), at)
            case "look":
                self._take_stalled(live.device, at)
            case "goes on":
                if version == live.version:
                    self._go_on(live, at)
            case "boundary":
                if version == live.version:
                    self._at_boundary(live, at)
            case _:
                self._happen_rarely(live, at, what)

    def _happen_rarely(self, live: Running, at: int, what: str) -> None:
        match what:
            case "parked" | "unparked":
                self._moved(live, at, is_back=what == "unparked")
            case "trimmed":
                self._tell(NeedsMeasured(job=JobId(live.script.id), needs=live.script.needs), at)
            case "killed":
                self._kill(live, at)
            case _:
                raise InternalError(f"nobody knows what {what} is")

    def _at_boundary(self, live: Running, at: int) -> None:
        self._catch_up(live.device, at)
        script = live.script
        job = JobId(script.id)
        if live.worked_ns < live.target_ns:  # rounding took a nanosecond
            self._aim(live)
            return
        live.passed_ns = live.worked_ns
        if live.worked_ns >= script.work_ns:
            self._let_go(live, at)
            self._done[script.id] = self._job_outcome(live, at)
            self._devices[live.device].resident_bytes -= script.needs.resident_bytes
            self._tell(LeaseReturned(job=job, wants_more=False, steps=live.steps), at)
            self._tell(JobExited(job=job, code=0), at)
            return
        if not live.is_measured and live.steps >= MEASURED_STEPS:
            live.is_measured = True
            total = script.steps if script.tells_length else None
            self._tell(NeedsMeasured(job=job, needs=script.needs, step_ns=script.step_ns, steps_total=total), at)
        if script.stall_ns:
            self._stall(live, at)
        elif live.is_recalled:
            live.preemptions += 1
            self._let_go(live, at)
            self._tell(LeaseReturned(job=job, wants_more=True, steps=live.steps, pause_ns=live.idle_ns), at)
        elif live.is_holding:
            self._aim(live)

    # --- stalls --------------------------------------------------------------------------------------------------

    def _stall(self, live: Running, at: int) -> None:
        """An iteration is over and the next cannot begin yet: its turn goes if somebody waits, else it keeps it."""
        job, until = JobId(live.script.id), at + live.script.stall_ns
        if live.is_recalled or self._scheduler.waiters(job):
            self._let_go(live, at)
            self._push(until, "ready", live.script.id)
            self._tell(LeaseReturned(job=job, wants_more=False, steps=live.steps, pause_ns=live.idle_ns), at)
            return
        live.stalled_from_ns, live.seen_ns = at, until
        live.version += 1
        self._devices[live.device].wanted_milli -= live.script.busy_milli
        self._push(until, "goes on", live.script.id, live.version)

    def _go_on(self, live: Running, at: int) -> None:
        """Nobody wanted its turn while it stalled."""
        self._catch_up(live.device, at)
        live.idle_ns += at - (live.stalled_from_ns or at)
        live.stalled_from_ns = None
        self._devices[live.device].wanted_milli += live.script.busy_milli
        self._aim_all(self._devices[live.device])

    def _take_stalled(self, name: str, at: int) -> None:
        """Somebody wants a turn of this device: take those of holders that stall, as the daemon does."""
        for live in list(self._devices[name].holders) if name else ():
            if live.stalled_from_ns is None:
                continue
            stalled_ns = at - live.stalled_from_ns
            if stalled_ns < STALL_NS and live.steps <= MEASURED_STEPS:  # later it was learnt
                self._push(live.stalled_from_ns + STALL_NS, "look", live.script.id)
                continue
            live.idle_ns += stalled_ns
            ends = live.stalled_from_ns + live.script.stall_ns
            live.stalled_from_ns = None
            self._devices[name].wanted_milli += live.script.busy_milli
            self._let_go(live, at)
            self._push(max(at, ends), "ready", live.script.id)
            job = JobId(live.script.id)
            self._tell(LeaseReturned(job=job, wants_more=False, steps=live.steps, pause_ns=live.idle_ns), at)

    def _kill(self, live: Running, at: int) -> None:
        """The scheduler ended it: whatever it was about to do does not happen any more."""
        live.is_killed = True
        if live.is_holding:
            self._let_go(live, at)
        self._catch_up(live.device, at)
        self._devices[live.device].resident_bytes -= live.resident_bytes
        self._tell(JobExited(job=JobId(live.script.id), code=KILLED), at)

    def _move_ns(self, live: Running) -> int:
        return live.script.needs.persistent_bytes * SECOND // self._machine.move_bytes_per_s

    def _moved(self, live: Running, at: int, *, is_back: bool) -> None:
        """A job's persistent bytes left the device, or are there again."""
        job, needs, move_ns = JobId(live.script.id), live.script.needs, self._move_ns(live)
        self._catch_up(live.device, at)
        live.is_away = not is_back
        self._devices[live.device].resident_bytes += needs.persistent_bytes if is_back else -needs.persistent_bytes
        if is_back:
            self._tell(JobUnparked(job=job, move_ns=move_ns), at)
            return
        stays, moved = needs.overhead_bytes, needs.persistent_bytes
        self._tell(JobParked(job=job, parked_bytes=moved, resident_bytes=stays, move_ns=move_ns), at)

    def _fire(self, at: int) -> None:
        """The timer: look at the holders as a daemon does, then tell the scheduler that time passed."""
        self._timer_ns = None
        if at - self._looked_ns >= LOOK_EVERY_NS:
            self._looked_ns = at
            for job in self._scheduler.holders():
                live = self._jobs[job]
                self._catch_up(live.device, at)
                cpu_ns = live.held_ns + (at - live.granted_ns if live.is_holding else 0)
                needs = live.script.needs
                held = needs.resident_bytes + needs.ephemeral_bytes
                seen = ProgressSeen(
                    job=job,
                    steps=live.steps,
                    cpu_ns=cpu_ns,
                    live_bytes=held,
                    pause_ns=live.idle_ns,
                    changes=live.changes,
                    change_ns=live.changes * live.script.change_ns,
                )
                self._tell(seen, at)
        self._tell(Tick(), at)

    # --- the scheduler -------------------------------------------------------------------------------------------

    def _tell(self, event: Event, at: int) -> None:
        self._events += 1
        effects = self._scheduler.handle(event, now=at)
        if self._watch is not None:
            self._watch(at, event, effects)
        for effect in effects:
            self._perform(effect, at)
        self._arm(at)

    def why_waits(self, job: str, at: int) -> str:
        """The scheduler's sentence for a job that waits; empty for one that does not."""
        state = self._scheduler.state_of(JobId(job))
        picture = self._scheduler.picture_job(JobId(job), now=at) if state is JobState.WAITING else None
        return picture.reason if picture is not None else ""

    def _arm(self, at: int) -> None:
        """As the daemon: a timer that is set is never put off."""
        due = self._scheduler.next_wakeup()
        if self._timer_ns is not None and due is not None and self._timer_ns <= due:
            return
        self._timer_ns = max(due, at) if due is not None else None

    def _perform(self, effect: Effect, at: int) -> None:
        match effect:
            case StartJob():
                live = self._jobs[effect.job]
                live.device = effect.device
                self._catch_up(live.device, at)
                self._devices[live.device].resident_bytes += live.script.needs.resident_bytes
                if self._settings.starts_max is not None:
                    self._push(at + min(LAUNCH_NS, live.script.start_ns), "started", effect.job)
                self._push(at + live.script.start_ns, "ready", effect.job)
            case GrantLease():
                self._take_turn(self._jobs[effect.job], effect, at)
            case RecallLease():
                live = self._jobs[effect.job]
                self._catch_up(live.device, at)
                live.is_recalled = True
                if live.stalled_from_ns is None:
                    self._aim(live)
                else:
                    self._push(at, "look", effect.job)
            case RevokeLease():
                self._let_go(self._jobs[effect.job], at)
                self._push(at, "ready", effect.job)
            case ParkJob() | UnparkJob():
                what = "parked" if isinstance(effect, ParkJob) else "unparked"
                self._push(at + self._move_ns(self._jobs[effect.job]), what, effect.job)
            case TrimJob():
                self._push(at, "trimmed", effect.job)
            case StopJob():
                self._push(at, "killed", effect.job)
            case MoveJob():
                self._change_device(self._jobs[effect.job], effect.device, at)
            case _:
                self._take_note(effect)

    def _take_note(self, effect: Words) -> None:
        """An effect by which no script does anything."""
        match effect:
            case RefuseJob():
                self._refused[effect.job] = effect.reason
            case CloseJob():
                if effect.job not in self._done:
                    self._refused[effect.job] = effect.reason
            case RejectEvent():
                raise InternalError(f"the scheduler rejected {effect.event} of job {effect.job}: {effect.reason}")
            case DenyMemory():
                raise InternalError(f"no script waits for memory, and job {effect.job} is denied it: {effect.reason}")
            case SetCap() | SetCompute() | ResizeLane():
                pass  # limits that a script keeps to by itself
            case ExplainWait() | NameHog() | RememberJob():
                pass  # for people, and for the next daemon
            case _:
                assert_never(effect)

    def _change_device(self, live: Running, device: str, at: int) -> None:
        """It is counted on another device from now on, with what it has on the host or on its way."""
        for name in (live.device, device):
            self._catch_up(name, at)
        self._devices[live.device].resident_bytes -= live.resident_bytes
        self._devices[device].resident_bytes += live.resident_bytes
        live.device = device

    def _take_turn(self, live: Running, effect: GrantLease, at: int) -> None:
        device = self._devices[live.device]
        self._catch_up(live.device, at)
        live.is_holding, live.is_recalled = True, False
        live.place = effect.lane
        live.first_ns = at if live.first_ns is None else live.first_ns
        live.granted_ns = at
        live.seen_ns = at + self._machine.switch_ns
        if device.last.get(effect.lane, effect.job) != effect.job and live.held_ns:
            live.changes += 1
            live.seen_ns += live.script.change_ns
        device.last[effect.lane] = effect.job
        device.holders.append(live)
        device.wanted_milli += live.script.busy_milli
        self._aim_all(device)

    def _let_go(self, live: Running, at: int) -> None:
        device = self._devices[live.device]
        self._catch_up(live.device, at)
        live.is_holding = live.is_recalled = False
        live.held_ns += at - live.granted_ns
        live.version += 1
        device.holders.remove(live)
        device.wanted_milli -= live.script.busy_milli
        self._spans.append(Span(live.place, live.script.id, live.granted_ns, at))
        self._aim_all(device)

    # --- progress ------------------------------------------------------------------------------------------------

    def _catch_up(self, name: str, at: int) -> None:
        self._devices[name].catch_up(at)

    def _aim_all(self, device: DeviceUse) -> None:
        """The holders changed, and with them everybody's speed."""
        for live in device.holders:
            self._aim(live)

    def _aim(self, live: Running) -> None:
        """Set the next boundary at which something happens: the end, the measurement, the recall's or a stall's."""
        script = live.script
        target = script.work_ns
        if live.stalled_from_ns is not None:
            return
        if script.stall_ns:
            target = min(target, (live.passed_ns // script.step_ns + 1) * script.step_ns)
        elif live.is_recalled:
            target = min(target, (live.steps + 1) * script.step_ns)
        elif not live.is_measured:
            target = min(target, max(MEASURED_STEPS, live.steps + 1) * script.step_ns)
        wanted = max(MILLI, self._devices[live.device].wanted_milli)
        live.target_ns = target
        live.version += 1
        at = live.seen_ns + -(-(target - live.worked_ns) * wanted // MILLI)
        self._push(at, "boundary", script.id, live.version)

    def _push(self, at: int, what: str, job: str, version: int = 0) -> None:
        self._number += 1
        heapq.heappush(self._heap, (at, self._number, what, job, version))

    # --- the end -------------------------------------------------------------------------------------------------

    def _job_outcome(self, live: Running, at: int) -> JobOutcome:
        script = live.script
        return JobOutcome(
            id=script.id,
            tenant=script.spec.tenant,
            submit_ns=script.submit_ns,
            start_ns=live.first_ns if live.first_ns is not None else at,
            end_ns=at,
            service_ns=script.start_ns + script.alone_ns,
            preemptions=live.preemptions,
        )

    def _outcome(self, scripts: Sequence[Script]) -> Outcome:
        return Outcome(
            policy=self._policy,
            jobs=tuple(self._done[script.id] for script in scripts if script.id in self._done),
            cards=len(self._devices),
            busy_milli_ns=sum(device.busy_milli_ns for device in self._devices.values()),
            capacity_bytes=sum(device.capacity_bytes for device in self._devices.values()),
            held_byte_ns=sum(device.held_byte_ns for device in self._devices.values()),
            refused=tuple(self._refused.items()),
            spans=tuple(self._spans),
            events=self._events,
        )
