"""The figures of a run, by hand on a tiny case."""

from __future__ import annotations

import pytest

from carpool.sim.measures import bound, fairness_ratios, format_ratio, measure, tables, tenant_jain
from carpool.sim.outcome import JobOutcome, Outcome
from carpool.sim.report import jain, percentile
from carpool.units import SECOND


def job(name: str, *, end: int, service: int, submit: int = 0, tenant: str = "a", preemptions: int = 0) -> JobOutcome:
    return JobOutcome(
        id=name,
        tenant=tenant,
        submit_ns=submit * SECOND,
        start_ns=submit * SECOND,
        end_ns=end * SECOND,
        service_ns=service * SECOND,
        preemptions=preemptions,
    )


# One card: a long job of 30 s, then a short one of 10 s, both there from the beginning, in order of arrival.
TINY = Outcome(
    policy="fifo",
    jobs=(job("long", end=30, service=30), job("short", end=40, service=10, tenant="b", preemptions=2)),
    cards=1,
    busy_milli_ns=40 * SECOND * 1000,
    capacity_bytes=100,
    held_byte_ns=25 * 40 * SECOND,
)


def test_the_figures_of_two_jobs_by_hand() -> None:
    found = measure(TINY)
    assert (found.average_s, found.median_s, found.p95_s, found.p99_s) == (35.0, 40.0, 40.0, 40.0)
    assert (found.queueing_s, found.makespan_s, found.preemptions) == (15.0, 40.0, 2)
    assert (found.device_share, found.memory_share) == (1.0, 0.25)
    assert found.fairness_worst == 2.0  # under equal shares the short one would have been done after 20 s
    assert found.jain == pytest.approx((1 + 0.25) ** 2 / (2 * (1 + 0.0625)), rel=1e-6)


def test_the_bounds_of_two_jobs_by_hand() -> None:
    found = bound(TINY)
    assert (found.average_s, found.queueing_s, found.makespan_s, found.device_share) == (25.0, 5.0, 40.0, 1.0)


def test_the_tables_show_ratios_to_the_first_policy_and_the_bound_in_eighty_columns() -> None:
    rows = [("fifo", measure(TINY)), ("twice", measure(TINY))]
    made = tables(rows, bound(TINY))
    assert made[0].rows[1][:3] == ("twice", 35.0, "1.00")
    assert made[0].rows[2] == ("bound", 25.0, "0.71", None, None, None, None, None, None)
    assert all(len(row) == len(table.columns) for table in made for row in table.rows)


def test_fairness_compares_with_equal_shares() -> None:
    assert fairness_ratios(TINY.jobs, 1) == [30 / 40, 40 / 20]


def test_jain_is_one_when_all_tenants_are_slowed_alike() -> None:
    assert tenant_jain([job("x", end=20, service=10), job("y", end=4, service=2, tenant="b")]) == pytest.approx(1.0)
    assert jain([1, 0, 0, 0]) == 0.25
    assert jain([]) == 1.0


def test_a_percentile_follows_the_rule_of_the_published_figures() -> None:
    assert percentile(list(range(200)), 99) == 198
    assert percentile([7], 99) == 7


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1.00"), (0.004, "<0.01"), (12.34, "12.3"), (216.1, "216"), (216_114.0, ">9999")]
)
def test_a_ratio_has_at_most_five_characters(value: float, text: str) -> None:
    assert format_ratio(value) == text
