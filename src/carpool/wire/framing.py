"""Messages to bytes and back; no sockets here.

A frame is 40 bytes, little-endian: kind (16 bits), zero (16), length of the body (32), four words (64 each). Which
fields of a message are words, messages.py says; the others are a JSON body behind the frame. A frame of unknown kind,
a body that is too long, and a body that is not what the message needs are a PeerError: the connection is closed. A
Reply may be longer than the rest, and only where one is waited for.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable
from typing import Any

from carpool.errors import PeerError
from carpool.wire import messages as m
from carpool.wire.protocol import BODY_MAX as BODY_MAX
from carpool.wire.protocol import FRAME, FRAME_WORDS, REPLY_MAX

HEAD = struct.Struct(FRAME)

_KINDS: dict[int, type[Any]] = {form.kind: cls for cls, form in m.FORMS.items()}
_TYPES = {"str": str, "int": int, "bool": bool, "list[str]": list, "dict[str, object]": dict}
_BODY_FIELDS = {
    cls: {field.name: _TYPES[str(field.type)] for field in dataclasses.fields(cls) if field.name not in form.words}
    for cls, form in m.FORMS.items()
}
_BOOL_WORDS = {cls: {field.name for field in dataclasses.fields(cls) if str(field.type) == "bool"} for cls in m.FORMS}
_REPLY = m.FORMS[m.Reply].kind
# A hand-over is made of these two; written out, they are read in a quarter of the time.
_RETURN, _GRANT = m.FORMS[m.Return].kind, m.FORMS[m.Grant].kind


def _dumps(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def encode(message: m.Message, *, dumps: Callable[[dict[str, object]], bytes] = _dumps) -> bytes:
    """The frame of a message. A list of thousands of jobs is written by peers.to_json, which jobs do not have."""
    cls = type(message)
    form = m.FORMS[cls]
    words = [int(getattr(message, name)) for name in form.words] + [0] * (FRAME_WORDS - len(form.words))
    fields = _BODY_FIELDS[cls]
    if not fields:
        return HEAD.pack(form.kind, 0, 0, *words)
    body = dumps({name: getattr(message, name) for name in fields})
    most = REPLY_MAX if cls is m.Reply else BODY_MAX
    if len(body) > most:
        raise PeerError(f"a {cls.__name__} message of {len(body)} bytes is over the limit of {most}")
    return HEAD.pack(form.kind, 0, len(body), *words) + body


def body_length(head: bytes, *, reply_max: int = BODY_MAX) -> int:
    """How many bytes follow this head; raises PeerError on what is no head of ours."""
    kind, zero, length, *_ = HEAD.unpack(head)
    if kind not in _KINDS or zero or length > (reply_max if kind == _REPLY else BODY_MAX):
        raise PeerError(f"not a carpool message: kind {kind}, {length} bytes")
    return int(length)


def decode(head: bytes, body: bytes, *, loads: Callable[[bytes], object] = json.loads) -> m.Message:
    kind, _, _, *words = HEAD.unpack(head)
    cls = _KINDS[kind]
    bools = _BOOL_WORDS[cls]
    values: dict[str, object] = {
        name: bool(word) if name in bools else word for name, word in zip(m.FORMS[cls].words, words, strict=False)
    }
    fields = _BODY_FIELDS[cls]
    if fields:
        values.update(_read_body(cls.__name__, fields, body, loads))
    message: m.Message = cls(**values)
    return message


def _read_body(
    name: str, fields: dict[str, type], body: bytes, loads: Callable[[bytes], object]
) -> dict[str, object]:
    try:
        found = loads(body)
    except ValueError as error:
        raise PeerError(f"the body of a {name} message is not JSON") from error
    except RecursionError:
        raise PeerError(f"the body of a {name} message is nested too deeply") from None
    if not isinstance(found, dict):
        raise PeerError(f"the body of a {name} message is not an object")
    for field, wanted in fields.items():
        if not isinstance(found.get(field), wanted):
            raise PeerError(f"a {name} message has no {wanted.__name__} '{field}'")
    return {field: found[field] for field in fields}


def decode_frame(frame: bytes) -> m.Message | None:
    """The message in these bytes if they are one whole hand-over message and nothing else."""
    if len(frame) != HEAD.size:
        return None
    kind, zero, length, first, second, third, _ = HEAD.unpack(frame)
    if zero or length:
        return None
    if kind == _RETURN:
        return m.Return(steps=first, wants_more=bool(second), passed=third)
    if kind == _GRANT:
        return m.Grant(lane_bytes=first, is_shared=bool(second), serial=third)
    return None


class Decoder:
    """Collects bytes as they come and gives back whole messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[m.Message]:
        if not self._buffer:
            message = decode_frame(data)
            if message is not None:
                return [message]
        self._buffer += data
        found: list[m.Message] = []
        while len(self._buffer) >= HEAD.size:
            head = bytes(self._buffer[: HEAD.size])
            end = HEAD.size + body_length(head)
            if len(self._buffer) < end:
                break
            found.append(decode(head, bytes(self._buffer[HEAD.size : end])))
            del self._buffer[:end]
        return found
