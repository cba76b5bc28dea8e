"""Observers are shown every call of the core once (I1); one that raises is dropped, and the daemon goes on (I3)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from carpool.cli.daemon import warnings_of
from carpool.core.kernel.ids import DeviceId, JobId
from carpool.core.node.effects import Effect
from carpool.core.node.events import DeviceAdded, Event, LeaseAsked, LeaseReturned, Tick
from carpool.core.node.model import Needs
from carpool.daemon.stream import ChangeStream
from carpool.errors import InternalError
from tests.daemon.node import CPU, MIB, Node, in_node
from tests.daemon.test_stream import Reader


class Kept:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.effects: list[Effect] = []

    def note(self, now: int, event: Event, effects: list[Effect]) -> None:
        self.events.append(event)
        self.effects += effects


class Broken:
    calls = 0

    def note(self, now: int, event: Event, effects: list[Effect]) -> None:
        self.calls += 1
        raise ValueError("it has a bug")


def test_i1_every_call_is_shown_once_and_in_order_with_its_effects(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        kept = Kept()
        node.driver.observers.add(kept)
        live = node.adopt("a", live_bytes=MIB, needs=Needs(persistent_bytes=MIB, ephemeral_bytes=0))
        node.driver.tell(LeaseAsked(job=live.id), Tick())
        assert [type(event).__name__ for event in kept.events] == ["JobAdopted", "LeaseAsked", "Tick"]
        assert "GrantLease" in [type(effect).__name__ for effect in kept.effects]

    in_node(tmp_path, act)


def test_i2_with_and_without_observers_the_core_is_told_and_orders_the_same(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def act(node: Node) -> None:
        kept, stream = Kept(), ChangeStream(node.driver.scheduler, node.driver.jobs, lambda: 7, node.authority)
        node.driver.observers.add(kept)
        if seen:
            node.driver.observers.add(stream)
            stream.add(Reader(), has_turns=True)
        live = node.adopt("a", live_bytes=MIB, needs=Needs(persistent_bytes=MIB, ephemeral_bytes=0))
        node.driver.tell(LeaseAsked(job=live.id), LeaseReturned(job=live.id, wants_more=True, steps=2))
        seen.append([*map(str, kept.events), *map(str, kept.effects)])

    for name in ("without", "with"):
        (tmp_path / name).mkdir()
        in_node(tmp_path / name, act)
    assert seen[0] == seen[1]


def test_i3_one_that_raises_is_dropped_and_named_once_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def act(node: Node) -> None:
        broken, kept = Broken(), Kept()
        node.driver.observers.add(broken)
        node.driver.observers.add(kept)
        with caplog.at_level(logging.ERROR, logger="carpool"):
            node.driver.tell(Tick())
            node.driver.tell(Tick())
        assert (broken.calls, len(kept.events)) == (1, 2)
        assert caplog.text.count("observer.dropped observer=Broken") == 1
        assert node.driver.observers.dropped == {"Broken": "ValueError: it has a bug"}

    in_node(tmp_path, act)


def test_a_journal_that_raises_is_said_in_the_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(node: Node) -> None:
        def note(now: int, event: Event, effects: list[Effect]) -> None:
            raise TypeError("cannot be written")

        monkeypatch.setattr(node.journal, "note", note)
        node.driver.tell(Tick())
        assert "TypeError: cannot be written" in node.queries.status().journal_trouble

    in_node(tmp_path, act)


def test_every_observer_that_was_dropped_is_said_in_the_status(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        node.driver.observers.add(Broken())
        node.driver.tell(Tick())
        status = node.queries.status()
        assert (status.observers_dropped, status.journal_trouble) == ({"Broken": "ValueError: it has a bug"}, "")
        assert [said.partition(" (")[0] for said in warnings_of(status)] == [
            "Broken failed and is shown nothing any more"
        ]

    in_node(tmp_path, act)


def test_a_bug_carries_the_last_events_of_its_job_and_of_no_other(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        needs = Needs(persistent_bytes=MIB, ephemeral_bytes=0)
        for name in ("a", "b"):
            node.adopt(name, live_bytes=MIB, needs=needs)

        def handle(event: Event, *, now: int) -> list[Effect]:
            raise InternalError("a rule was broken")

        node.driver.scheduler.handle = handle  # type: ignore[method-assign]  # of this object only
        with pytest.raises(InternalError) as raised:
            node.driver.tell(LeaseAsked(job=JobId("b")))
        events = raised.value.events
        assert [line.split()[1].partition("(")[0] for line in events] == ["JobAdopted", "LeaseAsked"]
        assert all("(job='b'" in line for line in events)
        assert str(raised.value).startswith("a rule was broken\n  last events:\n  ")

    in_node(tmp_path, act)


def test_a_bug_about_no_job_carries_what_happened_last(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        with pytest.raises(InternalError) as raised:
            node.driver.tell(DeviceAdded(device=CPU, capacity_bytes=1))
        kinds = [line.split()[1].partition("(")[0] for line in raised.value.events]
        assert kinds == ["NodeConfigured", "DeviceAdded", "DeviceAdded"], "the device as it was first, and again"
        assert DeviceId("cpu") in raised.value.events[1]

    in_node(tmp_path, act)
