"""Old rows of the log, packed: many of them as one blob, about a tenth of their size.

Half of a busy node's rows are Ticks, and most rows repeat the one before them but for the time. A replay needs them
all, so none is left out. Times are kept as differences, and the columns one after another, which packs best.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import msgspec

Row = tuple[int, str, str, bytes]  # when, kind, name, body


class _Columns(msgspec.Struct, array_like=True):
    deltas_ns: list[int]
    kinds: list[str]
    names: list[str]
    bodies: list[bytes]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Columns).decode
LEVEL = 9


def pack(rows: Sequence[Row]) -> bytes:
    times = [row[0] for row in rows]
    deltas = [now - before for before, now in zip([0, *times], times, strict=False)]
    columns = _Columns(deltas, [row[1] for row in rows], [row[2] for row in rows], [row[3] for row in rows])
    return zlib.compress(_encode(columns), LEVEL)


def unpack(block: bytes) -> Iterator[Row]:
    """The rows of a block; ValueError if it is damaged."""
    try:
        columns = _decode(zlib.decompress(block))
        facts = zip(columns.deltas_ns, columns.kinds, columns.names, columns.bodies, strict=True)
    except (zlib.error, msgspec.MsgspecError, TypeError) as error:
        raise ValueError(f"the block cannot be read: {error}") from error
    now = 0
    for delta, kind, name, body in facts:
        now += delta
        yield now, kind, name, body
