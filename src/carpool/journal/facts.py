"""How events and effects are written: by the name of their class, with their fields as JSON."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from carpool.core.node.effects import Effect
from carpool.core.node.events import Event
from carpool.errors import UsageError

EVENTS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}
EFFECTS: dict[str, type] = {kind.__name__: kind for kind in get_args(Effect)}
_encode = msgspec.json.Encoder().encode


def to_bytes(fact: Event | Effect) -> bytes:
    return _encode(fact)


def event_from(name: str, body: bytes) -> Event:
    """The event of a row; UsageError, without the row's place, if nobody knows it."""
    event: Event = _decode("event", name, body, EVENTS.get(name))
    return event


def effect_from(name: str, body: bytes) -> Effect:
    effect: Effect = _decode("effect", name, body, EFFECTS.get(name))
    return effect


def _decode(kind: str, name: str, body: bytes, known: type | None) -> Any:
    if known is None:
        raise UsageError(f"nobody knows the {kind} '{name}'")
    try:
        return msgspec.json.decode(body, type=known)
    except (msgspec.MsgspecError, TypeError) as error:
        raise UsageError(f"{name} cannot be read: {error}") from error
