"""Bounds without overhead, by hand on tiny cases."""

from __future__ import annotations

import random

from carpool.sim.ideal import Work, makespan_least, mean_completion_least, shared_completions


def test_shortest_first_by_hand() -> None:
    assert mean_completion_least([Work(0, 30), Work(0, 10), Work(0, 20)], 1) == (10 + 30 + 60) // 3


def test_a_short_job_that_comes_later_interrupts_a_long_one() -> None:
    assert mean_completion_least([Work(0, 100), Work(10, 5)], 1) == (105 + 5) // 2


def test_a_gap_between_arrivals_is_idle_time() -> None:
    assert mean_completion_least([Work(0, 10), Work(100, 10)], 1) == 10


def test_no_job_is_faster_than_alone_however_many_cards_there_are() -> None:
    assert mean_completion_least([Work(0, 100), Work(0, 50)], 64) == 75


def test_the_makespan_is_bounded_by_all_the_work_and_by_the_last_job() -> None:
    assert makespan_least([Work(0, 30), Work(0, 10)], 1) == 40
    assert makespan_least([Work(0, 30), Work(0, 10)], 2) == 30
    assert makespan_least([Work(0, 10), Work(100, 7)], 1) == 107
    assert makespan_least([Work(0, 10, 4000)], 4) == 10


def test_equal_shares_by_hand() -> None:
    assert shared_completions([Work(0, 30), Work(0, 10)], 1) == [40, 20]
    assert shared_completions([Work(0, 30), Work(0, 10)], 2) == [30, 10]
    assert shared_completions([Work(0, 10), Work(100, 7)], 1) == [10, 7]
    assert shared_completions([Work(0, 10), Work(5, 5)], 1) == [15, 10]


def test_half_cards_run_side_by_side() -> None:
    assert shared_completions([Work(0, 10, 500), Work(0, 10, 500)], 1) == [10, 10]


def test_the_bounds_hold_for_equal_shares_of_random_jobs() -> None:
    source = random.Random(1)
    for _ in range(50):
        jobs = [Work(source.randrange(10**9), source.randrange(1, 10**9)) for _ in range(20)]
        shared = shared_completions(jobs, 1)
        assert sum(shared) // len(shared) >= mean_completion_least(jobs, 1)
        end = max(job.submit_ns + time for job, time in zip(jobs, shared, strict=True))
        begin = min(job.submit_ns for job in jobs)
        assert abs(end - begin - makespan_least(jobs, 1)) <= 1000  # both keep the card busy; rounding apart
