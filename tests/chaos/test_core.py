"""Many seeds against the core alone: every rule after every event, and a bystander who is never kept waiting."""

from __future__ import annotations

import pytest

from carpool.core.kernel.ids import JobId
from carpool.core.node.effects import Effect, ParkJob, StartJob, StopJob, TrimJob, UnparkJob
from carpool.core.node.model import AWAY, ENDED, JobState
from carpool.core.node.settings import Settings
from carpool.units import GIB, MS, SECOND
from tests.chaos.plan import SEEDS, VERBS, Fault, plan
from tests.core.node.driver import CoreDriver, needs

KNOWN = needs(3 * GIB, 2 * GIB)
FAULTS_EACH = 25
DEVICES = 2
STARVED_NS = 30 * SECOND  # a bystander who may run and has had no turn for this long


class World:
    """Jobs that do as they are told, and one whom nobody touches."""

    def __init__(self) -> None:
        self.core = CoreDriver(settings=Settings(host_bytes_max=9 * GIB, move_retry_ns=SECOND), devices=DEVICES)
        self.made = 0
        self.is_store_open = True
        self.parked: dict[str, int] = {}  # what a job has on the host, as its own process knows
        self.follow(self.core.submit_known("bystander", KNOWN))
        for _ in range(3):
            self.add()

    def add(self) -> None:
        self.made += 1
        self.follow(self.core.submit(f"job{self.made}", cap_bytes=5 * GIB))

    def victims(self) -> list[str]:
        jobs = self.core.scheduler.picture(now=self.core.now).jobs
        return [str(job.id) for job in jobs if job.state not in ENDED and job.id != "bystander"]

    def follow(self, effects: list[Effect]) -> None:
        """Do what was ordered, as a driver and its jobs would."""
        for effect in effects:
            match effect:
                case StartJob():
                    self.follow(self.core.ask(effect.job))
                case ParkJob():
                    self.follow(self._park(effect))
                case UnparkJob():
                    assert self.parked.pop(effect.job) > 0, "it comes back with what it took along"
                    self.follow(self.core.unparked(effect.job))
                case TrimJob():
                    self.follow(self.core.measure(effect.job, KNOWN))
                case StopJob():
                    self.follow(self._gone(effect.job))
                case _:
                    pass

    def _park(self, effect: ParkJob) -> list[Effect]:
        if not self.is_store_open:
            return self.core.move_failed(effect.job)
        self.parked[effect.job] = min(3 * GIB, effect.limit_bytes)
        return self.core.parked(effect.job, self.parked[effect.job])

    def _gone(self, job: str) -> list[Effect]:
        self.parked.pop(job, None)
        return self.core.exit(job, -9)

    def harm(self, fault: Fault) -> None:
        core, victims = self.core, self.victims()
        job = victims[fault.target % len(victims)]
        match fault.verb:
            case "suspend":
                self.follow(core.suspend(job))
            case "resume":
                self.follow(core.resume(job))
            case "grow":
                self.follow(core.resize(job, 6 * GIB))
            case "shrink":
                self.follow(core.resize(job, 4 * GIB))
            case "weigh":
                self.follow(core.resize(job, weight_milli=3000))
            case "cancel":
                self.follow(core.cancel(job))
                self.add()
            case "kill_job" | "cut_page" | "scribble_page":
                self.follow(self._gone(job))
                self.add()
            case "migrate":
                self.follow(core.migrate(job, f"gpu{fault.target % DEVICES}"))
            case "close_store" | "fill_store" | "open_store":
                self.is_store_open = fault.verb == "open_store"
            case "cut_agent":
                self.cut(job)
            case _:
                assert fault.verb in VERBS
                core.wait(fault.pause_ns)  # nothing is decided meanwhile; adoption has tests of its own

    def cut(self, job: str) -> None:
        """A driver that loses a process takes its turn back; the process is there again soon, and asks."""
        if job in self.core.holders():
            self.follow(self.core.give_back(job, wants_more=False))
            self.follow(self.core.ask(job))

    def live(self, span_ns: int) -> None:
        """Everybody computes, is measured, and gives recalled turns back."""
        end = self.core.now + span_ns
        while self.core.now < end:
            for holder in self.core.holders():
                if self.core.scheduler.state_of(JobId(holder)) is JobState.PROFILING:
                    self.follow(self.core.measure(holder, KNOWN))
            self.core.now = min(end, self.core.scheduler.next_wakeup() or end)
            for holder in self.core.holders():
                self.core.report(holder, steps=self.core.steps.get(holder, 0) + 1, cpu_ns=self.core.now)
            self.follow(self.core.tick())
            for job_id in list(self.core.recalled):
                self.core.wait(MS)
                self.follow(self.core.give_back(job_id))

    def check(self) -> None:
        picture = self.core.scheduler.picture(now=self.core.now)
        states = {str(job.id): job.state for job in picture.jobs}
        assert {job for job, state in states.items() if state is JobState.PARKED} <= set(self.parked)
        assert all(states[job] in AWAY for job in self.parked), "who has bytes on the host is known to be away"
        booked = sum(job.promised_bytes for job in picture.jobs if job.state not in ENDED)
        assert sum(device.promised_bytes for device in picture.devices) == booked, "nothing is booked for the dead"


@pytest.mark.timeout(120 + 2 * SEEDS)
def test_no_list_of_faults_breaks_a_rule_or_starves_a_bystander() -> None:
    for seed in range(SEEDS):
        world = World()
        for fault in plan(seed, FAULTS_EACH):
            world.harm(fault)
            world.live(fault.pause_ns)
            world.check()
        before = world.core.job("bystander").steps
        world.live(STARVED_NS)
        assert world.core.job("bystander").steps > before, f"seed {seed}: the bystander made no step"
        world.is_store_open = True
        for job in world.victims():
            world.follow(world.core.resize(job, 6 * GIB))
            world.follow(world.core.resume(job))
        for job in [*world.victims(), "bystander"]:
            world.follow(world._gone(job))
        for number in range(DEVICES):
            device = world.core.device(f"gpu{number}")
            assert device.free_bytes == device.capacity_bytes, f"seed {seed}"
        assert world.core.scheduler.state_of(JobId("bystander")) in ENDED
        if seed % 250 == 249:
            print(f"chaos in the core: {seed + 1} of {SEEDS} seeds", flush=True)
