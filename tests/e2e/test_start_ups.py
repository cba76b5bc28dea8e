"""Programs that start up on the CPU device: few at once, and fewer beside one that computes."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest

from carpool.calls import Spec
from tests.e2e.node import PROGRAMS, PYTHON, Node, Started

pytestmark = pytest.mark.slow
COMPUTES = "0.5"  # seconds of a core, before the first turn
MIB = 1 << 20


def start_up(node: Node, name: str) -> Started:
    return node.run("starts_up.py", COMPUTES, options=["--name", name, "--memory", "64MiB"])


def span_of(started: Started) -> tuple[float, float]:
    ended = started.wait()
    assert ended.code == 0, ended.err
    began, computed = ended.lines[0].split()
    return float(began), float(computed)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) > 3, reason="NOT TESTED: beside a holder one starts for two cores")
def test_beside_a_job_that_computes_programs_start_one_after_the_other(node: Node) -> None:
    node.start(device="cpu:4GiB")
    node.run("held.py", "sgd", "--width", "64", "--steps", "100000000", options=["--name", "holder"])
    node.wait_steps("holder", 3)
    spans = sorted(map(span_of, [start_up(node, f"s{number}") for number in range(3)]))
    assert all(before[1] <= after[0] for before, after in pairwise(spans)), spans


def test_a_program_that_rests_does_not_keep_others_from_starting(node: Node) -> None:
    node.start(device="cpu:4GiB")
    sleepers = len(os.sched_getaffinity(0)) + 2
    for number in range(sleepers):
        spec = Spec(name=f"sleeper{number}", cap_bytes=MIB)
        node.client.submit(["sleep", "1000"], spec=spec, environment=node.environment)
    span_of(start_up(node, "last"))
    assert len(node.journal("ProgramStarted")) >= sleepers


def test_a_program_that_computes_without_turns_counts_as_starting_for_a_while_only(node: Node) -> None:
    node.start(device="cpu:4GiB")
    endless = [PYTHON, str(PROGRAMS / "starts_up.py"), "1000"]
    for number in range(len(os.sched_getaffinity(0))):
        spec = Spec(name=f"endless{number}", cap_bytes=64 * MIB)
        node.client.submit(endless, spec=spec, environment=node.environment)
    late = start_up(node, "late")
    span_of(late)
    assert "waits for its start" in late.whole_err
