"""Two devices on one node, and what the daemon does when nothing has to be done: nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from carpool.devices.kinds import find_devices
from tests.e2e.node import Node, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LOOP = ["held.py", "sgd", "--width", "64", "--pause", "0.002", "--steps", "1000000"]
GIB = 1 << 30


def test_jobs_land_on_different_devices_and_run_at_the_same_time(node: Node) -> None:
    node.start(device="cpu:2x1GiB", quantum="20ms")
    assert [device["id"] for device in node.status()["devices"]] == ["cpu0", "cpu1"]
    first = node.run(*LOOP, options=["--name", "first"])
    second = node.run(*LOOP, options=["--name", "second"])
    for name in ("first", "second"):
        node.wait_steps(name, 20)
    assert {node.job("first")["device"], node.job("second")["device"]} == {"cpu0", "cpu1"}
    wait_until(lambda: len(node.holders()) == 2, "both hold a turn, each on its own device")
    before = len(first.lines), len(second.lines)
    first.wait_lines(before[0] + 50)
    second.wait_lines(before[1] + 50)
    assert node.turns("first") == node.turns("second") == 1, "nobody shares, so nobody gives a turn back"

    third = node.run(*LOOP, options=["--name", "third", "--device", "cpu1", "--memory", "200MiB"])
    node.wait_steps("third", 20)
    assert node.job("third")["device"] == "cpu1"
    assert "cpu1" in node.carpool("daemon", "status").out.decode()
    for started in (first, second, third):
        started.process.terminate()
    for started in (first, second, third):
        assert started.wait().code == 143
    wait_until(lambda: [device["free_bytes"] for device in node.status()["devices"]] == [GIB, GIB], "all is free")


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def wakeups(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("voluntary_ctxt_switches")]
    return int(line.split()[1])


def test_an_idle_daemon_and_one_with_a_single_job_do_nothing(node: Node) -> None:
    node.start()
    assert node.daemon is not None
    pid = node.daemon.pid
    time.sleep(1.0)  # the journal's last piece
    before = processor_seconds(pid), wakeups(pid)
    time.sleep(2.0)
    assert processor_seconds(pid) - before[0] <= 0.01
    assert wakeups(pid) - before[1] <= 1, "no polling while nobody is there"

    started = node.run(*LOOP, options=["--name", "lonely"])
    node.wait_steps("lonely", 50)
    time.sleep(1.5)  # measured, written down
    lines = len(started.lines)
    before = processor_seconds(pid), wakeups(pid)
    time.sleep(3.0)
    used, woken = processor_seconds(pid) - before[0], wakeups(pid) - before[1]
    made = len(started.lines) - lines
    print(f"{made} steps: the daemon woke {woken} times and used {used:.2f} s")
    assert made > 100
    assert woken <= 2, "a job that is alone never talks to the daemon"
    assert used <= 0.02


def test_threads_spin_long_only_where_one_job_computes_at_a_time() -> None:
    spins = {
        (asked, lanes): find_devices(asked, lanes_max=lanes)[0].defaults["GOMP_SPINCOUNT"]
        for asked in ("cpu:1GiB", "cpu:2x1GiB")
        for lanes in (1, 2)
    }
    alone = spins.pop(("cpu:1GiB", 1))
    assert len(set(spins.values())) == 1
    assert int(alone) > int(spins["cpu:1GiB", 2])
