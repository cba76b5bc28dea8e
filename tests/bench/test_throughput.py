"""Which arms `carpool bench throughput` runs, in which order, and again."""

from __future__ import annotations

import pytest

from carpool.bench import throughput
from carpool.bench.throughput import Round


@pytest.mark.parametrize(
    ("stolen_in", "expected"),
    [
        ([], ["uncoordinated", "sequential", "carpool", "carpool", "sequential", "uncoordinated"]),
        (["uncoordinated"], ["uncoordinated", "sequential", "carpool", "carpool", "sequential", "uncoordinated"]),
        (
            ["carpool"],
            ["uncoordinated", "sequential", "carpool", *["sequential", "carpool"] * throughput.TRIES]
            + ["carpool", "sequential", "uncoordinated", *["carpool", "sequential"] * throughput.TRIES],
        ),
    ],
)
def test_what_is_compared_runs_side_by_side_and_again_where_the_host_took_the_machine_away(
    stolen_in: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[str] = []
    taken_ns = 0

    def run_arm(arm: str, jobs: int, steps: int) -> Round:
        nonlocal taken_ns
        played.append(arm)
        taken_ns += 10**15 if arm in stolen_in else 0
        return Round(whole_s=1.0, compute_s=1.0)

    monkeypatch.setattr(throughput, "_run_arm", run_arm)
    monkeypatch.setattr(throughput, "stolen_ns", lambda: taken_ns)
    said: list[str] = []
    throughput.run(said.append, jobs=2, steps=3, rounds=2)
    assert played == expected
    again = [line for line in said if line.endswith("of this machine away; once more")]
    assert len(again) == (2 * throughput.TRIES if "carpool" in stolen_in else 0)
