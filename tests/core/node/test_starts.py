"""How many programs are started at once (M6), and starts that the machine puts off (M7)."""

from __future__ import annotations

from dataclasses import replace

from carpool.core.kernel.ids import JobId, Nanos
from carpool.core.node.effects import ExplainWait, StartJob
from carpool.core.node.model import JobState
from carpool.core.node.scheduler import Scheduler
from carpool.core.node.settings import Settings
from carpool.core.policies.fifo import Fifo
from carpool.core.policies.view import JobView
from carpool.units import GIB, SECOND
from tests.core.node.driver import CoreDriver, only

BOUNDED = Settings(margin_percent=0, open_share_divisor=1, starts_max=2)
FULL = "waits for its start: 2 programs are being started, and at most 2 at once"


def make_core(settings: Settings = BOUNDED) -> CoreDriver:
    return CoreDriver(settings=settings)


def queue_behind_a_block(core: CoreDriver, count: int) -> None:
    core.submit("block", cap_bytes=16 * GIB)
    core.started("block")
    for number in range(count):
        core.submit(f"j{number}", cap_bytes=1)


def test_m6_of_a_queue_that_is_released_only_so_many_are_started_at_once() -> None:
    core = make_core()
    queue_behind_a_block(core, 5)
    assert [effect.job for effect in only(core.exit("block"), StartJob)] == ["j0", "j1"]
    assert [effect.job for effect in only(core.started("j1"), StartJob)] == ["j2"]
    assert [effect.job for effect in only(core.exit("j2"), StartJob)] == ["j3"]
    assert [effect.job for effect in only(core.ask("j0"), StartJob)] == ["j4"]
    assert core.state("j1") is JobState.STARTING, "its program runs; that it has asked for no turn is no reason"


def test_m6_while_a_job_has_a_turn_fewer_are_started_at_once() -> None:
    core = make_core(replace(BOUNDED, starts_beside_max=1))
    core.submit("holder", cap_bytes=1)
    core.ask("holder")
    for name in ("a", "b", "c", "d"):
        core.submit(name, cap_bytes=1)
    assert [core.state(name) for name in "abcd"] == [JobState.STARTING] + [JobState.QUEUED] * 3
    beside = "waits for its start: 1 program is being started, and at most 1 at once while another computes"
    assert core.reason("b") == beside
    assert [effect.job for effect in only(core.started("a"), StartJob)] == ["b"]
    assert [effect.job for effect in only(core.exit("holder"), StartJob)] == ["c"]
    assert core.reason("d") == FULL


def test_m6_without_a_bound_all_start_at_once() -> None:
    core = make_core(Settings(margin_percent=0, open_share_divisor=1))
    queue_behind_a_block(core, 5)
    assert len(only(core.exit("block"), StartJob)) == 5


def test_m6_a_job_that_waits_for_the_start_of_others_says_so_once() -> None:
    core = make_core()
    core.submit("a", cap_bytes=1)
    core.submit("b", cap_bytes=1)
    assert core.submit("c", cap_bytes=1) == [ExplainWait(job=JobId("c"), reason=FULL)]
    assert core.reason("c") == FULL
    core.wait(1)
    core.submit("d", cap_bytes=1)
    core.wait(1)
    assert only(core.started("a"), ExplainWait) == []
    assert core.reason("d") == FULL
    assert core.state("c") is JobState.STARTING


def test_m6_a_job_that_was_told_of_memory_is_not_told_of_starts_but_explains_them() -> None:
    core = make_core()
    queue_behind_a_block(core, 4)
    assert core.reason("j3").startswith("waits for memory")
    assert only(core.exit("block"), ExplainWait) == []
    assert core.reason("j3") == FULL


def test_m6_a_start_that_takes_too_long_does_not_keep_the_others_for_ever() -> None:
    core = make_core()
    for name in ("a", "b", "c"):
        core.submit(name, cap_bytes=1)
    due = core.scheduler.next_wakeup()
    assert due == BOUNDED.start_patience_ns
    core.now = due
    assert [effect.job for effect in only(core.tick(), StartJob)] == ["c"]


def test_m6_a_job_that_is_taken_back_counts_until_its_program_is_known_to_run() -> None:
    core = make_core()
    core.adopt("a", holding=False)
    core.adopt("b", holding=False)
    core.submit("c", cap_bytes=1)
    assert core.state("c") is JobState.QUEUED
    assert [effect.job for effect in only(core.started("a"), StartJob)] == ["c"]


def test_m7_a_start_that_the_machine_cannot_make_now_is_tried_again_in_the_order_of_arrival() -> None:
    core = make_core()
    for name in ("z", "y", "x"):
        core.wait(1)
        core.submit(name, cap_bytes=1)
    core.put_off("y", "Too many open files")
    core.put_off("z", "Too many open files")
    assert [core.state(name) for name in "xyz"] == [JobState.QUEUED] * 3
    assert core.device().free_bytes == 16 * GIB
    assert core.reason("x") == "waits for its start: Too many open files; it is tried again every 1.0 s"
    due = core.scheduler.next_wakeup()
    assert due == core.now + SECOND
    core.now = due
    assert [effect.job for effect in only(core.tick(), StartJob)] == ["z", "y"]


def test_m7_a_job_whose_start_was_put_off_can_be_cancelled_and_keeps_its_account() -> None:
    core = make_core()
    core.submit("a", cap_bytes=1)
    core.put_off("a", "Resource temporarily unavailable")
    core.cancel("a")
    assert core.state("a") is JobState.CANCELLED
    assert core.scheduler.next_wakeup() is None


class CountingPolicy(Fifo):
    """Counts how often it is asked for a rank."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def rank(self, view: JobView, *, now: Nanos) -> tuple[int, ...]:
        self.asked += 1
        return super().rank(view, now=now)


def test_a_policy_ranks_a_long_queue_a_few_times_for_one_event_not_once_for_each_job_that_is_tried() -> None:
    policy = CountingPolicy()
    core = CoreDriver(settings=BOUNDED, devices=0)
    core.scheduler = Scheduler(policy, BOUNDED)
    core.add_device("gpu0", 16 * GIB)
    queue_behind_a_block(core, 64)
    policy.asked = 0
    core.submit("last", cap_bytes=1)
    assert policy.asked <= 3 * 65
