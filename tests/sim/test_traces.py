"""Readers of traces: every public one, and a user's file with everything that can be wrong in it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from carpool.errors import UsageError
from carpool.sim.traces import first, load, read_user
from carpool.units import GIB, SECOND


@pytest.mark.parametrize(
    ("name", "jobs", "left_out"),
    [
        ("philly", 82_247, 0),
        ("itp", 69_351, 0),
        ("alibaba2023", 7_255, 897),
        ("muri1", 1_494, 0),
        ("muri2", 5_755, 0),
        ("muri3", 992, 0),
        ("muri4", 2_638, 0),
        ("muri-testbed", 400, 0),
        ("salus", 99, 0),
    ],
)
def test_a_public_trace_has_every_job_of_its_source(name: str, jobs: int, left_out: int) -> None:
    trace = load(name)
    assert (len(trace.jobs), len(trace.bad_rows)) == (jobs, left_out)
    assert len({job.id for job in trace.jobs}) == jobs
    assert [job.submit_ns for job in trace.jobs] == sorted(job.submit_ns for job in trace.jobs)
    assert all(job.service_ns > 0 for job in trace.jobs)


def test_philly_has_cards_and_virtual_clusters() -> None:
    job = load("philly").jobs[0]
    assert (job.submit_ns, job.service_ns, job.cards, job.tenant) == (
        37_841 * SECOND,
        2_240_194 * SECOND,
        8,
        "7f04ca",
    )


def test_a_muri_job_runs_for_its_iterations() -> None:
    job = load("muri1").jobs[0]
    assert (job.program, job.iterations, job.service_ns) == ("dqn", 5_853_661, 5_853_661 * 490 * 1_000_000)
    assert job.stages_ns == (446_000_000, 8_000_000, 0)


def test_an_alibaba_pod_keeps_its_fraction_and_may_want_no_card() -> None:
    jobs = load("alibaba2023").jobs
    assert next(job for job in jobs if job.id == "openb-pod-0001").card_milli == 460
    assert any(job.cards == 0 for job in jobs)


def test_a_salus_job_splits_its_peak_into_what_stays_and_what_comes_and_goes() -> None:
    job = load("salus").jobs[0]
    assert job.card_bytes == 3_709_600_000 == job.persistent_bytes + job.ephemeral_bytes
    assert job.persistent_bytes == 556_440_000  # 15 % of a VGG


def test_a_trace_that_nobody_knows_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="no trace 'nothing'; known are philly, itp"):
        load("nothing")


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    return path


def test_a_users_file_needs_only_two_columns_in_any_order(tmp_path: Path) -> None:
    trace = read_user(write(tmp_path, "duration_s,comment,submit_s\n2.5,hello,10\n1,,0.000000001\n"))
    assert [(job.id, job.submit_ns, job.service_ns) for job in trace.jobs] == [
        ("row3", 1, SECOND),
        ("row2", 10 * SECOND, 2_500_000_000),
    ]
    assert (trace.jobs[0].cards, trace.jobs[0].card_milli, trace.jobs[0].tenant) == (1, 1000, "default")


def test_a_users_file_may_be_compressed_and_name_sizes_with_units(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv.gz"
    path.write_bytes(gzip.compress(b"job,submit_s,duration_s,card_milli,card_bytes,models\na,0,1,250,4GiB,T4|A10\n"))
    job = read_user(path).jobs[0]
    assert (job.card_milli, job.card_bytes, job.models) == (250, 4 * GIB, frozenset({"T4", "A10"}))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a,-1,1,1", "submit_s is -1, below 0"),
        ("a,nan,1,1", "submit_s is 'nan', not a finite number"),
        ("a,0,inf,1", "duration_s is 'inf', not a finite number"),
        ("a,0,soon,1", "duration_s is 'soon', not a number"),
        ("a,0,,1", "duration_s is '', not a number"),
        ("a,0,0,1", "a job runs for more than 0 s"),
        ("a,0,1,1.5", "cards is '1.5', not a whole number"),
        ("a,0,1,-1", "cards is -1; it must be between 0"),
        ("a,0,1e30,1", "longer than a century"),
        ("good,0,1,1", "job 'good' is in line 2 already"),
        ("a,0,1", "3 cells, the header has 4"),
    ],
)
def test_a_bad_row_is_kept_with_its_line_and_the_reason(tmp_path: Path, row: str, reason: str) -> None:
    trace = read_user(write(tmp_path, f"job,submit_s,duration_s,cards\ngood,0,1,1\n{row}\n"))
    assert len(trace.jobs) == 1
    assert [bad.line for bad in trace.bad_rows] == [3]
    assert reason in trace.bad_rows[0].reason


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1: the trace is empty"),
        ("job,submit_s,duration_s\n", "line 1: the trace is empty"),
        ("job,submit_s\na,0\n", "line 1: the column duration_s is missing; it has job, submit_s"),
    ],
)
def test_a_file_that_is_no_trace_is_an_error_with_a_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        read_user(write(tmp_path, text))


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_user(tmp_path / "absent.csv")
    broken = tmp_path / "broken.csv.gz"
    broken.write_bytes(gzip.compress(b"job,submit_s,duration_s\na,0,1\n" * 100)[:40])
    with pytest.raises(UsageError, match="cannot be read"):
        read_user(broken)


def test_the_first_jobs_of_a_trace_keep_the_bad_rows_before_them() -> None:
    trace = load("alibaba2023")
    cut = first(trace, 100)
    assert len(cut.jobs) == 100
    assert 0 < len(cut.bad_rows) < len(trace.bad_rows)
