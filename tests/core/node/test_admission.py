"""Who may be resident (M1 to M5): promises, the queue, refusals, several devices, outgrown jobs."""

from __future__ import annotations

import pytest

from carpool.core.kernel.ids import DeviceId, JobId
from carpool.core.node.effects import ExplainWait, RecallLease, RefuseJob, SetCap, StartJob
from carpool.core.node.model import JobState
from carpool.core.node.settings import Settings
from carpool.units import GIB, SECOND
from tests.core.node.driver import CoreDriver, MakeCore, needs, only

GPU0, GPU1 = DeviceId("gpu0"), DeviceId("gpu1")


def started(job: str, device: str = "gpu0") -> StartJob:
    return StartJob(job=JobId(job), device=DeviceId(device))


# --- jobs nobody knows (M2) -----------------------------------------------------------------------------------


def test_m1_an_unknown_job_is_promised_all_that_is_free_and_others_queue_with_the_numbers(core: CoreDriver) -> None:
    core.submit("a")
    assert core.job("a").promised_bytes == 16 * GIB
    assert core.device().free_bytes == 0
    reason = (
        "waits for memory: a is starting and is promised 16.0 GiB until its first turns are over, half of that and"
        " less if they do not come within 20.0 s;"
        " 0 B of 16.0 GiB is unpromised on gpu0 (16.0 GiB to jobs, 0 B in lanes)"
    )
    assert core.submit("b") == [ExplainWait(job=JobId("b"), reason=reason)]
    assert core.reason("b") == reason


def test_m2_what_was_promised_is_split_when_the_first_turns_are_measured_and_the_queue_moves(
    core: CoreDriver,
) -> None:
    core.submit("a")
    core.submit("b")
    core.ask("a")
    core.submit("c")
    assert "a is being measured and is promised 16.0 GiB until its first turns are over; " in core.reason("c")
    effects = core.measure("a", needs(2 * GIB, 4 * GIB, GIB // 2))
    assert started("b") in effects
    assert (core.job("a").promised_bytes, core.lane_of("a").bytes) == (5 * GIB // 2, 4 * GIB)
    assert core.job("b").promised_bytes == 16 * GIB - 13 * GIB // 2
    assert core.device().free_bytes == 0


def test_an_unknown_job_does_not_start_with_less_than_an_eighth_of_the_device(core: CoreDriver) -> None:
    core.submit_known("a", needs(10 * GIB, 4 * GIB + 1))
    [told] = core.submit("b")
    assert isinstance(told, ExplainWait)
    assert "needs at least 2.00 GiB to start and 2.00 GiB of 16.0 GiB is unpromised" in told.reason
    assert "give --memory" in told.reason
    core.measure("a", needs(10 * GIB, 4 * GIB + 1))
    assert core.state("b") is JobState.QUEUED, "a starting job is not measured"
    core.ask("a")
    assert started("b") in core.measure("a", needs(10 * GIB, 4 * GIB))


def test_an_unknown_job_goes_first_while_others_queue_for_the_memory_it_holds(make_core: MakeCore) -> None:
    core = make_core("fifo")
    core.settle_in("a", needs(GIB, GIB))
    core.submit("new")
    assert core.ask("new") == [], "a came first"
    [told, recall] = core.submit("queued", cap_bytes=4 * GIB)
    assert isinstance(told, ExplainWait) and "new is being measured" in told.reason
    assert isinstance(recall, RecallLease) and recall.job == "a"
    core.give_back("a")
    assert core.state("new") is JobState.PROFILING
    assert started("queued") in core.measure("new", needs(GIB, GIB))


def test_an_open_promise_is_halved_after_the_patience_while_others_need_room(core: CoreDriver) -> None:
    core.submit("a")
    core.submit("b")
    assert core.scheduler.next_wakeup() == 20 * SECOND
    assert core.tick(20 * SECOND - 1) == []
    effects = core.tick(1)
    assert core.job("a").promised_bytes == 8 * GIB
    assert started("b") in effects, "eight of sixteen GiB are enough for a job of unknown size"
    assert core.job("b").promised_bytes == 8 * GIB
    assert SetCap(job=JobId("a"), cap_bytes=16 * GIB) not in effects, "nobody is refused a byte for it"


def test_an_open_promise_is_never_cut_below_twice_what_the_job_holds(core: CoreDriver) -> None:
    core.submit("a")
    core.report("a", live_bytes=6 * GIB)
    core.submit("b", cap_bytes=8 * GIB)
    for _ in range(5):
        core.tick(20 * SECOND)
    assert core.job("a").promised_bytes == 12 * GIB
    assert core.state("b") is JobState.QUEUED
    assert "a is starting and is promised 12.0 GiB until its first turns are over; " in core.reason("b"), "no less"


def test_an_open_promise_is_not_cut_while_nobody_needs_room(core: CoreDriver) -> None:
    core.submit("a")
    assert core.scheduler.next_wakeup() is None
    core.tick(100 * SECOND)
    assert core.job("a").promised_bytes == 16 * GIB


def test_a_declared_cap_is_not_cut(core: CoreDriver) -> None:
    core.submit("a", cap_bytes=16 * GIB)
    core.submit("b")
    assert core.scheduler.next_wakeup() is None
    core.tick(100 * SECOND)
    assert core.job("a").promised_bytes == 16 * GIB


def test_the_open_promise_of_a_job_that_idles_unmeasured_is_cut_too(core: CoreDriver) -> None:
    """A notebook that ran one cell would else keep the queue out for as long as it is open."""
    core.submit("notebook")
    core.ask("notebook")
    core.give_back("notebook", wants_more=False)
    core.submit("b")
    assert core.state("b") is JobState.QUEUED
    assert core.scheduler.next_wakeup() == 20 * SECOND
    assert started("b") in core.tick(20 * SECOND)


# --- caps -----------------------------------------------------------------------------------------------------


def test_a_capped_job_is_promised_its_cap_and_leaves_the_rest_to_others(core: CoreDriver) -> None:
    effects = core.submit("a", cap_bytes=6 * GIB)
    assert effects[:2] == [started("a"), SetCap(job=JobId("a"), cap_bytes=6 * GIB)]
    assert core.device().free_bytes == 10 * GIB
    assert only(core.submit("b", cap_bytes=10 * GIB), StartJob) == [started("b")]


def test_a_capped_job_gives_back_what_it_turns_out_not_to_need(core: CoreDriver) -> None:
    core.submit("a", cap_bytes=12 * GIB)
    core.submit("b", cap_bytes=12 * GIB)
    assert core.reason("b") == (
        "waits for memory: it needs 12.0 GiB and 4.00 GiB of 16.0 GiB is unpromised on gpu0"
        " (12.0 GiB to jobs, 0 B in lanes)"
    )
    core.ask("a")
    assert started("b") in core.measure("a", needs(GIB, 2 * GIB))


def test_everybody_may_hold_what_others_do_not_need(core: CoreDriver) -> None:
    core.submit_known("a", needs(2 * GIB, 4 * GIB))
    effects = core.submit_known("b", needs(3 * GIB, 4 * GIB))
    assert only(effects, SetCap) == [
        SetCap(job=JobId("a"), cap_bytes=13 * GIB),
        SetCap(job=JobId("b"), cap_bytes=14 * GIB),
    ]


# --- refusals (M4) --------------------------------------------------------------------------------------------


def test_m4_a_cap_larger_than_any_device_is_refused_at_once_with_the_sentence(core: CoreDriver) -> None:
    reason = "job a can never fit: it asks for 30.0 GiB, gpu0 has 16.0 GiB; lower --memory or use a larger device"
    assert core.submit("a", cap_bytes=30 * GIB) == [RefuseJob(job=JobId("a"), reason=reason)]
    assert core.state("a") is JobState.FAILED
    assert core.reason("a").startswith(f"failed: {reason}")


def test_a_job_that_needed_more_last_time_than_any_device_has_is_refused(core: CoreDriver) -> None:
    [refusal] = core.submit_known("a", needs(10 * GIB, 10 * GIB))
    assert isinstance(refusal, RefuseJob)
    assert "needed last time 20.0 GiB, gpu0 has 16.0 GiB" in refusal.reason
    assert "lower its batch size" in refusal.reason


def test_a_cap_makes_up_for_a_history_that_is_too_large(core: CoreDriver) -> None:
    core.remember("f", needs(10 * GIB, 10 * GIB))
    assert only(core.submit("a", fingerprint="f", cap_bytes=8 * GIB), StartJob)


def test_a_job_that_just_fits_is_not_refused(core: CoreDriver) -> None:
    assert only(core.submit("a", cap_bytes=16 * GIB), StartJob)


def test_a_job_for_a_device_that_is_not_here_is_refused(core: CoreDriver) -> None:
    reason = "job a asks for device gpu7, which is not here; devices: gpu0"
    assert core.submit("a", device="gpu7") == [RefuseJob(job=JobId("a"), reason=reason)]


def test_a_job_on_a_node_without_devices_is_refused(make_core: MakeCore) -> None:
    core = make_core(devices=0)
    assert core.submit("a") == [RefuseJob(job=JobId("a"), reason="job a needs a device and this node has none")]


def test_a_refusal_is_measured_against_the_devices_the_job_may_use(make_core: MakeCore) -> None:
    core = make_core(devices=0)
    core.add_device("small", 8 * GIB)
    core.add_device("large", 32 * GIB)
    assert only(core.submit("a", cap_bytes=12 * GIB), StartJob) == [started("a", "large")]
    assert only(core.submit("b", cap_bytes=12 * GIB, device="small"), RefuseJob)


# --- several devices -----------------------------------------------------------------------------------------


def test_jobs_go_to_the_device_with_the_fewest_jobs(make_core: MakeCore) -> None:
    core = make_core(devices=3)
    for job, device in (("a", "gpu0"), ("b", "gpu1"), ("c", "gpu2"), ("d", "gpu0")):
        assert only(core.submit_known(job, needs(GIB, GIB)), StartJob) == [started(job, device)]


def test_of_equally_used_devices_the_one_with_more_room_is_taken(make_core: MakeCore) -> None:
    core = make_core(devices=0)
    core.add_device("gpu0", 8 * GIB)
    core.add_device("gpu1", 24 * GIB)
    assert only(core.submit_known("a", needs(GIB, GIB)), StartJob) == [started("a", "gpu1")]


def test_a_job_goes_where_it_fits(make_core: MakeCore) -> None:
    core = make_core(devices=0)
    core.add_device("gpu0", 8 * GIB)
    core.add_device("gpu1", 24 * GIB)
    core.submit_known("a", needs(GIB, GIB))
    assert only(core.submit("b", cap_bytes=20 * GIB), StartJob) == [started("b", "gpu1")]


def test_a_job_waits_for_the_device_it_names_though_another_is_free(make_core: MakeCore) -> None:
    core = make_core(devices=2)
    core.submit("a", device="gpu1")
    core.submit("b", device="gpu1")
    assert core.state("b") is JobState.QUEUED
    assert "gpu1" in core.reason("b")
    assert core.device("gpu0").free_bytes == 16 * GIB


def test_jobs_on_different_devices_run_at_the_same_time(make_core: MakeCore) -> None:
    core = make_core(devices=2)
    core.settle_in("a", needs(GIB, GIB))
    core.settle_in("b", needs(GIB, GIB))
    assert sorted(core.holders()) == ["a", "b"]
    assert core.scheduler.next_wakeup() is None


# --- the queue (M3) -------------------------------------------------------------------------------------------


def test_a_smaller_job_passes_one_that_does_not_fit(core: CoreDriver) -> None:
    core.submit("a", cap_bytes=10 * GIB)
    core.submit("large", cap_bytes=10 * GIB)
    assert only(core.submit("small", cap_bytes=2 * GIB), StartJob) == [started("small")]


def test_after_the_patience_nobody_passes_a_job_that_does_not_fit(core: CoreDriver) -> None:
    core.submit("a", cap_bytes=10 * GIB)
    core.submit("large", cap_bytes=10 * GIB)
    core.wait(60 * SECOND)
    [told] = core.submit("small", cap_bytes=2 * GIB)
    assert isinstance(told, ExplainWait)
    assert told.reason == (
        "waits for memory behind large, which has waited for it longer than 1 min 0 s and is not passed any more"
    )
    assert only(core.exit("a"), StartJob) == [started("large"), started("small")]


@pytest.mark.parametrize("policy", ["fifo", "fair", "las", "srtf", "priority", "pack"])
def test_a_stream_of_preferred_jobs_does_not_keep_one_in_the_queue_for_ever(make_core: MakeCore, policy: str) -> None:
    """Whatever the policy prefers, M3 holds: after the patience nobody passes."""
    core = make_core(policy)
    core.remember("long", needs(9 * GIB, 0), served_ns=1000 * SECOND)
    core.remember("short", needs(6 * GIB, 0), served_ns=SECOND)
    core.submit("before", fingerprint="short", tenant="t1", priority=9)
    core.ask("before")
    core.submit("also before", fingerprint="short", tenant="t1", priority=9)
    core.submit("large", fingerprint="long", tenant="t2")
    assert core.state("large") is JobState.QUEUED
    live = ["before", "also before"]
    for index in range(20):
        core.tick(10 * SECOND)
        live.append(f"short{index}")
        core.submit(live[-1], fingerprint="short", tenant="t1", priority=9)
        core.exit(live.pop(0))
        if core.state("large") is not JobState.QUEUED:
            break
    assert core.now <= 120 * SECOND


def test_a_job_that_is_not_passed_blocks_only_the_devices_it_may_use(make_core: MakeCore) -> None:
    core = make_core(devices=2)
    core.submit("a", cap_bytes=10 * GIB, device="gpu0")
    core.submit("large", cap_bytes=10 * GIB, device="gpu0")
    core.wait(60 * SECOND)
    assert only(core.submit("other", cap_bytes=8 * GIB, device="gpu1"), StartJob) == [started("other", "gpu1")]
    assert only(core.submit("any", cap_bytes=4 * GIB), StartJob) == [started("any", "gpu1")]
    assert not only(core.submit("same", cap_bytes=4 * GIB, device="gpu0"), StartJob)
    assert "behind large" in core.reason("same")


def test_the_queue_is_told_once_for_each_reason(core: CoreDriver) -> None:
    core.submit("a")
    assert len(core.submit("b")) == 1
    assert core.tick(SECOND) == []
    assert only(core.submit("c"), ExplainWait)[0].job == "c"


def test_a_long_queue_is_admitted_as_far_as_there_is_room(core: CoreDriver) -> None:
    core.submit("a", cap_bytes=16 * GIB)
    for index in range(40):
        core.submit(f"q{index:02}", cap_bytes=GIB)
    assert len(only(core.exit("a"), StartJob)) == 16


def test_by_default_an_unknown_job_is_promised_a_quarter_so_that_several_start_side_by_side(
    make_core: MakeCore,
) -> None:
    core = make_core(settings=Settings(margin_percent=0), capacity_bytes=16 * GIB)
    for name in ("a", "b", "c", "d"):
        core.submit(name)
        assert core.job(name).promised_bytes == 4 * GIB
    core.submit("e")
    assert core.job("e").state is JobState.QUEUED
    assert "4.00 GiB" in core.job("e").reason
