"""How a share is read off the stand-in's books: windows of five seconds, and what an ideal limiter would show."""

from __future__ import annotations

import pytest

from carpool.bench.windows import WINDOW_NS, Line, ideal_range, kept_of, window_percents

MS, SECOND = 10**6, 10**9


@pytest.mark.parametrize(
    ("kernel_ns", "percent", "expected"),
    [
        (SECOND, 20, (20, 20)),  # a kernel every 5 s: always one
        (SECOND, 80, (80, 80)),
        (SECOND, 50, (40, 60)),  # two or three, with the phase
        (100 * MS, 50, (50, 50)),
        (3 * SECOND, 50, (40, 60)),  # one every 6 s
        (4 * SECOND, 20, (0, 80)),
    ],
)
def test_kernels_that_cannot_be_cut_give_a_window_a_range(
    kernel_ns: int, percent: int, expected: tuple[int, int]
) -> None:
    assert ideal_range(kernel_ns, percent) == expected


def ideal_line(kernel_ns: int, percent: int) -> Line:
    """Kernels in their exact time for 12 s, looked at every 7 ms."""
    period = kernel_ns * 100 // percent
    return [(at, at // period * kernel_ns + min(at % period, kernel_ns), 0) for at in range(0, 12 * SECOND, 7 * MS)]


@pytest.mark.parametrize(("kernel_ns", "percent"), [(SECOND, 20), (SECOND, 50), (SECOND, 80), (3 * SECOND, 50)])
def test_an_ideal_limiter_is_never_off(kernel_ns: int, percent: int) -> None:
    assert kept_of(ideal_line(kernel_ns, percent), ideal_range(kernel_ns, percent)).error < 0.2  # between two looks


def test_a_second_kernel_on_credit_shows_in_the_first_window() -> None:
    line = [(at, done + min(at, SECOND), 0) for at, done, _ in ideal_line(SECOND, 20)]
    assert kept_of(line, ideal_range(SECOND, 20)).error == pytest.approx(20, abs=0.2)


def test_a_run_shorter_than_a_window_has_none() -> None:
    assert window_percents([(0, 0, 0), (WINDOW_NS - 1, 5, 0)]) == []


def test_windows_in_which_the_host_took_the_machine_away_are_left_out() -> None:
    line = ideal_line(100 * MS, 50)
    halted = [(at, min(done, 4 * SECOND), SECOND if at >= 8 * SECOND else 0) for at, done, _ in line]
    assert kept_of(halted, (50, 50)).error < 0.2
    assert min(window_percents(halted)) < 40, "the device did nothing after eight seconds"


def test_where_the_host_takes_the_machine_away_all_the_time_every_window_counts() -> None:
    line = [(at, done, at // 10) for at, done, _ in ideal_line(100 * MS, 50)]
    kept = kept_of(line, (40, 40))
    assert kept.is_disturbed and kept.error == pytest.approx(10, abs=0.2)
