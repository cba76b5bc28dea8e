"""What `carpool bench throughput --stalls` makes of the stamps of its programs."""

from __future__ import annotations

import pytest

from carpool.bench.stalls import Stamps, Window, make_report
from carpool.units import MS, SECOND

STEP, STALL, OTHER = 40 * MS, 40 * MS, 10 * MS


def steps(from_ns: int, *, each_ns: int, computes_ns: int) -> Stamps:
    """Iterations of one second."""
    return [(at, at + computes_ns) for at in range(from_ns, from_ns + SECOND - each_ns + 1, each_ns)]


def test_the_measured_figure_stands_beside_the_prediction_and_the_bound_of_free_changes() -> None:
    kinds = ("stalling alone", "computing alone", "mixed", "stalling")
    windows = [
        Window(kind=kind, cycle=0, from_ns=number * SECOND, to_ns=(number + 1) * SECOND)
        for number, kind in enumerate(kinds)
    ]
    alone, beside = STEP + STALL, STEP + STALL + 20 * MS
    stamps = {
        "first": [
            *steps(0, each_ns=alone, computes_ns=STEP),
            *steps(2 * SECOND, each_ns=beside, computes_ns=STEP),
            *steps(3 * SECOND, each_ns=beside, computes_ns=STEP),
        ],
        "second": steps(3 * SECOND, each_ns=beside, computes_ns=STEP),
        "computing": [
            *steps(SECOND, each_ns=OTHER, computes_ns=OTHER),
            *steps(2 * SECOND, each_ns=2 * OTHER, computes_ns=OTHER),
        ],
    }
    costs = {"first": 10 * MS, "second": 10 * MS, "computing": 2 * MS}
    found = make_report(windows, stamps, costs, 0.005).metrics
    assert found["stalling_beside_computing"] == pytest.approx(10 / 12, rel=0.1)
    assert found["computing_beside_stalling"] == pytest.approx(0.5, rel=0.05)
    for name in ("stalling_beside_computing", "stalling_beside_stalling"):
        assert found[f"predicted_{name}"] < found[f"bound_{name}"] <= 1
    assert found["prediction_error"] < 0.15
    assert found["change_ms_first"] == 10
