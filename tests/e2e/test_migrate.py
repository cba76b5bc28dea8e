"""A running job goes on on another device of the node, and no number changes, whatever fails on the way."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from carpool.errors import CarpoolError
from tests.e2e.alone import Alone
from tests.e2e.node import PYTHON, Node, Started, kill, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GIB = 1 << 30
STEPS = "120"
ENDLESS = "1000000"


def command(shape: str, steps: str = STEPS, *more: str) -> list[str]:
    return ["held.py", shape, "--width", "250", "--pause", "0.01", "--steps", steps, *more]


def start(node: Node, name: str, shape: str, steps: str = STEPS, *more: str) -> Started:
    """A job on cpu0 whose memory was measured."""
    job = node.run(*command(shape, steps, *more), options=["--name", name, "--device", "cpu0"])
    wait_until(lambda: node.find(name) and node.job(name)["needs"], "it is measured")
    node.wait_steps(name, 5)
    return job


def migrate(node: Node, name: str, to: str) -> dict[str, Any]:
    """As the command does it, but without the start of a Python, in which a short job would end."""
    found: dict[str, Any] = node.client.call("migrate", job=name, device=to)["job"]  # type: ignore[assignment]  # JSON
    while found["moving_to"] is not None:
        time.sleep(0.01)
        found = node.client.call("job", job=found["id"])["job"]  # type: ignore[assignment]  # JSON
    return found


def free(node: Node) -> list[int]:
    return [device["free_bytes"] for device in node.status()["devices"]]


def test_it_moves_to_and_fro_with_the_same_numbers_beside_a_job_that_stays(node: Node, alone: Alone) -> None:
    node.start(device="cpu:2x2GiB", quantum="20ms")
    enough = node.files / "enough"
    endless = (ENDLESS, "--until", str(enough))
    stays = node.run(*command("groups", *endless), options=["--name", "stays", "--device", "cpu0"])
    mover = start(node, "mover", "accumulation", *endless)
    wait_until(lambda: node.job("stays")["needs"], "the one that stays is measured")
    for to in ("cpu1", "cpu0") * 3:
        assert migrate(node, "mover", to)["device"] == to
        node.wait_steps("mover", node.job("mover")["steps"] + 5)
    node.wait_steps("stays", 20)
    enough.touch()
    for job, shape in ((mover, "accumulation"), (stays, "groups")):
        ended = job.wait()
        assert (ended.code, ended.err) == (0, "")
        assert ended.out == alone.same_steps(ended.out, *command(shape))
    arrived = [(event["source"], event["device"]) for event in node.journal("MoveJob")]
    assert arrived == [("cpu0", "cpu1"), ("cpu1", "cpu0")] * 3
    assert free(node) == [2 * GIB, 2 * GIB]


def test_what_cannot_be_moved_is_refused_with_the_numbers_and_runs_on(node: Node) -> None:
    node.start(device="cpu:2x1GiB")
    start(node, "a", "sgd", ENDLESS)
    done = node.carpool("migrate", "a", "--to", "cpu7")
    assert (done.code, "there is no such device; there are cpu0, cpu1" in done.err) == (2, True), done.err
    assert "is on cpu0 already" in node.carpool("migrate", "a", "--to", "cpu0").err
    assert node.carpool("migrate", "nobody", "--to", "cpu1").code == 2
    node.run(*command("sgd", ENDLESS), options=["--name", "big", "--device", "cpu1", "--memory", "1000MiB"])
    node.wait_state("big", "starting")
    with pytest.raises(
        CarpoolError, match=r"does not fit on cpu1: it needs .* and 24\.0 MiB of 1\.00 GiB is unpromised"
    ):
        node.client.call("migrate", job="a", device="cpu1")
    node.wait_steps("a", node.job("a")["steps"] + 5)
    assert node.job("a")["device"] == "cpu0"


def test_a_copy_that_fails_leaves_it_running_where_it_was(node: Node, alone: Alone) -> None:
    """A limit on the size of files stands in for a full disk."""
    node.start(device="cpu:2x1GiB")
    limited = f"ulimit -f 256; exec {PYTHON} {' '.join(command('sgd'))}"
    job = node.run("/bin/sh", "-c", limited, options=["--name", "full", "--device", "cpu0"])
    node.wait_steps("full", 5)
    found = migrate(node, "full", "cpu1")
    assert found["device"] == "cpu0"
    assert "its memory could not be copied" in found["move_refused"]
    assert "it was not moved: its memory could not be copied" in found["reason"]
    ended = job.wait()
    assert ended.out == alone.output(*command("sgd"))


def test_a_suspended_job_moves_and_survives_a_daemon_that_dies(node: Node, alone: Alone) -> None:
    node.start(device="cpu:2x1GiB")
    job = start(node, "kept", "groups")
    node.client.call("suspend", job="kept")
    node.wait_state("kept", "parked")
    done = node.carpool("migrate", "--json", "kept", "--to", "cpu1")
    assert (done.code, json.loads(done.out)["device"]) == (0, "cpu1")
    assert (node.job("kept")["device"], node.state("kept")) == ("cpu1", "parked")
    node.kill_daemon()
    node.start(device="cpu:2x1GiB")
    assert (node.job("kept")["device"], node.state("kept")) == ("cpu1", "parked")
    assert node.carpool("resume", "kept").code == 0
    ended = job.wait()
    assert (ended.code, ended.out) == (0, alone.output(*command("groups")))


def test_a_daemon_or_a_job_killed_half_way_harms_nobody(node: Node, alone: Alone) -> None:
    node.start(device="cpu:2x1GiB")
    job = start(node, "moved", "groups")
    node.client.call("migrate", job="moved", device="cpu1")
    node.kill_daemon()
    time.sleep(0.2)
    node.start(device="cpu:2x1GiB")
    ended = job.wait()
    assert (ended.code, ended.out) == (0, alone.output(*command("groups")))
    start(node, "dies", "sgd", ENDLESS)
    assert node.carpool("migrate", "dies", "--to", "cpu1", "--no-wait").code == 0
    kill(node.program_pid("dies"))
    node.wait_state("dies", "failed")
    assert free(node) == [GIB, GIB]
