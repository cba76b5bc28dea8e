"""A job that stops reaching boundaries: each step is written down and explained; nobody is ended unasked."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.e2e.alone import Alone
from tests.e2e.node import Node, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

HOG = ["hog.py", "--steps", "10"]
COMPANION = ["held.py", "sgd", "--width", "64", "--pause", "0.005", "--steps", "100000000"]


def steps(node: Node, name: str) -> list[Any]:
    return [event["step"] for event in node.journal("NameHog") if event["job"].rpartition("-")[0] == name]


def test_a_hog_is_sent_away_at_its_boundary_and_comes_back_when_nobody_else_is_there(
    node: Node, alone: Alone
) -> None:
    node.start(quantum="20ms", hog_after="200ms")
    node.run(*COMPANION, options=["--name", "companion"])
    node.wait_steps("companion", 5)
    enough = node.files / "enough"
    hog = node.run(*HOG, "--seconds", "100", "--until", str(enough), options=["--name", "hog"])
    wait_until(lambda: len(steps(node, "hog")) == 3, "every step is taken")
    assert node.state("hog") == "running", "it leaves at a boundary and not before"
    enough.touch()
    away = node.wait_state("hog", "parked")
    assert steps(node, "hog") == ["warned", "put last", "sent away"]
    assert "it comes back when nobody else is here, or with: carpool resume hog-2" in away["reason"]
    node.wait_steps("companion", node.job("companion")["steps"] + 20)
    assert node.state("hog") == "parked"
    assert node.carpool("cancel", "companion").code == 0
    ended = hog.wait()
    assert ended.code == 0, ended.err
    lines = [line for line in ended.lines if not line.startswith("hogged")]
    truth = alone.output(*HOG, "--seconds", "0").decode().splitlines()
    assert lines == [line for line in truth if not line.startswith("hogged")]
    assert node.wait_state("hog", "finished")["spent_ns"]["parked"] > 0


def test_a_job_that_reaches_no_boundary_is_named_by_ps_though_nobody_waits_for_it(node: Node) -> None:
    node.start()
    enough = node.files / "enough"
    hog = node.run(*HOG, "--seconds", "100", "--until", str(enough), options=["--name", "hog"])
    hog.wait_line("hogging")
    time.sleep(3)  # nobody looks meanwhile: the first look must know it
    lines = node.carpool("ps").lines
    assert any(line.startswith("hog-1") and "running (silent)" in line for line in lines), lines
    assert any(line.startswith("hog-1: no boundary reached for ") and "(usual step " in line for line in lines)
    assert any("no boundary reached for" in line for line in node.carpool("explain", "hog").lines)
    job = node.job("hog")
    assert (job["is_hog"], job["state"], steps(node, "hog")) == (False, "running", [])
    enough.touch()
    assert hog.wait().code == 0


def test_a_hog_that_chose_it_is_ended_and_says_why(node: Node) -> None:
    node.start(quantum="20ms", hog_after="50ms")
    node.run(*COMPANION, options=["--name", "companion"])
    node.wait_steps("companion", 5)
    hog = node.run(*HOG, "--seconds", "300", options=["--name", "hog", "--on-hog", "kill"])
    done = hog.wait()
    assert done.code == 143
    assert "it is ended, as --on-hog kill says" in done.err
    assert steps(node, "hog") == ["warned", "put last", "sent away", "ended"]
    ended = node.wait_state("hog", "cancelled")
    assert "has not reached a boundary" in ended["reason"] and "it is ended, as --on-hog kill says" in ended["reason"]
    assert node.job("companion")["state"] in ("running", "waiting")
