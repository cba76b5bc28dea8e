"""The page of results says what the studies give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carpool.cli.sim import STUDIES
from carpool.sim.report import Study, Table, Target
from carpool.sim.studies import salus
from carpool.testing.results import PAGE, rows_of, section_of, stale_figures

SAID = """# Results
## Speed
`carpool bench sim`

| metric | seen |
|---|---|
| speed | 77 |

## Burst
`carpool sim --study burst` (two minutes)

| seed | SRTF | ideal |
|---|---|---|
| 0 | 2.878 | 12,345 |
| **median** | **3.41** | 0.5 ± 0.25 |

| target | seen | wanted | |
|---|---|---|---|
| median, as said | 3.41 | ≥ 3.19 | met, by 0.22 |

| metric | seen |
|---|---|
| speed | 77 |

<!-- not from the study: 0.22 -->
"""
STUDY = Study(
    name="burst",
    title="",
    tables=(Table(title="", columns=(), rows=(("0", 2.8781, 12345), ("median", 3.409, "0.500 ± 0.250"))),),
    targets=(Target(name="median", seen=3.409, limit=3.19),),
)


def test_a_page_that_says_what_the_study_gives_has_no_stale_figure() -> None:
    assert stale_figures(SAID, STUDY) == []


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("2.878", "2.877", "line 14: 2.877 in the row '0'"),
        ("12,345", "12,346", "line 14: 12,346 in the row '0'"),
        ("**3.41**", "**3.394**", "line 15: 3.394 in the row 'median'"),
        ("| 2.878", "| 3.41", "line 14: 3.41 in the row '0'"),
        ("≥ 3.19", "≥ 3.18", "line 19: 3.18 in the row 'median, as said'"),
        ("by 0.22", "by 0.23", "line 19: 0.23 in the row 'median, as said'"),
    ],
)
def test_a_figure_that_the_study_does_not_give_is_named(right: str, wrong: str, named: str) -> None:
    study = replace(STUDY, targets=()) if "| 3.41" in wrong else STUDY
    assert named in stale_figures(SAID.replace(right, wrong, 1), study)


def test_every_study_has_a_section_with_tables() -> None:
    page = PAGE.read_text()
    for name in STUDIES:
        _, section = section_of(page, name)
        assert list(rows_of(section)), name


@pytest.mark.slow
def test_one_seed_of_salus_is_as_the_page_says() -> None:
    """All seeds and the other studies take a quarter of an hour: `make results` looks at them."""
    page = PAGE.read_text()
    first, section = section_of(page, "salus")
    found = salus.one_seed(0)
    kept = [line for line in section.splitlines() if not line.startswith("|") or line.startswith(("| seed", "| 0 "))]
    assert any(line.startswith("| 0 ") for line in kept)
    assert stale_figures("\n".join(kept), found) == [], f"from line {first} on; `make results` names all"
