"""A program that computes and takes no turns is told so once at its end, also away from a terminal."""

from __future__ import annotations

import pytest

from tests.e2e.node import CARPOOL, PYTHON, Node
from tests.e2e.terminal import Terminal

pytestmark = pytest.mark.timeout(120)

COMPUTES = "import time\nwhile time.process_time() < 3.2: pass"
WITH_TURNS = f"import carpool\nwith carpool.turn():\n    {COMPUTES.splitlines()[0]}\n    {COMPUTES.splitlines()[1]}"


def test_who_computes_without_turns_is_told_and_who_takes_them_or_rests_is_not(node: Node) -> None:
    node.start()
    alone = node.run(PYTHON, "-c", COMPUTES, options=["--name", "alone"])
    shares = node.run(PYTHON, "-c", WITH_TURNS, options=["--name", "shares"])
    rests = node.run("sleep", "1", options=["--name", "rests"])
    said = alone.wait()
    assert said.code == 0
    assert said.err.startswith("carpool: job alone-") and said.err.count("\n") == 1, said.err
    assert "it took no turns" in said.err and "with carpool.turn():" in said.err
    assert (shares.wait().err, rests.wait().err) == ("", "")


def test_on_a_terminal_a_short_program_is_not_told(node: Node) -> None:
    node.start()
    with Terminal(node, [CARPOOL, "run", "--name", "short", "--", "true"]) as terminal:
        assert terminal.wait(seconds=30) == 0
        assert "took no turns" not in terminal.text
    asked = node.run("true", options=["--name", "asked", "--summary"]).wait()
    assert "it took no turns" in asked.err, "who asks is told"
