"""The log of a program: every value that it read out of a tensor, and every optimizer step, in their order.

A program is Python around tensors. What its Python does depends on tensors only through reads (`loss.item()`, a
comparison, a print): with the same reads in the same order it does the same again, whatever is in the tensors. So
the log is all that a replay needs until the tensors themselves are put back.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

from carpool.errors import DivergedError

LOG_BYTES_MAX = 256 << 20
STEP = 255  # the kind of a step; lower numbers are kinds of reads
SMALL_BYTES = 512  # shorter texts are not worth compressing

_FLOAT, _INT, _BOOL, _PLAIN, _ARRAY, _TEXT = range(6)


class ReadLog:
    def __init__(self, data: bytes | bytearray = b"") -> None:
        self.data = bytearray(data)
        self._position = 0
        self.reads = 0
        self.trouble = ""  # why this log cannot be replayed
        self.on_trouble: Callable[[str], None] = lambda trouble: None

    @property
    def is_over(self) -> bool:
        return self._position >= len(self.data)

    def note(self, kind: int, value: Any) -> None:
        """Append one read."""
        if self.trouble:
            return
        packed = _pack(value)
        if packed is None:
            self._spoil(f"it read a {type(value).__name__} out of a tensor")
            return
        self.reads += 1
        self._append(bytes((kind,)) + packed)

    def note_step(self, optimizer: int) -> None:
        if not self.trouble:
            self._append(bytes((STEP, min(optimizer, 255))))

    def _append(self, data: bytes) -> None:
        self.data += data
        if len(self.data) > LOG_BYTES_MAX:
            self._spoil(f"its log of reads and steps fills more than {LOG_BYTES_MAX >> 20} MiB")

    def _spoil(self, trouble: str) -> None:
        """Nobody will replay this log: note nothing more, and let its memory go."""
        self.trouble = trouble
        self.data = bytearray()
        self.on_trouble(trouble)

    def next(self, kind: int, name: str) -> Any:
        """The value of the next read; a DivergedError if the next thing in the log is another one."""
        self._expect(kind, name)
        self.reads += 1
        value, self._position = _unpack(self.data, self._position)
        return value

    def next_step(self, optimizer: int) -> None:
        self._expect(STEP, "optimizer.step")
        found = self.data[self._position]
        self._position += 1
        if found != min(optimizer, 255):
            raise DivergedError(f"optimizer {optimizer} made a step where optimizer {found} had made one")

    def _expect(self, kind: int, name: str) -> None:
        if self.is_over:
            raise DivergedError(f"it calls {name} where the recorded run had nothing more to read")
        found = self.data[self._position]
        if found != kind:
            raise DivergedError(
                f"it calls {name} after {self.reads} reads, where the recorded run did something else"
            )
        self._position += 1


def _pack(value: Any) -> bytes | None:
    if type(value) is float:
        return bytes((_FLOAT,)) + struct.pack("<d", value)
    if type(value) is bool:
        return bytes((_BOOL, value))
    if type(value) is int and -(2**63) <= value < 2**63:
        return bytes((_INT,)) + struct.pack("<q", value)
    if type(value) is str:
        return _block(_TEXT, value.encode(errors="surrogatepass"))
    if type(value) is list:
        return _block(_PLAIN, json.dumps(value, default=str).encode())
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        head = json.dumps([value.dtype.str, list(value.shape)]).encode()
        return _block(_ARRAY, len(head).to_bytes(4, "little") + head + value.tobytes())
    return None


def _block(kind: int, data: bytes) -> bytes:
    is_packed = len(data) > SMALL_BYTES
    data = zlib.compress(data, 1) if is_packed else data
    return bytes((kind, is_packed)) + len(data).to_bytes(8, "little") + data


def _unpack(data: bytearray, at: int) -> tuple[Any, int]:
    kind, at = data[at], at + 1
    if kind == _FLOAT:
        return struct.unpack_from("<d", data, at)[0], at + 8
    if kind == _INT:
        return struct.unpack_from("<q", data, at)[0], at + 8
    if kind == _BOOL:
        return bool(data[at]), at + 1
    is_packed, length = data[at], int.from_bytes(data[at + 1 : at + 9], "little")
    block = bytes(data[at + 9 : at + 9 + length])
    block = zlib.decompress(block) if is_packed else block
    at += 9 + length
    if kind == _TEXT:
        return block.decode(errors="surrogatepass"), at
    if kind == _PLAIN:
        return json.loads(block), at
    size = int.from_bytes(block[:4], "little")
    dtype, shape = json.loads(block[4 : 4 + size])
    return (dtype, shape, block[4 + size :]), at
