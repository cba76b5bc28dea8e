"""Every bench runs in its smallest form and says what it must; how fast anything is, no test asserts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest

from carpool.bench import park
from carpool.bench.handover import Found, find_gaps
from carpool.bench.jct import (
    Burst,
    count_turns,
    draw_steps,
    ideal_means,
    mean_in_turn,
    mean_shared,
    predict,
    read_workload,
)
from carpool.bench.node import Side, plain_environment, run_at_once, stop, wait_all, wait_files
from carpool.bench.report import Report, Target, percentile
from carpool.bench.shares import reachable_part, worst_error
from carpool.cli.bench import finish
from carpool.devices.libraries import find_library
from carpool.errors import PeerError, RefusedError, UsageError
from tests.eager import without_compiler

BENCH_SECONDS = 400
METRICS = {
    "boundary": {"ns_per_boundary", "overhead_at_1ms", "overhead_at_20ms"},
    "handover": {"p50_us", "p99_us", "restart_p50_us", "ratio_restart_over_handover", "overlaps"},
    "jct": {
        "jct_fifo_over_srtf",
        "ideal_fifo_over_srtf",
        "share_of_ideal",
        "makespan_srtf_over_fifo",
        "jct_fifo_over_fair",
        "seed",
        "daemon_core_fraction",
        "predicted_over_live_fifo",
        "predicted_over_live_srtf",
        "predicted_over_live_fair",
        "prediction_error",
    },
    "start": {"warm_over_cold", "warm_cpu_over_cold", "seven_warm_over_cold", "pss_added_mib", "parent_s"},
    "interposer": {"launch_added_ns", "alloc_added_ns", "init_added_us"},
    "park": {
        "park_gib_per_s",
        "unpark_gib_per_s",
        "memcpy_gib_per_s",
        "share_of_memcpy",
        "suspend_over_iteration",
        "total_over_sequential_2x",
    },
    "sim": {"fgd_default_cpu_s", "placements_per_s", "decision_p99_us"},
    "idle": {"training_share_beside_server", "request_p50_over_alone", "give_back_p50_ms"},
    "throughput": {"carpool_over_sequential", "uncoordinated_over_sequential", "daemon_core_fraction"},
}


def run_bench(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "carpool.cli.main", "bench", *words]
    environment = without_compiler({**plain_environment(), "OMP_NUM_THREADS": "1"})  # no figure is looked at
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=BENCH_SECONDS, check=False
    )


@pytest.mark.slow
@pytest.mark.timeout(BENCH_SECONDS + 20)
@pytest.mark.parametrize("name", sorted(METRICS))
def test_a_bench_prints_one_json_object_with_its_metrics(name: str) -> None:
    if name == "interposer" and find_library("gpu_probe") is None:
        pytest.skip("carpool's CUDA guest was not built (no C compiler): its bench is NOT tried")
    if name == "park" and not park.is_in_memory(park.MEMORY_DISK):
        pytest.skip(f"{park.MEMORY_DISK} is not in memory here: the bench refuses, and is NOT tried")
    done = run_bench(name, "--quick", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"bench", "device", "metrics"}
    assert found["bench"] == name
    assert found["device"].startswith("CPU device: ")
    assert METRICS[name] <= set(found["metrics"])
    assert all(isinstance(value, int | float) for value in found["metrics"].values())
    assert name in done.stderr, "progress belongs on stderr"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "Error"),
        (["boundary", "--repeats", "1"], "Error"),
        (["jct", "--jobs", "0"], "Error"),
        (["jct", "--work", "nan"], "carpool: --work is nan; it must be between 1 and 86400\n"),
    ],
)
def test_misuse_is_told_and_starts_nothing(words: list[str], said: str) -> None:
    done = run_bench(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr


# --- moves -----------------------------------------------------------------------------------------------------


def test_a_disk_is_not_reported_as_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert park.is_in_memory(Path("/proc")) is False
    assert park.is_in_memory(tmp_path / "none") is False
    monkeypatch.setattr(park, "MEMORY_DISK", Path("/proc/self"))
    with pytest.raises(RefusedError, match="/proc/self is no directory in memory here.*mount -t tmpfs"):
        park.run(print, moved_mib=1, rounds=1, levels={}, steps=1, repeats=1)


def test_a_directory_under_a_tmpfs_is_in_memory() -> None:
    mounted = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    places = [Path(point) for point, kind in mounted if kind == "tmpfs" and Path(point).is_dir()]
    if not places:
        pytest.skip("no tmpfs is mounted here")
    assert park.is_in_memory(places[-1])


# --- the report ------------------------------------------------------------------------------------------------


def make_report() -> Report:
    report = Report(bench="boundary")
    report.add("beside", 3.14159265)
    report.add("slow", 5.0, Target(limit=1))
    report.add("fast", 5.0, Target(limit=1, is_least=True))
    return report


def test_a_missed_target_is_shown_as_missed_and_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert finish(make_report(), as_json=False, quick=False) == 0
    shown = capsys.readouterr().out
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert "MISSED" in lines["slow"]
    assert "≤ 1" in lines["slow"]
    assert "met" in lines["fast"]
    assert "CPU device" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_broken_promise_fails_after_the_figures_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    report = make_report()
    report.failure = "two jobs had the device at the same time"
    assert finish(report, as_json=True, quick=False) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["metrics"]["slow"] == 5
    assert "same time" in shown.err


def test_percentiles_are_values_that_were_seen() -> None:
    assert percentile([4, 1, 3, 2], 50) == 3
    assert percentile([1, 2, 3], 99) == 3
    assert percentile([7], 50) == 7


# --- hand-overs ------------------------------------------------------------------------------------------------


def test_a_gap_is_from_the_last_operation_of_one_job_to_the_first_of_the_other() -> None:
    found = Found()
    find_gaps([[(0, 10), (12, 20), (50, 60)], [(25, 30), (31, 40)]], found)
    assert found.gaps_ns == [5]  # what follows a job's very last iteration (at 40) is no hand-over
    assert found.own_gaps_ns == [2, 1]
    assert found.overlaps == 0


def test_iterations_that_overlap_are_counted() -> None:
    found = Found()
    find_gaps([[(0, 10), (40, 50)], [(9, 20), (60, 70)]], found)
    assert found.overlaps == 1


def test_an_iteration_inside_a_longer_one_overlaps_with_what_follows_too() -> None:
    found = Found()
    find_gaps([[(0, 100), (200, 210)], [(10, 20), (30, 40)]], found)
    assert found.overlaps == 2


# --- the ideal -------------------------------------------------------------------------------------------------


def test_the_ideal_of_jobs_in_turn_is_the_mean_of_their_running_sums() -> None:
    assert mean_in_turn([1, 2, 3]) == pytest.approx((1 + 3 + 6) / 3)


def test_the_ideal_of_sharing_lets_equal_jobs_end_together() -> None:
    assert mean_shared([2, 2]) == pytest.approx(4)
    assert mean_shared([1, 3]) == pytest.approx((2 + 4) / 2)
    assert mean_shared([3, 1]) == mean_shared([1, 3])


def test_a_seed_draws_the_same_heavy_tailed_lengths_again() -> None:
    steps = draw_steps(14, 0, 3000)
    assert steps == draw_steps(14, 0, 3000)
    assert steps != draw_steps(14, 1, 3000)
    assert min(steps) >= 3
    assert max(steps) > 5 * sorted(steps)[7]
    assert sum(steps) == pytest.approx(3000, rel=0.02)


def test_changes_of_turn_are_counted_over_all_jobs() -> None:
    assert count_turns([[(0, 1), (4, 5)], [(2, 3), (6, 7)]]) == 3


# --- arms at once ----------------------------------------------------------------------------------------------


def test_arms_that_run_at_once_change_cores_and_wait_for_each_other() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has one core: arms run one after the other")
    places: dict[int, set[frozenset[int]]] = {0: set(), 1: set()}

    def arm(number: int, side: Side) -> int:
        child = subprocess.Popen(["sleep", "60"])
        try:
            side.pids = [child.pid]
            side.meet()
            for _ in range(100):
                places[number].add(frozenset(os.sched_getaffinity(child.pid)))
                if len(places[number]) == 2:
                    break
                time.sleep(0.05)
            side.meet()
        finally:
            stop(child)
        return number

    assert run_at_once([partial(arm, 0), partial(arm, 1)], seconds=30) == [0, 1]
    assert places[0] == places[1]
    first, second = places[0]
    assert not first & second


def test_an_arm_that_fails_ends_the_others_and_its_own_error_is_told() -> None:
    def fail(side: Side) -> None:
        raise PeerError("the disk is full")

    with pytest.raises(PeerError, match="the disk is full"):
        run_at_once([Side.meet, fail], seconds=30)


# --- the processes ---------------------------------------------------------------------------------------------


def start(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code])


def test_a_job_that_fails_is_an_error_and_the_others_are_ended() -> None:
    children = [start("raise SystemExit(3)"), start("import time; time.sleep(60)")]
    with pytest.raises(PeerError, match="exit code 3"):
        wait_all(children, seconds=30)
    assert all(child.poll() is not None for child in children)


def test_a_job_that_does_not_end_is_an_error() -> None:
    with pytest.raises(PeerError, match="had not ended"):
        wait_all([start("import time; time.sleep(60)")], seconds=0.2)


def test_files_that_do_not_come_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="1 of 2"):
        wait_files([tmp_path, tmp_path / "never"], lambda: None, seconds=0.1)


def test_ending_a_process_that_has_ended_does_nothing() -> None:
    child = start("pass")
    child.wait(30)
    stop(child)
    assert child.returncode == 0


def test_a_program_outside_carpool_sees_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARPOOL_JOB", "train-1")
    assert not any(name.startswith("CARPOOL_") for name in plain_environment())


@pytest.mark.slow
@pytest.mark.timeout(BENCH_SECONDS)
def test_a_bench_that_is_ended_from_outside_leaves_nothing_behind() -> None:
    command = [sys.executable, "-m", "carpool.cli.main", "bench", "boundary", "--json"]
    with tempfile.TemporaryDirectory(prefix="cpt-") as name:  # not tmp_path: a socket's path must be short
        directory = Path(name)
        environment = {**plain_environment(), "TMPDIR": name}
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            wait_daemon(directory)
            child.send_signal(signal.SIGTERM)
            out, _ = child.communicate(timeout=60)
        finally:
            stop(child)
        assert child.returncode == 128 + signal.SIGTERM
        assert out == b""
        assert list(directory.iterdir()) == []


def wait_daemon(directory: Path) -> None:
    deadline = time.monotonic() + 60
    while not list(directory.glob("cpb-*/run/daemon.sock")):
        assert time.monotonic() < deadline, f"no daemon in {directory}"
        time.sleep(0.05)


# --- workloads and predictions ---------------------------------------------------------------------------------


def test_a_workload_is_scaled_to_the_steps_and_its_arrivals_with_it(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("submit_s,duration_s\n100,30\n130,10\n140,60\n")
    burst = read_workload(path, 2, 400, 0.01)
    assert burst.steps == [300, 100]
    assert burst.arrivals == pytest.approx([0.0, 3.0])  # 40 s of work became 4 s


def test_a_bad_row_of_a_workload_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("submit_s,duration_s\n0,1\n0,nan\n")
    with pytest.raises(UsageError, match="line 3: duration_s is 'nan'"):
        read_workload(path, 2, 400, 0.01)


def test_ideals_of_jobs_that_come_over_time() -> None:
    in_turn, shortest, shared = ideal_means([10.0, 1.0], [0.0, 2.0])
    assert (in_turn, shortest, shared) == pytest.approx(((10 + 9) / 2, (11 + 1) / 2, (11 + 2) / 2))


def test_a_prediction_of_jobs_in_order_of_arrival_is_the_sum_of_what_was_before() -> None:
    burst = Burst(steps=[1000, 200], arrivals=[0.0, 0.0])
    fifo = predict("fifo", burst, [10.0, 2.0])
    assert fifo == pytest.approx((10.0 + 12.0) / 2, rel=0.01)
    assert predict("srtf", burst, [10.0, 2.0]) < fifo


# --- shares ----------------------------------------------------------------------------------------------------


def test_the_worst_window_of_five_seconds_counts() -> None:
    even = [(second / 10, second * 30_000_000) for second in range(101)]  # 30 % all the time
    assert worst_error(even, 30, 30) == pytest.approx(0, abs=0.01)
    assert worst_error(even, 20, 20) == pytest.approx(10, abs=0.01)
    assert worst_error(even, 20, 29) == pytest.approx(1, abs=0.01)
    assert worst_error(even, 25, 35) == 0
    late = [(at, busy if at < 5 else 1_500_000_000) for at, busy in even]  # nothing after five seconds
    assert worst_error(late, 30, 30) == pytest.approx(30, abs=1)


def test_what_is_reached_without_a_limit_is_all_there_is_to_share() -> None:
    assert reachable_part([], 80) == 1
    assert reachable_part([72.0, 60.0], 80) == 0.75
    assert reachable_part([98.0, 91.0], 80) == 1


def test_samples_shorter_than_a_window_say_nothing() -> None:
    assert worst_error([(0.0, 0), (1.0, 900_000_000)], 30, 30) == 0
