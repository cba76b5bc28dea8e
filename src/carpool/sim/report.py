"""What a study hands back: titled tables, targets and notes; and the numbers every report uses.

A study is data. The command line prints it, `--json` writes it, and `docs/results.md` quotes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Cell = str | int | float | None  # None is printed as nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table of at most 80 printed columns; every row has a cell for every column."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A figure, the bound it should keep, and whether it does; a miss is said, never hidden."""

    name: str
    seen: float
    limit: float
    is_least: bool = False  # the figure should be at least the limit, rather than at most

    @property
    def is_met(self) -> bool:
        return self.seen >= self.limit if self.is_least else self.seen <= self.limit

    @property
    def wanted(self) -> str:
        return f"{'≥' if self.is_least else '≤'} {format_cell(self.limit)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The outcome of one study: `carpool sim --study NAME`."""

    name: str
    title: str
    tables: tuple[Table, ...]
    targets: tuple[Target, ...] = ()
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {
            "study": self.name,
            "title": self.title,
            "tables": [
                {"title": table.title, "columns": list(table.columns), "rows": [list(row) for row in table.rows]}
                for table in self.tables
            ],
            "targets": [
                {"name": each.name, "seen": each.seen, "wanted": each.wanted, "met": each.is_met}
                for each in self.targets
            ],
            "notes": list(self.notes),
        }


def format_cell(value: Cell) -> str:
    """A cell as people read it: whole numbers with separators, others with about four digits."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int) or (value == int(value) and abs(value) >= 1000):
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"


def percentile(ordered: Sequence[int], percent: int) -> int:
    """The value at place ⌊n·percent/100⌋ of a sorted list: the rule of the published Muri figures."""
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def jain(values: Sequence[float]) -> float:
    """Jain's index: 1 if all are equal, 1/n if one has everything; 1 for nobody."""
    squares = sum(value * value for value in values)
    total = sum(values)
    return total * total / (len(values) * squares) if squares else 1.0
