"""Faults of the device under `carpool run`: what breaks, what does not, and that the node goes on."""

from __future__ import annotations

import pytest

from tests.e2e.node import Node
from tests.e2e.test_gpu import App
from tests.native.gpu import MIB, OUT_OF_MEMORY, Built

pytestmark = pytest.mark.slow
LAUNCH_FAILED = 719


@pytest.fixture
def node(node: Node, built: Built) -> Node:
    node.use_stand_in(built.place)
    return node


def test_a_fault_that_all_contexts_share_ends_nobodys_turns(node: Node, built: Built) -> None:
    node.environment["CARPOOL_STUB_SHARED_FAULT"] = "1"
    node.start(device="stub:16GiB", quantum="50ms")
    bad, good = App(node, built, "bad", "--memory", "1GiB"), App(node, built, "good", "--memory", "1GiB")
    assert bad.ask("launch plain fault")[0] == 0
    assert bad.ask("sync")[0] == LAUNCH_FAILED
    assert good.ask("sync")[0] == LAUNCH_FAILED  # as on a card whose programs share one server
    assert good.ask(f"alloc plain 0 {MIB}")[0] == LAUNCH_FAILED
    later = App(node, built, "later", "--memory", "1GiB")
    assert later.ask("launch plain busy_1ms")[0] == 0
    assert later.ask("sync")[0] == 0
    assert later.ask(f"alloc plain 0 {2 << 30}")[0] == OUT_OF_MEMORY
    assert node.status()["pid"]


def test_a_card_that_refuses_now_and_then_leaves_right_books(node: Node, built: Built) -> None:
    node.environment["CARPOOL_STUB_FAIL_ALLOC"] = "-3"
    node.start(device="stub:16GiB")
    app = App(node, built, "app", "--memory", "1GiB")
    results = [app.ask(f"alloc plain {slot} {100 * MIB}")[0] for slot in range(9)]
    assert results == [0, 0, OUT_OF_MEMORY] * 3
    assert app.ask("info 0") == (0, 1024 * MIB - 600 * MIB)
