"""A node hears first what it runs by, so that a record of its facts is complete."""

from __future__ import annotations

import pytest

from carpool.core.kernel.ids import DeviceId, JobId
from carpool.core.node.effects import RecallLease
from carpool.core.node.events import DeviceAdded, HistoryLoaded, JobSubmitted, LeaseAsked, NodeConfigured, Tick
from carpool.core.node.model import History, JobSpec, Needs
from carpool.core.node.scheduler import Scheduler
from carpool.core.node.settings import Settings
from carpool.errors import InternalError
from carpool.policies import POLICIES
from carpool.units import GIB, MS

KNOWN = History(needs=Needs(persistent_bytes=GIB, ephemeral_bytes=GIB), steps=9, step_ns=MS, served_ns=9 * MS)


def recalled_at(quantum_ns: int) -> int:
    """When the first of two jobs is asked for its turn by a node that was configured so."""
    scheduler = Scheduler(POLICIES["fair"])
    assert scheduler.handle(NodeConfigured(policy="fair", settings=Settings(quantum_ns=quantum_ns)), now=0) == []
    scheduler.handle(DeviceAdded(device=DeviceId("gpu0"), capacity_bytes=16 * GIB), now=0)
    scheduler.handle(HistoryLoaded(fingerprint="f", history=KNOWN), now=0)
    for job in ("a", "b"):
        scheduler.handle(JobSubmitted(job=JobId(job), spec=JobSpec(name=job, fingerprint="f")), now=0)
        scheduler.handle(LeaseAsked(job=JobId(job)), now=0)
    for now in range(0, 1000 * MS, 5 * MS):
        if any(isinstance(effect, RecallLease) for effect in scheduler.handle(Tick(), now=now)):
            return now
    raise AssertionError("nobody was recalled within a second")


def test_a_node_runs_by_the_settings_it_was_told() -> None:
    assert [recalled_at(quantum) for quantum in (50 * MS, 300 * MS)] == [50 * MS, 300 * MS]


def test_a_node_that_has_a_device_cannot_be_configured_any_more() -> None:
    scheduler = Scheduler(POLICIES["fair"])
    scheduler.handle(DeviceAdded(device=DeviceId("gpu0"), capacity_bytes=GIB), now=0)
    with pytest.raises(InternalError, match="configured before it has devices"):
        scheduler.handle(NodeConfigured(policy="fair", settings=Settings()), now=1)
