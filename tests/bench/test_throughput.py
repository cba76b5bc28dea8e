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


def test_the_pair_from_which_least_was_taken_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequential arms that take 1, 2 and 3 s; the second time the host takes least, but still too much."""
    lasts_s = {"uncoordinated": iter([9.0]), "sequential": iter([1.0, 2.0, 3.0]), "carpool": iter([1.0, 1.0, 1.0])}
    takes_ns = {"uncoordinated": iter([0]), "sequential": iter([0] * 3), "carpool": iter([10**17, 10**15, 10**16])}
    taken_ns = 0

    def run_arm(arm: str, jobs: int, steps: int) -> Round:
        nonlocal taken_ns
        taken_ns += next(takes_ns[arm])
        return Round(whole_s=next(lasts_s[arm]), compute_s=1.0)

    monkeypatch.setattr(throughput, "_run_arm", run_arm)
    monkeypatch.setattr(throughput, "stolen_ns", lambda: taken_ns)
    metrics = throughput.run(lambda _: None, jobs=2, steps=3, rounds=1).metrics
    assert metrics["carpool_over_sequential"] == 2.0
