"""Bytes to messages and back, whole, in pieces, and garbage."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.errors import PeerError
from carpool.wire import messages as m
from carpool.wire.framing import BODY_MAX, HEAD, Decoder, decode, encode

WORD = st.integers(0, (1 << 64) - 1)
TEXT = st.text(max_size=40)
JSON = st.dictionaries(TEXT, st.one_of(TEXT, st.integers(-(1 << 53), 1 << 53), st.booleans(), st.none()), max_size=4)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": TEXT,
    "bool": st.booleans(),
    "list[str]": st.lists(TEXT, max_size=4),
    "dict[str, object]": JSON,
}


def message_of(cls: type[Any]) -> st.SearchStrategy[m.Message]:
    words = m.FORMS[cls].words
    fields = {}
    for field in dataclasses.fields(cls):
        kind = str(field.type)
        fields[field.name] = (
            VALUES[kind] if kind != "int" else WORD if field.name in words else st.integers(0, 1 << 40)
        )
    return st.builds(cls, **fields)


MESSAGE = st.one_of([message_of(cls) for cls in m.FORMS])


@settings(deadline=None)  # a busy machine may stop it anywhere
@given(st.lists(MESSAGE, max_size=5), st.data())
def test_messages_survive_any_cut_of_the_stream(sent: list[m.Message], data: st.DataObject) -> None:
    stream = b"".join(encode(message) for message in sent)
    decoder, got = Decoder(), []
    position = 0
    while position < len(stream):
        size = data.draw(st.integers(1, max(1, len(stream) - position)))
        got += decoder.feed(stream[position : position + size])
        position += size
    assert got == sent


@given(st.binary(min_size=HEAD.size, max_size=200))
def test_garbage_is_a_peer_error_or_waits_for_more_and_never_anything_else(data: bytes) -> None:
    try:
        Decoder().feed(data)
    except PeerError:
        return


def test_every_message_has_a_kind_of_its_own() -> None:
    kinds = [form.kind for form in m.FORMS.values()]
    assert sorted(kinds) == list(range(1, len(m.FORMS) + 1))


def test_the_hot_messages_are_one_frame_without_a_body() -> None:
    for message in (m.Ask(), m.Grant(lane_bytes=1, is_shared=True), m.Return(steps=3, wants_more=False)):
        assert len(encode(message)) == HEAD.size == 40


def test_a_body_over_the_limit_is_refused_on_both_sides() -> None:
    with pytest.raises(PeerError, match="over the limit"):
        encode(m.Refuse(reason="x" * (BODY_MAX + 1)))
    with pytest.raises(PeerError, match="not a carpool message"):
        Decoder().feed(HEAD.pack(11, 0, BODY_MAX + 1, 0, 0, 0, 0))


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"reason": 3}', b"{}", b"\xff"])
def test_a_body_that_is_not_what_the_message_needs_is_a_peer_error(body: bytes) -> None:
    with pytest.raises(PeerError):
        Decoder().feed(HEAD.pack(11, 0, len(body), 0, 0, 0, 0) + body)


def test_a_body_that_is_nested_too_deeply_is_an_error_of_its_sender() -> None:
    body = b'{"reason":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    head = HEAD.pack(m.FORMS[m.Detach].kind, 0, len(body), 0, 0, 0, 0)
    with pytest.raises(PeerError, match="the body of a Detach message is nested too deeply"):
        decode(head, body)
