"""Seeded workloads: the same seed makes the same jobs, and their file reads back exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from carpool.errors import UsageError
from carpool.sim.traces import TraceJob, load, read_user
from carpool.sim.workload import lognormal, mixed, script_of, to_csv, write_csv
from carpool.units import GIB, SECOND


def test_the_same_seed_makes_the_same_bytes_and_another_seed_others() -> None:
    assert to_csv(lognormal(50, seed=3)) == to_csv(lognormal(50, seed=3))
    assert to_csv(lognormal(50, seed=3)) != to_csv(lognormal(50, seed=4))
    assert to_csv(mixed(50, seed=3)) == to_csv(mixed(50, seed=3))


def test_lognormal_jobs_have_the_mean_that_was_asked_for() -> None:
    jobs = lognormal(200, seed=0, mean_s=5.0)
    assert sum(job.service_ns for job in jobs) / 200 == pytest.approx(5.0 * SECOND, rel=1e-6)
    assert all(job.submit_ns == 0 for job in jobs)


def test_poisson_arrivals_offer_the_load_that_was_asked_for() -> None:
    jobs = lognormal(2000, seed=0, sigma=0.5, load=0.5)
    span = jobs[-1].submit_ns - jobs[0].submit_ns
    assert sum(job.service_ns for job in jobs) / span == pytest.approx(0.5, rel=0.1)


def test_tenants_and_fractions_are_drawn() -> None:
    jobs = lognormal(300, seed=1, tenants=3, fractions=True)
    assert {job.tenant for job in jobs} == {"tenant0", "tenant1", "tenant2"}
    part = sum(job.card_milli < 1000 for job in jobs) / len(jobs)
    assert 0.3 < part < 0.6  # 44 % of Alibaba's one-card pods


def test_mixed_jobs_have_tenants_fractions_and_memory_that_fits_them() -> None:
    jobs = mixed(500, seed=0)
    source = load("itp").jobs[:500]
    assert [job.tenant for job in jobs] == [job.tenant for job in source]
    assert [job.service_ns for job in jobs] == [job.service_ns for job in source]
    smallest = min(job.card_bytes for job in load("salus").jobs)
    for job in jobs:
        assert job.card_milli == 1000 or job.cards == 1
        assert 0 < job.card_bytes <= max(smallest, job.card_milli * 16 * GIB // 1000)
        assert job.card_bytes == job.persistent_bytes + job.ephemeral_bytes


def test_mixed_draws_only_from_traces_with_tenants() -> None:
    with pytest.raises(UsageError, match="itp or philly"):
        mixed(10, seed=0, base="salus")


def test_a_written_workload_reads_back_exactly(tmp_path: Path) -> None:
    jobs = lognormal(100, seed=5, load=0.9, tenants=2, fractions=True)
    write_csv(jobs, tmp_path / "jobs.csv")
    trace = read_user(tmp_path / "jobs.csv")
    assert trace.bad_rows == ()
    assert [replace(job, line=0) for job in trace.jobs] == jobs


def test_a_workload_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        write_csv(lognormal(1, seed=0), tmp_path / "absent" / "jobs.csv")


def test_a_job_as_a_script_runs_as_long_as_in_its_trace() -> None:
    job = TraceJob(id="a", submit_ns=5, service_ns=100, iterations=10, card_bytes=7)
    script = script_of(job)
    assert (script.steps, script.step_ns, script.needs.persistent_bytes, script.is_known) == (10, 10, 7, True)
    assert script_of(replace(job, service_ns=SECOND, iterations=0)).steps == 5
