"""Jobs that hold a turn and do not use it: pauses, slow input, long silence, a script that trained and only sleeps.

One companion trains all the time beside them; it must go on, and its numbers must not change.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import scripts
from tests.e2e.alone import Alone
from tests.e2e.node import Node, Started, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SERVES = """
import time
import torch
model = torch.nn.Linear(64, 64)
with torch.no_grad():
    for _ in range(10):
        model(torch.ones(4, 64))
        time.sleep(0.3)
print("served", flush=True)
time.sleep(1)
"""
COMPANION = ["held.py", "sgd", "--width", "64", "--pause", "0.005"]


class Beside(Node):
    """A node in which a companion trains."""

    companion: Started

    def run_beside(self, *program: str, name: str) -> Started:
        return self.run(*program, options=["--name", name, "--memory", "400MiB"])

    def events(self, kind: str, name: str) -> list[dict[str, Any]]:
        job_id = self.job(name)["id"]
        return [event for event in self.journal(kind) if event["job"] == job_id]


@pytest.fixture(scope="module")
def beside() -> Iterator[Beside]:
    node = Beside()
    node.start(quantum="50ms")
    options = ["--name", "companion", "--memory", "400MiB"]
    node.companion = node.run(*COMPANION, "--steps", "1000000", options=options)
    node.wait_steps("companion", 5)
    yield node
    node.close()


def taken(beside: Beside, name: str) -> list[dict[str, Any]]:
    """The turns of a job that came back though it did not ask for another."""
    return [event for event in beside.events("LeaseReturned", name) if not event["wants_more"]]


def test_a_served_model_gives_its_turn_back_after_each_request_and_its_idle_time_is_no_service(
    beside: Beside,
) -> None:
    program = scripts.write(beside.files, "serves", SERVES)
    started = beside.run_beside(program, name="serves")
    started.wait_line("served", seconds=60)
    job = beside.job("serves")
    assert job["served_ns"] < 2_000_000_000, "of the three seconds in which it slept nothing was charged"
    assert len(taken(beside, "serves")) >= 5, "after nearly each of its ten requests"
    assert started.wait().code == 0


def test_a_paused_job_loses_its_turn_and_asks_again_by_itself(beside: Beside, alone: Alone) -> None:
    program = ["pauses.py", "--steps", "40", "--pause", "4"]
    started = beside.run_beside(*program, name="pauses")
    started.wait_line("pause")
    # Looked at all the while: looks must not put off what is due.
    wait_until(lambda: taken(beside, "pauses"), "the turn was taken", seconds=30)
    assert not beside.events("RevokeLease", "pauses"), "nobody had to wait for a lapse"
    assert beside.job("pauses")["state"] in ("idle", "waiting", "running")
    before = len(beside.companion.lines)
    beside.companion.wait_lines(before + 50)
    ended = started.wait()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == alone.output(*program[:3], "--pause", "0")
    assert beside.wait_state("pauses", "finished")["steps"] == 80
    resumed = taken(beside, "pauses")[0]["at_ns"]
    assert any(grant["at_ns"] > resumed for grant in beside.events("GrantLease", "pauses"))


def test_a_job_that_waits_for_input_gives_its_turn_back(beside: Beside, alone: Alone) -> None:
    program = ["slow_data.py", "--steps", "30", "--sleep", "0.1"]
    ended = beside.run_beside(*program, name="slow_data").wait()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == alone.output(*program[:3], "--sleep", "0")
    job = beside.wait_state("slow_data", "finished")
    assert job["steps"] == 30
    returned = [event for event in beside.events("LeaseReturned", "slow_data") if not event["wants_more"]]
    assert len(returned) >= 20, "it gives the turn back for nearly every batch"
    assert not beside.events("RevokeLease", "slow_data")
    assert job["served_ns"] < 2_000_000_000, "the three seconds of sleep were not charged to it"


def test_an_evaluation_without_a_loader_takes_turns_after_training_with_one(beside: Beside, alone: Alone) -> None:
    program = scripts.write(beside.files, "evaluates", scripts.EVALUATES)
    ended = beside.run_beside(program, name="evaluates").wait()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == alone.output(program)
    assert beside.wait_state("evaluates", "finished")["steps"] == 16
    returned = [event for event in beside.events("LeaseReturned", "evaluates") if event["steps"] == 16]
    assert len(returned) >= 4, "its turn went back while it evaluated"
    assert not beside.events("NameHog", "evaluates")


def test_gradient_accumulation_without_a_loader_gives_its_turn_back_between_backwards(
    beside: Beside, alone: Alone
) -> None:
    text = scripts.ACCUMULATES.replace("range(8)", "range(4)").replace("*data, *data", "*data, *data, *data, *data")
    program = scripts.write(beside.files, "accumulates", text)
    ended = beside.run_beside(program, name="accumulates").wait()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == alone.output(program)
    returned = [event["steps"] for event in beside.events("LeaseReturned", "accumulates") if event["wants_more"]]
    assert max(map(returned.count, returned)) >= 2, "more than once within one step"


def test_a_job_that_reaches_no_boundary_is_named_as_a_hog(beside: Beside, alone: Alone) -> None:
    program = ["hog.py", "--steps", "20"]
    enough = beside.files / "enough"
    started = beside.run_beside(*program, "--seconds", "15", "--until", str(enough), name="greedy")
    started.wait_line("hogging")
    wait_until(lambda: beside.job("greedy")["is_hog"], "it is named", seconds=30)
    shown = beside.carpool("ps")
    assert "(hog)" in shown.out.decode()
    sentence = "greedy was asked for its turn"
    assert any(sentence in line for line in shown.lines)
    explained = beside.carpool("explain", "greedy")
    assert sentence in explained.lines[0]
    assert "and has not reached a boundary; its usual step takes" in explained.lines[0]
    assert any("no boundary reached for" in line for line in explained.lines)
    assert "greedy has had it for" in beside.job("companion")["reason"]
    enough.touch()
    ended = started.wait()
    assert ended.code == 0
    named = [event["step"] for event in beside.events("NameHog", "greedy")]
    assert named in (["warned"], ["warned", "put last"]), "each once"
    lines = [line for line in ended.lines if not line.startswith("hogged")]
    truth = alone.output(*program, "--seconds", "0").decode().splitlines()
    assert lines == [line for line in truth if not line.startswith("hogged")]
    assert beside.wait_state("greedy", "finished")["steps"] == 40


def test_a_script_that_trained_and_now_sleeps_blocks_nobody(beside: Beside) -> None:
    started = beside.run_beside(scripts.write(beside.files, "sleeps", scripts.TRAINS_THEN_SLEEPS), name="sleeps")
    started.wait_line("trained")
    wait_until(lambda: beside.state("sleeps") == "idle", "it is idle", seconds=30)
    assert "has wanted no turn for" in beside.job("sleeps")["reason"]
    before = len(beside.companion.lines)
    beside.companion.wait_lines(before + 200)
    assert beside.state("sleeps") == "idle"
    assert beside.job("sleeps")["steps"] == 10
    started.process.terminate()
    assert started.wait().code == 143


def has_seen(started: Started, count: int) -> bool:
    return started.lines.count("SIGUSR1") == count


def test_signals_reach_a_job_that_waits_for_its_turn(beside: Beside) -> None:
    started = beside.run_beside("signals.py", "--train", name="signalled")
    started.wait_line("ready")
    for count in range(1, 6):
        wait_until(lambda: beside.state("signalled") == "waiting", "it waits", every=0.001)
        started.process.send_signal(signal.SIGUSR1)
        wait_until(functools.partial(has_seen, started, count), "its handler ran")
    steps = beside.job("signalled")["steps"]
    beside.wait_steps("signalled", steps + 10)
    wait_until(lambda: beside.state("signalled") == "waiting", "it waits", every=0.001)
    started.process.send_signal(signal.SIGTERM)
    ended = started.wait()
    assert (ended.code, ended.err) == (7, "")
    assert beside.wait_state("signalled", "cancelled", "failed")["state"] == "cancelled"


def test_the_companion_of_them_all_never_noticed(beside: Beside, alone: Alone) -> None:
    beside.companion.wait_lines(500)
    expected = alone.output(*COMPANION, "--steps", "500").splitlines()[:500]
    assert beside.companion.out.splitlines()[:500] == expected
    assert beside.companion.err == ""
