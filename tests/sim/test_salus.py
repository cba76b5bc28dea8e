"""The study of Salus in its smallest form, and its admission figures in full."""

from __future__ import annotations

import pytest

from carpool.sim.studies import salus


@pytest.mark.slow
def test_the_quick_study_has_its_tables_and_reaches_the_ideal() -> None:
    said: list[str] = []
    study = salus.run(said.append, quick=True)
    assert [len(table.rows) for table in study.tables] == [2, 2, 3, 4]
    met = {target.name: target.is_met for target in study.targets}
    assert met["SRTF, share of the ideal ratio"] and met["FAIR, share of the ideal ratio"]
    assert met["SRTF, steps said, share of the ideal, worst seed"]
    assert met["SRTF, nothing said, share of the ideal, worst seed"]
    [row] = study.tables[0].rows[:1]
    ideal, _, _, _, blind, best_blind = (float(str(cell)) for cell in row[1:])
    assert blind <= best_blind * 1.01 < 0.6 * ideal, "without any knowledge nobody comes near the ideal"
    assert len(said) == 1


def test_there_are_33_configurations() -> None:
    assert len(salus.configurations()) == 33


def test_carpool_admits_more_than_the_papers_rule_and_that_more_than_no_sharing() -> None:
    found = salus.admission([0], 30)
    alone, paper, carpool = (found[name][1] for name in ("no sharing", "the paper's rule", "carpool, in turns"))
    assert alone < 1 < paper < carpool
    assert carpool > 2.4
