"""A node hears first what it runs by, so that a record of its facts is complete."""

from __future__ import annotations

import pytest

from carpool.core.kernel.ids import DeviceId, JobId
from carpool.core.node.effects import RecallLease, StartJob
from carpool.core.node.events import (
    DeviceAdded,
    HistoryLoaded,
    JobSubmitted,
    LeaseAsked,
    NodeConfigured,
    SettingsChanged,
    Tick,
)
from carpool.core.node.model import History, JobSpec, Needs
from carpool.core.node.scheduler import Scheduler
from carpool.core.node.settings import Settings
from carpool.errors import InternalError
from carpool.policies import POLICIES
from carpool.units import GIB, MS

KNOWN = History(needs=Needs(persistent_bytes=GIB, ephemeral_bytes=GIB), steps=9, step_ns=MS, served_ns=9 * MS)


def recalled_at(quantum_ns: int, *, later: Settings | None = None) -> int:
    """When the first of two jobs is asked for its turn by a node that was configured so, and told otherwise later."""
    scheduler = Scheduler(POLICIES["fair"])
    assert scheduler.handle(NodeConfigured(policy="fair", settings=Settings(quantum_ns=quantum_ns)), now=0) == []
    scheduler.handle(DeviceAdded(device=DeviceId("gpu0"), capacity_bytes=16 * GIB), now=0)
    scheduler.handle(HistoryLoaded(fingerprint="f", history=KNOWN), now=0)
    for job in ("a", "b"):
        scheduler.handle(JobSubmitted(job=JobId(job), spec=JobSpec(name=job, fingerprint="f")), now=0)
        scheduler.handle(LeaseAsked(job=JobId(job)), now=0)
    if later is not None:
        scheduler.handle(SettingsChanged(settings=later, by="root"), now=0)
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


def test_numbers_that_can_change_live_count_from_the_next_decision_on() -> None:
    assert recalled_at(300 * MS, later=Settings(quantum_ns=50 * MS)) == 50 * MS
    assert recalled_at(50 * MS, later=Settings(quantum_ns=300 * MS)) == 300 * MS


def test_what_cannot_change_live_stays() -> None:
    before, wanted = Settings(share_policy="fixed"), Settings(share_policy="equal", latency_ns=7 * MS)
    assert before.with_live(wanted) == Settings(share_policy="fixed", latency_ns=7 * MS)


def test_a_start_that_waited_for_others_goes_on_when_more_may_start() -> None:
    scheduler = Scheduler(POLICIES["fair"], Settings(starts_max=1))
    scheduler.handle(DeviceAdded(device=DeviceId("gpu0"), capacity_bytes=16 * GIB), now=0)
    for job in ("a", "b"):
        scheduler.handle(JobSubmitted(job=JobId(job), spec=JobSpec(name=job, cap_bytes=GIB)), now=0)
    effects = scheduler.handle(SettingsChanged(settings=Settings(starts_max=2), by="root"), now=1)
    assert [effect.job for effect in effects if isinstance(effect, StartJob)] == [JobId("b")]
