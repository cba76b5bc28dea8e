"""Whether docs/results.md says what the studies give: `python -m carpool.testing.results [STUDY ...]`.

It runs each study, prints it, and then looks for every figure of the tables on that page in what came out;
`make results` does that for all of them. A row of the page is compared with the rows of the study that begin alike,
or with all of them if none does, and with the targets. A figure counts with as many digits as the page has. What no
study makes is named on the page, in a comment of its section: `<!-- not from the study: 0.04, 14.48 -->`. Tables of
`metric` are from benchmarks and are left out; so is what stands in sentences.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from carpool.sim.report import Cell, Study

PAGE = Path(__file__).parents[3] / "docs" / "results.md"
COMMAND = re.compile(r"`carpool sim --study (\w+)`")
BY_HAND = re.compile(r"<!-- not from the study: (.*?) -->", re.DOTALL)
FIGURE = re.compile(r"(?<![\w.,-])\d+(?:,\d{3})*(?:\.\d+)?(?![\w]|\.\d)")

PUBLISHED = re.compile(r"(?<=\d\.\d\d) / \d+\.\d\d$")  # ours / published


class Row(NamedTuple):
    """One row of a table on the page: which line it is, and its cells."""

    line: int
    cells: list[str]


def stale_figures(page: str, study: Study) -> list[str]:
    """Every figure in the tables of the study's section that the study did not make, with its line."""
    first, section = section_of(page, study.name)
    by_hand = {figure for said in BY_HAND.findall(section) for figure in FIGURE.findall(said)}
    rows: list[Sequence[Cell]] = [row for table in study.tables for row in table.rows]
    targets = [cell for each in study.targets for cell in (each.seen, each.limit)]
    named = {_key(row[0]) for row in rows}
    found = []
    for row in rows_of(section):
        key = _key(row.cells[0])
        alike = [cell for each in rows if key not in named or _key(each[0]) == key for cell in each]
        made = list(_numbers([*alike, *targets]))
        ours = [PUBLISHED.sub("", cell) for cell in row.cells[1:]]
        for figure in FIGURE.findall(" | ".join(ours)):
            if figure not in by_hand and not _is_made(figure, made):
                found.append(f"line {first + row.line}: {figure} in the row '{row.cells[0]}'")
    return found


def section_of(page: str, study: str) -> tuple[int, str]:
    """The part of the page about a study, and the number of the line before its first one."""
    begin = 0
    for part in re.split(r"^(?=## )", page, flags=re.MULTILINE):
        command = COMMAND.search(part)
        if command is not None and command[1] == study:
            return page[:begin].count("\n"), part
        begin += len(part)
    return 0, ""


def rows_of(section: str) -> Iterator[Row]:
    """The rows of its tables, without their heads, and without tables of what a benchmark measured."""
    is_inside = is_measured = False
    for line, text in enumerate(section.splitlines(), start=1):
        is_row = text.startswith("|")
        cells = [cell.strip(" *") for cell in text.strip("|").split("|")]
        if is_row and not is_inside:
            is_measured = cells[0] == "metric"
        elif is_row and not is_measured and set(text) - set("|-"):
            yield Row(line, cells)
        is_inside = is_row


def _key(cell: Cell) -> str:
    """What a row is called, without what only explains it."""
    return re.sub(r"\(.*?\)|[^\w%]", "", str(cell)).lower()


def _numbers(cells: Iterable[Cell]) -> Iterator[float]:
    for cell in cells:
        if isinstance(cell, str):
            yield from (float(figure.replace(",", "")) for figure in FIGURE.findall(cell))
        elif cell is not None:
            yield float(cell)


def _is_made(figure: str, made: Sequence[float]) -> bool:
    """Whether one of these numbers is this figure, with as many digits as it has."""
    shown, digits = float(figure.replace(",", "")), len(figure.partition(".")[2])
    return any(abs(abs(number) - shown) <= 0.5000001 * 10**-digits for number in made)


def main(names: Sequence[str]) -> int:
    from carpool.cli.sim import STUDIES, say, show_study

    stale = 0
    for name in names or STUDIES:
        study: Study = import_module(f"carpool.sim.studies.{name}").run(say, quick=False)
        show_study(study)
        for said in stale_figures(PAGE.read_text(), study):
            stale += 1
            say(f"docs/results.md {said} is not what `carpool sim --study {name}` gives")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
