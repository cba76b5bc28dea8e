"""Tenants with weights on one node: what the daemon was told is shown, kept, and done."""

from __future__ import annotations

import json

import pytest

from tests.e2e.node import PYTHON, Node, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

LOOP = "import carpool, time\nwhile True:\n with carpool.turn(): time.sleep(0.004)"
START = ["daemon", "start", "--device", "cpu:1GiB", "--quantum", "10ms"]


def served(node: Node) -> dict[str, int]:
    return {job["tenant"]: job["served_ns"] for job in node.ps(ended=False)["jobs"]}


def test_a_tenant_with_twice_the_weight_has_twice_the_device(node: Node) -> None:
    started = node.carpool(*START, "--tenant-weights", "ana=2,ben=1")
    assert started.code == 0, started.err
    assert "tenant weights ana=2 (1 for all others)" in node.carpool("daemon", "status").lines
    assert json.loads(node.carpool("daemon", "status", "--json").out)["tenant_weights_milli"] == {"ana": 2000}
    assert node.carpool(*START, "--tenant-weights", "ana=2").code == 0, "the same in other words"
    other = node.carpool(*START)
    assert other.code == 2
    assert "with tenant weights ana=2 (not 1 each)" in other.err
    for tenant in ("ana", "ben"):
        options = ["--name", tenant, "--tenant", tenant, "--memory", "100MiB"]
        node.run(PYTHON, "-c", LOOP, options=options)
    for tenant in ("ana", "ben"):
        node.wait_steps(tenant, 20)
    before = served(node)
    wait_until(lambda: sum(served(node).values()) - sum(before.values()) > 5 * 10**9, "they had 5 s together")
    had = {tenant: span - before[tenant] for tenant, span in served(node).items()}
    assert 1.3 < had["ana"] / had["ben"] < 3.0
