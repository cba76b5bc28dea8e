"""More memory than the device has: whole jobs take turns on it, parked and brought back by the daemon itself."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.e2e.alone import Alone
from tests.e2e.node import Node, Started, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MIB = 1 << 20
# Programs that need 200 to 230 MiB each, on a device with room for one of them and the 50 MiB that each other leaves
# there: two of them and a rest would be 440 MiB.
CAP = "260MiB"
CAPACITY = 400 * MIB
DEVICE = "cpu:400MiB"
SECONDS = 400.0  # nobody is moved for nine times as long as the last move took, which on a busy machine is long
SHAPES = ["groups", "ema", "accumulation"]
ENDLESS = 1_000_000


def command(shape: str, steps: int) -> list[str]:
    return ["held.py", shape, "--steps", str(steps), "--width", "2000", "--pause", "0.4"]


def start(node: Node, name: str, *program: str, options: tuple[str, ...] = ()) -> Started:
    return node.run(*program, options=["--name", name, "--memory", CAP, *options])


def parked_jobs(node: Node) -> list[dict[str, Any]]:
    return [job for job in node.ps(ended=False)["jobs"] if job["state"] == "parked"]


def test_jobs_of_several_times_the_device_all_run_in_turns_and_no_number_changes(node: Node, alone: Alone) -> None:
    """All go on until each has made steps and one was parked and came back."""
    node.start(device=DEVICE)
    enough = node.files / "enough"
    jobs = {shape: start(node, shape, *command(shape, ENDLESS), "--until", str(enough)) for shape in SHAPES}
    parked = wait_until(lambda: parked_jobs(node), "one is parked for another", seconds=SECONDS)[0]
    assert "; comes back when " in parked["reason"]
    for shape in SHAPES:
        node.wait_steps(shape, 5, seconds=SECONDS)
    wait_until(lambda: node.journal("JobUnparked"), "one came back", seconds=SECONDS)
    enough.touch()
    for shape in SHAPES:
        ended = jobs[shape].wait(seconds=SECONDS)
        assert ended.code == 0, (shape, ended.err)
        assert ended.out == alone.same_steps(ended.out, *command(shape, ENDLESS)), shape
    assert not node.journal("MoveFailed")
    status = node.ps()
    assert (status["devices"][0]["free_bytes"], status["host_bytes"]) == (CAPACITY, 0)


def test_a_job_of_high_priority_gets_the_memory_of_others_and_they_come_back_when_it_leaves(
    node: Node, alone: Alone
) -> None:
    """The second time the parked one is suspended by its user: then it stays away, though there is room."""
    node.start(policy="priority", device=DEVICE)
    enough = node.files / "enough"
    low = start(node, "low", *command("groups", ENDLESS), "--until", str(enough))
    node.wait_steps("low", 5)
    for name in ("high", "higher"):
        high = start(node, name, *command("ema", 6), options=("--priority", "9"))
        node.wait_state(name, "running", seconds=SECONDS)
        assert node.state("low") == "parked"
        if name == "higher":
            assert node.carpool("suspend", "low").code == 0
        ended = high.wait(seconds=SECONDS)
        assert ended.code == 0, ended.err
        if name == "high":
            node.wait_steps("low", node.job("low")["steps"] + 1, seconds=SECONDS)
    time.sleep(1.0)
    assert node.state("low") == "parked"
    assert node.carpool("resume", "low").code == 0
    node.wait_steps("low", node.job("low")["steps"] + 5, seconds=SECONDS)
    enough.touch()
    done = low.wait(seconds=SECONDS)
    assert done.code == 0, done.err
    assert done.out == alone.same_steps(done.out, *command("groups", ENDLESS))
