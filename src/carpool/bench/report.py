"""What a benchmark hands back: figures, the targets beside them, and words about how they were taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from carpool.devices import cpu

Say = Callable[[str], None]
Value = int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A bound that a metric should keep."""

    limit: float
    is_least: bool = False  # the metric should be at least this, rather than at most

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.is_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.is_least else '≤'} {format_value(self.limit)}"


@dataclass(slots=True, kw_only=True)
class Report:
    bench: str
    metrics: dict[str, Value] = field(default_factory=dict)
    targets: dict[str, Target] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failure: str = ""  # a promise was broken, not merely a target missed
    is_quick: bool = False  # the smallest form shows that it runs: no figure of it is worth a verdict

    def add(self, name: str, value: Value, target: Target | None = None) -> None:
        self.metrics[name] = value if isinstance(value, int) else float(f"{value:.6g}")
        if target is not None:
            self.targets[name] = target

    def as_json(self) -> dict[str, object]:
        return {"bench": self.bench, "device": device_title(), "metrics": self.metrics}

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Name, figure, target, verdict; the metrics with targets first."""
        ordered = sorted(self.metrics, key=lambda name: name not in self.targets)
        return [self._row(name) for name in ordered]

    def _row(self, name: str) -> tuple[str, str, str, str]:
        value, target = self.metrics[name], self.targets.get(name)
        if target is None:
            return name, format_value(value), "", ""
        verdict = "" if self.is_quick else "met" if target.is_met(value) else "MISSED"
        return name, format_value(value), str(target), verdict


def device_title() -> str:
    """The benchmarks run on the machine's cores, whatever else it has."""
    return f"CPU device: {cpu.title()}"


def format_value(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}" if abs(value) >= 0.001 else f"{value:.2g}"


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
