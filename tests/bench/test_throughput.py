"""Which arms `carpool bench throughput` runs, in which order, and again."""

from __future__ import annotations

import pytest

from carpool.bench import throughput
from carpool.bench.throughput import Load, Round
from carpool.bench.turn_costs import turns_of
from carpool.units import MS


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

    def run_arm(arm: str, load: Load) -> Round:
        nonlocal taken_ns
        played.append(arm)
        taken_ns += 10**15 if arm in stolen_in else 0
        return Round(whole_s=1.0, compute_s=1.0)

    monkeypatch.setattr(throughput, "_run_arm", run_arm)
    monkeypatch.setattr(throughput, "stolen_ns", lambda: taken_ns)
    said: list[str] = []
    throughput.run(said.append, Load(jobs=2, steps=3), rounds=2)
    assert played == expected
    again = [line for line in said if line.endswith("of this machine away; once more")]
    assert len(again) == (2 * throughput.TRIES if "carpool" in stolen_in else 0)


def test_the_pair_from_which_least_was_taken_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequential arms that take 1, 2 and 3 s; the second time the host takes least, but still too much."""
    lasts_s = {"uncoordinated": iter([9.0]), "sequential": iter([1.0, 2.0, 3.0]), "carpool": iter([1.0, 1.0, 1.0])}
    takes_ns = {"uncoordinated": iter([0]), "sequential": iter([0] * 3), "carpool": iter([10**17, 10**15, 10**16])}
    taken_ns = 0

    def run_arm(arm: str, load: Load) -> Round:
        nonlocal taken_ns
        taken_ns += next(takes_ns[arm])
        return Round(whole_s=next(lasts_s[arm]), compute_s=1.0)

    monkeypatch.setattr(throughput, "_run_arm", run_arm)
    monkeypatch.setattr(throughput, "stolen_ns", lambda: taken_ns)
    metrics = throughput.run(lambda _: None, Load(jobs=2, steps=3), rounds=1).metrics
    assert metrics["carpool_over_sequential"] == 2.0


def test_only_the_pair_runs_if_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[str] = []

    def run_arm(arm: str, load: Load) -> Round:
        played.append(arm)
        return Round(whole_s=1.0, compute_s=1.0)

    monkeypatch.setattr(throughput, "_run_arm", run_arm)
    monkeypatch.setattr(throughput, "stolen_ns", lambda: 0)
    metrics = throughput.run(lambda _: None, Load(jobs=2, steps=3), rounds=1, arms=throughput.PAIR).metrics
    assert played == ["sequential", "carpool"]
    assert "carpool_over_better" not in metrics


def test_the_cost_of_a_change_is_what_first_iterations_take_longer() -> None:
    def turn(at_ms: int, *steps_ms: int) -> list[tuple[int, int]]:
        stamps = []
        for step_ms in steps_ms:
            stamps.append((at_ms * MS, (at_ms + step_ms) * MS))
            at_ms += step_ms
        return stamps

    a = turn(0, *[10] * 50) + turn(1000, 30, 20, *[10] * 48)
    b = turn(500, *[10] * 50) + turn(1530, 10, 20, *[10] * 40)
    found = turns_of([a, b])
    assert (found.count, found.step_ns) == (4, 10 * MS)
    assert found.change_ns == 20 * MS
    assert 500 * MS <= found.length_ns <= 530 * MS


def test_the_simulator_predicts_what_a_change_costs() -> None:
    load = Load(jobs=2, steps=6000)
    assert throughput.predict(load, 10 * MS, 0) == pytest.approx(1, abs=0.001)
    assert 0.978 <= throughput.predict(load, 10 * MS, 30 * MS) <= 0.985
    assert 0.88 <= throughput.predict(load, 10 * MS, 200 * MS) <= 0.93, "the bound for waiting keeps turns short"
