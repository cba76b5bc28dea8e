"""The stream of changes: how things stand, then what happens, to a bounded number of clients that read it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from carpool import calls
from carpool.core.kernel.ids import JobId
from carpool.core.node.events import JobExited, LeaseAsked, LeaseReturned
from carpool.core.node.model import Needs
from carpool.daemon import stream as streams
from carpool.daemon.authority import Authority
from carpool.daemon.stream import STREAMS_OF_USER_MAX, ChangeStream
from carpool.errors import RefusedError
from carpool.wire import messages as m
from tests.daemon.node import MIB, Node, in_node

NEEDS = Needs(persistent_bytes=MIB, ephemeral_bytes=0)


class Reader:
    """A client's connection."""

    def __init__(self, unread: int = 0, uid: int | None = None) -> None:
        self.uid = os.geteuid() if uid is None else uid
        self.sent: list[m.Reply] = []
        self.unread = unread
        self.is_closed = False

    def send(self, message: m.Message) -> None:
        assert isinstance(message, m.Reply)
        self.sent.append(message)

    def unread_bytes(self) -> int:
        return self.unread

    def close(self) -> None:
        self.is_closed = True

    def changes(self) -> list[calls.Change]:
        pieces = [msgspec.convert(reply.answer, calls.Changes) for reply in self.sent]
        return [change for piece in pieces for change in piece.changes]


def open_stream(node: Node) -> ChangeStream:
    made = ChangeStream(node.driver.scheduler, node.driver.jobs, lambda: 7, node.authority)
    node.driver.observers.add(made)
    return made


def test_a_stream_begins_with_how_things_stand_and_goes_on_with_what_happens(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        stream, reader = open_stream(node), Reader()
        node.adopt("a", live_bytes=MIB, needs=NEEDS)
        stream.add(reader, has_turns=False)
        first = reader.changes()
        assert [(change.job, change.before, change.event) for change in first] == [("a", None, "")]
        node.adopt("b", live_bytes=MIB, needs=NEEDS)
        node.driver.tell(JobExited(job=JobId("b"), code=0))
        told = reader.changes()[1:]
        assert [(change.job, change.event) for change in told] == [("b", "JobAdopted"), ("b", "JobExited")]
        assert (told[0].before, told[-1].state, told[-1].is_over) == (None, "finished", True)
        assert told[-1].reason

    in_node(tmp_path, act)


def test_turns_are_told_to_those_who_asked_for_them(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        stream, few, every = open_stream(node), Reader(), Reader()
        live = node.adopt("a", live_bytes=MIB, needs=NEEDS)
        node.driver.tell(LeaseAsked(job=live.id))
        stream.add(few, has_turns=False)
        stream.add(every, has_turns=True)
        node.driver.tell(LeaseReturned(job=live.id, wants_more=False, steps=2))
        node.driver.tell(LeaseAsked(job=live.id))
        assert [change.state for change in every.changes()] == ["running", "idle", "running"]
        assert [change.state for change in few.changes()] == ["running"]

    in_node(tmp_path, act)


def test_a_reader_that_does_not_read_is_cut_off_with_a_sentence(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        stream, slow, quick = open_stream(node), Reader(unread=streams.UNREAD_MAX + 1), Reader()
        stream.add(slow, has_turns=False)
        stream.add(quick, has_turns=False)
        node.adopt("a", live_bytes=MIB, needs=NEEDS)
        assert slow.is_closed
        assert "of it were not read" in slow.sent[-1].error
        assert [change.job for change in quick.changes()] == ["a"]

    in_node(tmp_path, act)


def test_there_are_only_so_many_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STREAMS_MAX", 2)

    def act(node: Node) -> None:
        stream, readers = open_stream(node), [Reader(), Reader()]
        for reader in readers:
            stream.add(reader, has_turns=False)
        with pytest.raises(RefusedError, match="2 streams of changes are open already"):
            stream.add(Reader(), has_turns=False)
        stream.drop(readers[0])
        stream.add(Reader(), has_turns=False)

    in_node(tmp_path, act)


def test_a_daemon_that_is_stopped_ends_its_streams(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        stream, reader = open_stream(node), Reader()
        stream.add(reader, has_turns=False)
        stream.close()
        assert msgspec.convert(reader.sent[-1].answer, calls.Changes).end == "the daemon was stopped"
        assert reader.is_closed
        node.adopt("a", live_bytes=MIB, needs=NEEDS)
        assert reader.changes() == []

    in_node(tmp_path, act)


def test_one_user_does_not_take_the_streams_of_all_others(tmp_path: Path) -> None:
    def act(node: Node) -> None:
        everyone = Authority(node.driver.jobs, is_for_all=True)
        stream = ChangeStream(node.driver.scheduler, node.driver.jobs, lambda: 7, everyone)
        for _ in range(STREAMS_OF_USER_MAX):
            stream.add(Reader(uid=4001), has_turns=False)
        with pytest.raises(RefusedError, match=f"{STREAMS_OF_USER_MAX} streams of changes are open already"):
            stream.add(Reader(uid=4001), has_turns=False)
        stream.add(Reader(uid=4002), has_turns=False)
        for _ in range(STREAMS_OF_USER_MAX + 1):
            stream.add(Reader(uid=os.geteuid()), has_turns=False)

    in_node(tmp_path, act)
