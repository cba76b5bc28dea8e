"""Random events against all rules, under every policy; then an orderly drain in which nobody starves."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from carpool.core.kernel.ids import SHARE_ONE, DeviceId, JobId, Nanos, TenantId
from carpool.core.node.events import (
    CancelAsked,
    DeviceAdded,
    Event,
    HistoryLoaded,
    JobAdopted,
    JobDetached,
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
    TenantSet,
    Tick,
)
from carpool.core.node.lifecycle import may_move
from carpool.core.node.model import ENDED, History, JobSpec, JobState, Needs, Why
from carpool.core.node.settings import Settings, TenantTerms
from carpool.policies import names_for
from carpool.units import MS, SECOND
from tests.properties.effort import share_of_profile
from tests.properties.watcher import WatchedScheduler

JOBS_MAX = 9
# Patience is short, so that a few seconds of chaos try what takes a real node minutes.
IMPATIENT = Settings(
    pass_over_ns=3 * SECOND,
    start_patience_ns=SECOND,
    hog_floor_ns=SECOND,
    move_retry_ns=SECOND,
    host_bytes_max=150,
)
RUN_TO_THE_END = ("fifo", "srtf", "srsf", "priority")  # by design one job runs until it is done

any_job = st.integers(0, JOBS_MAX - 1)
bytes_small = st.integers(0, 60)
shares = st.sampled_from([(0, 1000), (0, 300), (200, 400), (600, 900)])
needs_strategy = st.builds(
    Needs,
    persistent_bytes=bytes_small,
    ephemeral_bytes=bytes_small,
    overhead_bytes=st.integers(0, 5),
)
spec_strategy = st.builds(
    JobSpec,
    name=st.sampled_from(["train", "serve"]),
    tenant=st.sampled_from([TenantId("red"), TenantId("blue")]),
    weight_milli=st.sampled_from([500, 1000, 2000]),
    priority=st.integers(0, 2),
    cap_bytes=st.none() | st.integers(1, 100),
    wait_memory_ns=st.none() | st.just(SECOND),
    on_hog=st.sampled_from(["warn", "suspend", "kill"]),
    may_park=st.sampled_from([True, True, False]),
    guaranteed_milli=st.sampled_from([0, 0, 100, 200]),
    limit_milli=st.sampled_from([1000, 1000, 250, 500]),
    steps=st.none() | st.integers(1, 50),
    device=st.sampled_from([None, None, None, DeviceId("gpu0"), DeviceId("gpu1")]),
    fingerprint=st.sampled_from(["", "f", "g"]),
)
terms_strategy = st.builds(
    TenantTerms,
    weight_milli=st.sampled_from([1000, 3000]),
    guaranteed_milli=st.sampled_from([0, 200, 500]),
    memory_bytes_max=st.none() | st.integers(20, 200),
    compute_milli_max=st.sampled_from([1000, 1000, 600]),
    jobs_max=st.none() | st.integers(0, 3),
    devices=st.none() | st.just((DeviceId("gpu0"),)),
    priorities=st.none() | st.just((0, 1)),
    order=st.sampled_from(["", "fifo", "srtf"]),
)


class SchedulerMachine(RuleBasedStateMachine):
    policy: ClassVar[str] = "fair"

    def __init__(self) -> None:
        super().__init__()
        self.watched = WatchedScheduler(self.policy, IMPATIENT)
        self.made = 0
        self.steps: dict[JobId, int] = {}
        self.cpu_ns: dict[JobId, Nanos] = {}

    @initialize(
        capacities=st.lists(st.integers(60, 250), min_size=1, max_size=3),
        specs=st.lists(spec_strategy, min_size=2, max_size=4),
    )
    def begin(self, capacities: list[int], specs: list[JobSpec]) -> None:
        for index, capacity in enumerate(capacities):
            self.watched.send(DeviceAdded(device=DeviceId(f"gpu{index}"), capacity_bytes=capacity))
        for spec in specs:
            self.submit(spec)

    # --- chaos --------------------------------------------------------------------------------------------

    def find(self, index: int, kind: type) -> JobId:
        """A job to which such an event may happen, if there is one; else any name."""
        known = [job.id for job in self.watched.picture().jobs]
        fitting = [job for job in known if (state := self.watched.state(job)) and may_move(state, kind)]
        choices = fitting or known or [JobId("nobody")]
        return choices[index % len(choices)]

    def fresh(self) -> JobId:
        self.made += 1
        return JobId(f"job{self.made:02}")

    @rule(span_ns=st.sampled_from([1, MS, 50 * MS, 110 * MS, 600 * MS, 2 * SECOND]))
    def time_passes(self, span_ns: Nanos) -> None:
        self.watched.now += span_ns

    @rule()
    def tick(self) -> None:
        self.watched.send(Tick())

    @precondition(lambda self: self.made < JOBS_MAX)
    @rule(spec=spec_strategy)
    def submit_one(self, spec: JobSpec) -> None:
        self.submit(spec)

    def submit(self, spec: JobSpec) -> None:
        self.watched.send(JobSubmitted(job=self.fresh(), spec=spec))

    @precondition(lambda self: self.made < JOBS_MAX)
    @rule(
        spec=spec_strategy,
        holding=st.booleans(),
        device=st.sampled_from(["gpu0", "gpu0", "gpu1", "gpu2"]),
        live_bytes=bytes_small,
        needs=st.none() | needs_strategy,
        parked_bytes=st.none() | st.none() | bytes_small,
    )
    def adopt(
        self,
        spec: JobSpec,
        holding: bool,
        device: str,
        live_bytes: int,
        needs: Needs | None,
        parked_bytes: int | None,
    ) -> None:
        self.watched.send(
            JobAdopted(
                job=self.fresh(),
                spec=spec,
                device=DeviceId(device),
                holding=holding and parked_bytes is None,
                is_parked=parked_bytes is not None,
                parked_bytes=parked_bytes or 0,
                held_for=(Why.SUSPENDED,) if parked_bytes is not None and holding else (),
                steps=3,
                live_bytes=live_bytes,
                needs=needs,
            )
        )

    @rule(
        fingerprint=st.sampled_from(["f", "g"]),
        needs=st.none() | needs_strategy,
        step_ns=st.none() | st.integers(MS, 50 * MS),
        served_ns=st.integers(0, 3 * SECOND),
    )
    def load_history(self, fingerprint: str, needs: Needs | None, step_ns: Nanos | None, served_ns: Nanos) -> None:
        history = History(needs=needs, steps=9, step_ns=step_ns, served_ns=served_ns)
        self.watched.send(HistoryLoaded(fingerprint=fingerprint, history=history))

    @rule(index=any_job, is_paced=st.booleans())
    def ask(self, index: int, is_paced: bool) -> None:
        self.watched.send(LeaseAsked(job=self.find(index, LeaseAsked), is_paced=is_paced))

    @rule()
    def everybody_asks(self) -> None:
        for job in self.watched.jobs_in(JobState.STARTING, JobState.IDLE):
            self.watched.send(LeaseAsked(job=job))

    @rule(index=any_job, wants_more=st.booleans(), made=st.integers(0, 5))
    def give_back(self, index: int, wants_more: bool, made: int) -> None:
        self.return_turn(self.find(index, LeaseReturned), wants_more=wants_more, made=made)

    def return_turn(self, job: JobId, *, wants_more: bool, made: int) -> None:
        self.steps[job] = self.steps.get(job, 3) + made
        self.watched.send(LeaseReturned(job=job, wants_more=wants_more, steps=self.steps[job]))

    @rule(index=any_job, needs=needs_strategy, step_ns=st.none() | st.integers(MS, 400 * MS))
    def measure(self, index: int, needs: Needs, step_ns: Nanos | None) -> None:
        self.watched.send(NeedsMeasured(job=self.find(index, NeedsMeasured), needs=needs, step_ns=step_ns))

    @rule(index=any_job, made=st.integers(0, 9), cpu_ns=st.sampled_from([0, MS, SECOND]), live_bytes=bytes_small)
    def report(self, index: int, made: int, cpu_ns: Nanos, live_bytes: int) -> None:
        self.progress(self.find(index, ProgressSeen), made=made, cpu_ns=cpu_ns, live_bytes=live_bytes)

    def progress(self, job: JobId, *, made: int, cpu_ns: Nanos, live_bytes: int, pending_bytes: int = 0) -> None:
        self.steps[job] = self.steps.get(job, 3) + made
        self.cpu_ns[job] = self.cpu_ns.get(job, 0) + cpu_ns
        self.watched.send(
            ProgressSeen(
                job=job,
                steps=self.steps[job],
                cpu_ns=self.cpu_ns[job],
                live_bytes=live_bytes,
                pending_bytes=pending_bytes,
            )
        )

    @rule(index=any_job, live_bytes=bytes_small, pending_bytes=st.integers(1, 60), looks=st.integers(1, 3))
    def run_short(self, index: int, live_bytes: int, pending_bytes: int, looks: int) -> None:
        """An allocation of a holder, of one that waits already, or of a program without a turn waits for memory."""
        inside = self.watched.scheduler.watched()
        inside += self.watched.jobs_in(JobState.STARTING, JobState.IDLE, JobState.UNMANAGED)
        for _ in range(looks if inside else 0):
            job = inside[index % len(inside)]
            self.progress(job, made=0, cpu_ns=0, live_bytes=live_bytes, pending_bytes=pending_bytes)

    def give_up_allocations(self) -> None:
        for job in self.watched.picture().jobs:
            if job.pending_bytes:
                self.progress(job.id, made=0, cpu_ns=0, live_bytes=1)

    @rule(index=any_job, is_resumed=st.booleans())
    def suspend(self, index: int, is_resumed: bool) -> None:
        kind = ResumeAsked if is_resumed else SuspendAsked
        self.watched.send(kind(job=self.find(index, kind)))

    @rule(index=any_job, device=st.sampled_from(["gpu0", "gpu1", "gpu2", "gpu9"]))
    def migrate(self, index: int, device: str) -> None:
        self.watched.send(MigrateAsked(job=self.find(index, MigrateAsked), device=DeviceId(device)))

    @rule(
        index=any_job,
        cap_bytes=st.none() | st.integers(1, 120),
        weight_milli=st.sampled_from([None, 500, 3000]),
        may_end=st.booleans(),
    )
    def resize(self, index: int, cap_bytes: int | None, weight_milli: int | None, may_end: bool) -> None:
        job = self.find(index, JobResized)
        event = JobResized(job=job, cap_bytes=cap_bytes, weight_milli=weight_milli, may_end=may_end)
        self.watched.send(event)

    @rule(index=any_job, share_milli=shares)
    def change_share(self, index: int, share_milli: tuple[int, int]) -> None:
        self.watched.send(JobResized(job=self.find(index, JobResized), share_milli=share_milli))

    @rule(index=any_job, share=st.integers(0, 4), resident_bytes=st.integers(0, 70))
    def move_ends(self, index: int, share: int, resident_bytes: int) -> None:
        """A job that was told to move did, or could not."""
        moving = self.watched.jobs_in(JobState.PARKING, JobState.UNPARKING)
        if moving:
            self.end_move(moving[index % len(moving)], share=share, resident_bytes=resident_bytes)

    def end_move(self, job: JobId, *, share: int, resident_bytes: int) -> None:
        """With a share of 0 the move fails; else that part of what was reserved left the device."""
        if share == 0:
            self.watched.send(MoveFailed(job=job, reason="the disk is full"))
        elif self.watched.state(job) is JobState.UNPARKING:
            self.watched.send(JobUnparked(job=job, move_ns=MS))
        else:
            moved = self.watched.books.parking[job] * share // 4
            self.watched.send(JobParked(job=job, parked_bytes=moved, resident_bytes=resident_bytes, move_ns=MS))

    @rule(tenant=st.sampled_from(["red", "blue", ""]), terms=st.none() | terms_strategy)
    def change_terms(self, tenant: str, terms: TenantTerms | None) -> None:
        self.watched.send(TenantSet(tenant=TenantId(tenant), terms=terms))

    def take_terms(self) -> None:
        """What is said of tenants may keep their jobs waiting for ever."""
        for tenant in ("red", "blue", ""):
            self.watched.send(TenantSet(tenant=TenantId(tenant), terms=None))

    @rule(index=any_job, what=st.sampled_from(["detach", "exit", "crash", "lost", "cancel", "forget"]))
    def mishap(self, index: int, what: str) -> None:
        codes = {"exit": 0, "crash": 1, "lost": None}
        if what == "detach":
            self.watched.send(JobDetached(job=self.find(index, JobDetached), reason="told to"))
        elif what in codes:
            self.watched.send(JobExited(job=self.find(index, JobExited), code=codes[what]))
        elif what == "cancel":
            self.watched.send(CancelAsked(job=self.find(index, CancelAsked)))
        else:
            self.watched.forget(self.any_name(index))

    @rule(index=any_job, kind=st.sampled_from([LeaseAsked, LeaseReturned, NeedsMeasured, JobDetached, JobSubmitted]))
    def stray_event(self, index: int, kind: type) -> None:
        """Something that may make no sense for the job it names."""
        job = self.any_name(index)
        made: dict[type, Event] = {
            LeaseAsked: LeaseAsked(job=job),
            LeaseReturned: LeaseReturned(job=job, wants_more=True, steps=self.steps.get(job, 3)),
            NeedsMeasured: NeedsMeasured(job=job, needs=Needs(persistent_bytes=9, ephemeral_bytes=9)),
            JobDetached: JobDetached(job=job, reason="stray"),
            JobSubmitted: JobSubmitted(job=job, spec=JobSpec(name="stray")),
        }
        if self.watched.state(job) is not None:
            self.watched.send(made[kind])

    def any_name(self, index: int) -> JobId:
        known = [job.id for job in self.watched.picture().jobs] or [JobId("nobody")]
        return known[index % len(known)]

    @rule(rounds=st.integers(1, 6))
    def behave(self, rounds: int) -> None:
        """Everybody does as told for a while."""
        for _ in range(rounds):
            self.orderly_round()

    # --- the drain ----------------------------------------------------------------------------------------

    def orderly_round(self) -> None:
        """Holders compute; those asked for their turn give it back; the tick comes when it was ordered."""
        watched = self.watched
        for job in watched.jobs_in(JobState.PARKING, JobState.UNPARKING):
            self.end_move(job, share=4, resident_bytes=0)
        for job in sorted(watched.books.trimming):
            self.watched.send(NeedsMeasured(job=job, needs=Needs(persistent_bytes=1, ephemeral_bytes=1)))
        for job in sorted(watched.books.recalled):
            if job in watched.books.held:
                watched.now += MS
                self.return_turn(job, wants_more=True, made=1)
        watched.now = watched.scheduler.next_wakeup() or watched.now + SECOND
        for job in sorted(watched.books.held):
            self.progress(job, made=1, cpu_ns=SECOND, live_bytes=1)
        watched.send(Tick())

    def measure_newcomers(self) -> None:
        for job in self.watched.jobs_in(JobState.PROFILING):
            had = self.watched.job(job).promised_bytes
            measured = Needs(persistent_bytes=had // 4, ephemeral_bytes=had // 4)
            self.watched.send(NeedsMeasured(job=job, needs=measured, step_ns=10 * MS))

    def end_somebody(self) -> None:
        """One job that holds a turn finishes its work."""
        for job in sorted(self.watched.books.held)[:1]:
            self.watched.send(JobExited(job=job, code=0))

    def give_everybody_a_turn(self) -> None:
        """Whoever waits and may run gets a turn within a bounded number of rounds."""
        watched = self.watched
        node = watched.picture()
        waiting = [job for job in node.jobs if job.state is JobState.WAITING and watched.may_run(job, node)]
        missing = {job.id: watched.books.turns.get(job.id, 0) for job in waiting}
        # Who had all the time so far waits until the others, at up to four times its weight, had as much.
        rounds_max = 100 + 8 * len(node.jobs) * (1 + watched.now // (25 * MS))
        for count in range(rounds_max):
            missing = {job: had for job, had in missing.items() if watched.books.turns.get(job, 0) == had}
            missing = {job: had for job, had in missing.items() if watched.state(job) not in ENDED}
            if not missing:
                return
            self.orderly_round()
            self.measure_newcomers()
            if self.policy in RUN_TO_THE_END and count % 4 == 3:
                for job in watched.jobs_in(JobState.STARTING):  # one that has the room of others and is never parked
                    watched.send(LeaseAsked(job=job))
                self.end_somebody()
        raise AssertionError(f"starved under {self.policy}: {sorted(missing)}")

    def resume_everybody(self) -> None:
        for job in self.watched.picture().jobs:
            if job.is_suspended and may_move(job.state, ResumeAsked):
                self.watched.send(ResumeAsked(job=job.id))
            if job.is_shrinking and job.device is not None:
                here = next(each for each in self.watched.picture().devices if each.id == job.device)
                event = JobResized(job=job.id, cap_bytes=here.capacity_bytes, may_end=True)
                self.watched.send(event)

    def take_guarantees(self, *, with_limits: bool = False) -> None:
        """Guarantees may sum up to the whole device, and then nobody else has a right to a turn."""
        for job in self.watched.picture().jobs:
            if job.state not in ENDED:
                limit_milli = SHARE_ONE if with_limits else job.limit_milli
                self.watched.send(JobResized(job=job.id, share_milli=(0, limit_milli)))

    def finish_everything(self) -> None:
        """Nobody is left behind: every job, also in the queue, runs and ends, and every byte is free again."""
        watched = self.watched
        self.resume_everybody()
        self.take_guarantees(with_limits=True)
        for _ in range(12 * (1 + self.made)):
            self.give_up_allocations()
            for job in watched.jobs_in(JobState.UNMANAGED):
                watched.send(JobExited(job=job, code=0))
            for job in watched.jobs_in(JobState.STARTING, JobState.IDLE):
                watched.send(LeaseAsked(job=job))
            self.measure_newcomers()
            self.end_somebody()
            if all(job.state in ENDED for job in watched.picture().jobs):
                break
            self.orderly_round()
        left = [job for job in watched.picture().jobs if job.state not in ENDED]
        assert not left, f"never came to an end: {left}"
        for device in watched.picture().devices:
            assert (device.free_bytes, device.lanes) == (device.capacity_bytes, ())
        assert watched.scheduler.next_wakeup() is None

    def teardown(self) -> None:
        if self.watched.log:
            self.take_terms()
            self.take_guarantees()
            self.give_everybody_a_turn()
            self.finish_everything()
            self.watched.replay()


EXAMPLES = {"fifo": 15, "fair": 40, "priority": 15, "pack": 60}  # 20 for all others


@pytest.mark.slow
@pytest.mark.parametrize("policy", names_for("node"))
def test_no_rule_is_broken_and_nobody_starves_under(policy: str) -> None:
    machine = type(f"{policy.title()}Machine", (SchedulerMachine,), {"policy": policy})
    tried = settings(max_examples=share_of_profile(EXAMPLES.get(policy, 20)), stateful_step_count=40)
    run_state_machine_as_test(machine, settings=tried)
