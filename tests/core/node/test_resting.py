"""Jobs that rest, in their own code and without a wish: a decision does not look at them."""

from __future__ import annotations

import sys
from types import FrameType

from carpool.core.node.effects import RecallLease
from carpool.core.node.events import LeaseReturned, Tick
from carpool.core.node.settings import Settings
from carpool.units import GIB, MS, SECOND
from tests.core.node.driver import MakeCore, needs, only


def calls_of_a_handover(make_core: MakeCore, resting: int) -> int:
    """How many Python functions are called from a look at the holder until the next one has its turn."""
    core = make_core(settings=Settings(margin_percent=0, quantum_ns=50 * MS), capacity_bytes=400 * GIB)
    for number in range(resting + 4):
        core.settle_in(f"j{number}", needs(GIB // 4, GIB // 4), tenant=f"t{number % 10}")
    for number in range(4, resting + 4):
        core.give_back(f"j{number}", wants_more=False)
    core.run(SECOND)
    calls = 0

    def count(_frame: FrameType, what: str, _argument: object) -> None:
        nonlocal calls
        calls += what in ("call", "c_call")

    for _ in range(8):
        core.now = core.scheduler.next_wakeup() or core.now
        sys.setprofile(count)
        effects = core.scheduler.handle(Tick(), now=core.now)
        core.scheduler.next_wakeup()
        for recall in only(effects, RecallLease):
            core.now += MS
            core.scheduler.handle(LeaseReturned(job=recall.job, wants_more=True, steps=1000), now=core.now)
        sys.setprofile(None)
    return calls


def test_l7_a_job_that_rests_costs_a_decision_nothing(make_core: MakeCore) -> None:
    few, many = calls_of_a_handover(make_core, 4), calls_of_a_handover(make_core, 60)
    assert 100 < many <= few * 1.02
