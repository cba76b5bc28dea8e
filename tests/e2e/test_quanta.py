"""Live: what a change of turn costs is measured, turns become long by it, and a newcomer does not wait for them."""

from __future__ import annotations

import pytest

from tests.e2e.node import PYTHON, Node, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# After others had the device, its first iteration takes 40 ms longer.
COLD = """
import carpool, time
last = time.monotonic()
while True:
    with carpool.turn():
        is_cold = time.monotonic() - last > 0.05
        time.sleep(0.044 if is_cold else 0.004)
        last = time.monotonic()
"""
WARM = "import carpool, time\nwhile True:\n with carpool.turn(): time.sleep(0.004)"


def start(node: Node, name: str, program: str) -> None:
    node.run(PYTHON, "-c", program, options=["--name", name, "--memory", "100MiB"])


def test_turns_become_so_long_that_a_change_pays_and_a_newcomer_goes_first(node: Node) -> None:
    assert node.carpool("daemon", "start", "--device", "cpu:1GiB", "--latency", "1500ms").code == 0
    assert "quantum chosen, latency 1.5 s" in " ".join(node.carpool("daemon", "status").lines)
    for name in ("a", "b"):
        start(node, name, COLD)

    def is_long() -> bool:
        turns = node.status()["turns"]
        return bool(turns) and turns[0]["quantum_ns"] > 500_000_000 and "a change of turn costs it" in turns[0]["why"]

    wait_until(is_long, "turns become long")
    found = max(node.ps(ended=False)["jobs"], key=lambda job: job["change_ns"] or 0)
    assert found["change_ns"] > 2_000_000
    assert "while others wait: a change of turn costs it" in " ".join(node.carpool("explain", found["name"]).lines)
    assert "has the turn on cpu," in " ".join(node.carpool("daemon", "status").lines)
    start(node, "new", WARM)
    node.wait_steps("new", 1)
    assert node.job("new")["spent_ns"].get("turn", 0) < 8_000_000_000, "1.5 s, on a machine that may be busy"


def test_a_quantum_that_is_named_stays(node: Node) -> None:
    assert node.carpool("daemon", "start", "--device", "cpu:1GiB", "--quantum", "60ms").code == 0
    for name in ("a", "b"):
        start(node, name, COLD)
    wait_until(lambda: any(job["change_ns"] for job in node.ps(ended=False)["jobs"]), "the cost is known")
    assert {job["quantum_ns"] for job in node.ps(ended=False)["jobs"]} == {60_000_000}
    refused = node.carpool("daemon", "start", "--latency", "0")
    assert (refused.code, "a latency of 0 leaves no time" in refused.err) == (2, True)
