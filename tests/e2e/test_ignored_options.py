"""Options that mean nothing under the daemon's policy are said to, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.node import Node, with_environment

pytestmark = pytest.mark.timeout(120)

MINE = """
from carpool.policies import JobView, Policy, Rank

class Mine(Policy):
    name = "mine"
    def rank(self, view: JobView, *, now: int) -> Rank:
        return (-view.priority, view.arrived_ns)
    def why(self, chosen: JobView, over: JobView) -> str:
        return "it is mine"
"""


def said(node: Node, *options: str, verb: str = "run") -> list[str]:
    done = node.carpool(verb, *options, "--", "true")
    assert done.code == 0, done.err
    return [line for line in done.err.splitlines() if "counts" in line]


def test_under_fair_a_priority_is_said_to_mean_nothing(node: Node) -> None:
    node.start(policy="fair")
    expected = ["carpool: --priority counts only under policy priority; this daemon has fair"]
    assert said(node, "--priority", "5") == expected
    assert said(node, "--priority", "5", verb="submit") == expected
    assert said(node, "--weight", "2", "--tenant", "ana") == []
    assert said(node, "--priority", "0", "--weight", "1") == []
    with with_environment(node, {"CARPOOL_PRIORITY": "3"}):
        assert said(node)[0].startswith("carpool: CARPOOL_PRIORITY counts only under policy priority")


def test_a_policy_of_ones_own_is_asked_what_it_goes_by(node: Node, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    node.start(policy=f"{tmp_path}/mine.py:Mine")
    assert said(node, "--priority", "5") == []
    assert said(node, "--weight", "2", "--tenant", "ana") == [
        "carpool: --weight counts only under policy fair; this daemon has mine",
        "carpool: --tenant counts only under policy fair; this daemon has mine",
    ]
    (tmp_path / "mine.py").unlink()
    assert said(node, "--weight", "2") == [], "nobody can tell any more"


def test_a_tenant_that_no_weight_could_name_is_refused(node: Node) -> None:
    done = node.carpool("run", "--tenant", "a=b,c", "--", "true")
    assert (done.code, "--tenant-weights could not name it" in done.err) == (2, True), done.err
