"""Messages to bytes and back; no sockets here.

A frame is 40 bytes, little-endian: kind (16 bits), zero (16), length of the body (32), four words (64 each).
The fields named in FRAMES go into the words; any others into a JSON body behind the frame. A frame that names no
known kind, a body that is too long or not what the message needs, is a PeerError: the connection is closed.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from typing import Any

from carpool.errors import PeerError
from carpool.wire import messages as m

HEAD = struct.Struct("<HHIQQQQ")
BODY_MAX = 4 << 20  # a submitted job's environment is the largest thing that travels

FRAMES: dict[type[Any], tuple[int, tuple[str, ...]]] = {
    m.Attach: (1, ()),
    m.Attached: (2, ("slot",)),
    m.Ask: (3, ()),
    m.Grant: (4, ("lane_bytes", "is_shared", "serial")),
    m.Return: (5, ("steps", "wants_more", "passed")),
    m.Measured: (6, ("persistent_bytes", "ephemeral_bytes", "overhead_bytes", "step_ns")),
    m.Detach: (7, ()),
    m.Enter: (8, ()),
    m.Start: (9, ()),
    m.Wait: (10, ()),
    m.Refuse: (11, ()),
    m.Started: (12, ("pid",)),
    m.Exited: (13, ("code", "signal")),
    m.Stop: (14, ()),
    m.Call: (15, ()),
    m.Reply: (16, ()),
    m.Park: (17, ("limit_bytes",)),
    m.Parked: (18, ("moved_bytes", "move_ns")),
    m.Unpark: (19, ()),
    m.Unparked: (20, ("move_ns",)),
    m.Trim: (21, ()),
    m.Gradients: (22, ("gradient_bytes",)),
}
_KINDS = {kind: (cls, words) for cls, (kind, words) in FRAMES.items()}
_TYPES = {"str": str, "int": int, "bool": bool, "list[str]": list, "dict[str, object]": dict}
_BODY_FIELDS = {
    cls: {field.name: _TYPES[str(field.type)] for field in dataclasses.fields(cls) if field.name not in words}
    for cls, (_, words) in FRAMES.items()
}
_BOOL_WORDS = {cls: {field.name for field in dataclasses.fields(cls) if str(field.type) == "bool"} for cls in FRAMES}
# A hand-over is made of these two; written out, they are read in a quarter of the time.
_RETURN, _GRANT = FRAMES[m.Return][0], FRAMES[m.Grant][0]


def encode(message: m.Message) -> bytes:
    cls = type(message)
    kind, names = FRAMES[cls]
    words = [int(getattr(message, name)) for name in names] + [0] * (4 - len(names))
    fields = _BODY_FIELDS[cls]
    if not fields:
        return HEAD.pack(kind, 0, 0, *words)
    body = json.dumps({name: getattr(message, name) for name in fields}, separators=(",", ":")).encode()
    if len(body) > BODY_MAX:
        raise PeerError(f"a {cls.__name__} message of {len(body)} bytes is over the limit of {BODY_MAX}")
    return HEAD.pack(kind, 0, len(body), *words) + body


def body_length(head: bytes) -> int:
    """How many bytes follow this head; raises PeerError on what is no head of ours."""
    kind, zero, length, *_ = HEAD.unpack(head)
    if kind not in _KINDS or zero or length > BODY_MAX:
        raise PeerError(f"not a carpool message: kind {kind}, {length} bytes")
    return int(length)


def decode(head: bytes, body: bytes) -> m.Message:
    kind, _, _, *words = HEAD.unpack(head)
    cls, names = _KINDS[kind]
    bools = _BOOL_WORDS[cls]
    values: dict[str, object] = {
        name: bool(word) if name in bools else word for name, word in zip(names, words, strict=False)
    }
    fields = _BODY_FIELDS[cls]
    if fields:
        values.update(_read_body(cls.__name__, fields, body))
    message: m.Message = cls(**values)
    return message


def _read_body(name: str, fields: dict[str, type], body: bytes) -> dict[str, object]:
    try:
        found = json.loads(body)
    except ValueError as error:
        raise PeerError(f"the body of a {name} message is not JSON") from error
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
