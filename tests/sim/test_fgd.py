"""The study of placement rules: loading a cluster the published way, the marks, the table, and the real trace."""

from __future__ import annotations

from collections import Counter

import pytest

from carpool.core.cluster.placement.requests import NodeSpec, Request
from carpool.sim.alibaba import Problem, make_problem, read_nodes, read_pods
from carpool.sim.studies.fgd import ARMS, MARKS, PUBLISHED, REPRODUCED, Arm, Filling, fill, mean, present

WHOLE = Request(cards=1, card_milli=1000)
HALF = Request(cards=1, card_milli=500, cpu_milli=1000)
BEST_FIT = Arm(rule="best_fit")


def cluster(*cards: int) -> list[NodeSpec]:
    return [NodeSpec(name=f"n{number}", cards=count, cpu_milli=64_000) for number, count in enumerate(cards)]


# --- loading ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("count", [3, 60])
def test_a_cluster_is_loaded_to_the_percentage_and_no_further(seed: int, count: int) -> None:
    """From a short list by copies, from a long one by leaving pods out."""
    problem = make_problem(cluster(4, 4, 2), [WHOLE, HALF, HALF] * count, seed=seed, percent=130)
    asked_milli = sum(request.total_milli for request in problem.requests)
    assert 12_000 < asked_milli <= 13_000
    assert set(problem.requests) <= {WHOLE, HALF}


def test_one_seed_gives_one_problem_and_another_seed_another() -> None:
    nodes, pods = cluster(*range(1, 9)), [WHOLE, HALF, HALF]
    problems = [make_problem(nodes, pods, seed=seed, percent=130) for seed in (42, 42, 43)]
    assert problems[0] == problems[1] != problems[2]
    assert problems[0].nodes != problems[2].nodes, "the order that breaks ties is shuffled too"
    assert set(problems[0].nodes) == set(nodes)
    assert problems[0].demand == {WHOLE: 1, HALF: 2}, "typical is the list itself, not what was drawn from it"


# --- filling ---------------------------------------------------------------------------------------------------


def test_the_marks_are_looked_at_when_so_much_has_arrived() -> None:
    nodes = tuple(cluster(10))
    problem = Problem(nodes=nodes, requests=(WHOLE,) * 13, demand=Counter([WHOLE]))
    assert fill(problem, BEST_FIT, seed=0).allocated == (90, 90, 100, 100)


def test_what_does_not_fit_is_dropped_and_what_comes_later_still_placed() -> None:
    pair = Request(cards=2, card_milli=1000)
    problem = Problem(nodes=tuple(cluster(1, 1)), requests=(pair, WHOLE, WHOLE), demand=Counter([WHOLE]))
    assert fill(problem, BEST_FIT, seed=0).allocated[-1] == 100


def test_fragmentation_is_the_idle_time_that_is_of_no_use() -> None:
    odd = Request(cards=1, card_milli=600)
    problem = Problem(nodes=tuple(cluster(2)), requests=(odd, odd, odd), demand=Counter([odd]))
    found = fill(problem, BEST_FIT, seed=0)
    assert found.allocated[-1] == 60
    assert found.fragmented[-1] == 40


def test_overcommit_places_more() -> None:
    odd = Request(cards=1, card_milli=520)
    problem = Problem(nodes=tuple(cluster(2)), requests=(odd,) * 4, demand=Counter([odd]))
    assert fill(problem, BEST_FIT, seed=0).allocated[-1] == 52
    assert fill(problem, Arm(rule="tidy", overcommit_percent=5), seed=0).allocated[-1] == 104


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.title)
def test_one_seed_gives_the_same_figures_twice(arm: Arm) -> None:
    problem = make_problem(cluster(4, 4, 2, 8), [WHOLE, HALF, HALF], seed=7, percent=130)
    assert fill(problem, arm, seed=7) == fill(problem, arm, seed=7)


def test_a_mean_is_taken_mark_by_mark() -> None:
    one = Filling(allocated=(1.0, 2.0), fragmented=(0.0, 4.0))
    other = Filling(allocated=(3.0, 2.0), fragmented=(1.0, 5.0))
    assert mean([one, other]) == Filling(allocated=(2.0, 2.0), fragmented=(0.5, 4.5))


# --- the report ------------------------------------------------------------------------------------------------


def make_means(value: float) -> dict[tuple[str, Arm], Filling]:
    return {("default", arm): Filling(allocated=(value,) * 4, fragmented=(5.0,) * 4) for arm in ARMS}


def test_every_published_row_stands_below_ours() -> None:
    (table,) = present(make_means(95.0), workloads=("default",), seeds=(42,)).tables
    assert table.columns == ("rule", "@90", "@95", "@100", "@130", "frag @90")
    titles = [row[0] for row in table.rows]
    assert titles.count("  published") == 6
    below = table.rows[titles.index("fragmentation") + 1]
    assert below == ("  published", "89.98", "94.90", "95.23", "95.39", "5.00")
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_targets_say_how_far_from_published_and_whether_our_own_rule_is_good_enough() -> None:
    targets = present(make_means(95.3), workloads=("default",), seeds=(42,)).targets
    assert {each.name: each.is_met for each in targets} == {
        "default best_fit: points from published": False,
        "default fragmentation: points from published": True,
        "default tidy: % placed": False,
        "default tidy, 5 % overcommit: % placed": False,
    }


def test_the_seeds_are_named() -> None:
    assert "seed 42;" in present(make_means(95.0), workloads=("default",), seeds=(42,)).notes[0]
    assert "the seeds 42 to 43;" in present(make_means(95.0), workloads=("default",), seeds=(42, 43)).notes[0]


# --- the real trace --------------------------------------------------------------------------------------------


def test_the_published_cluster_is_read_whole() -> None:
    nodes, pods = read_nodes(), read_pods("default")
    assert (len(nodes), sum(node.cards for node in nodes)) == (1213, 6212)
    assert len(pods) == 8152
    assert sum(pod.total_milli for pod in pods) == 6_086_800
    assert sum(pod.cards == 0 for pod in pods) == 1088
    assert {model for pod in read_pods("gpuspec33") for model in pod.models} <= {node.model for node in nodes}


@pytest.mark.slow
def test_best_fit_fills_the_real_cluster_about_as_much_as_published() -> None:
    problem = make_problem(read_nodes(), read_pods("default"), seed=42, percent=MARKS[-1])
    found = fill(problem, BEST_FIT, seed=42).allocated[-1]
    assert found == pytest.approx(PUBLISHED["default", REPRODUCED[0]][3], abs=1.0)
