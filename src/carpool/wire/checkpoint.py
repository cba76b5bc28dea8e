"""The file of `carpool checkpoint`: how it is written in one go, and how it is read without trusting it.

Layout: CHECKPOINT_MAGIC, then pieces of bytes in any order, then a JSON object (the *contents*) that says where each
piece is, then the length of that object (8 bytes, little-endian) and a BLAKE2b hash of everything before it (32
bytes). A file that was cut or changed does not match its hash. Nothing in it is code: it is read as JSON and bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from carpool.errors import RefusedError
from carpool.wire.checkpoint_contents import check_contents

CHECKPOINT_MAGIC = b"carpool checkpt\n"
FORMAT = 1
TAIL_BYTES = 8 + 32
CHUNK_BYTES = 1 << 20

Piece = list[int]  # where it begins, and its length


def digest_of(source: Path) -> str:
    """By which a file of the program is known again."""
    return hashlib.blake2b(source.read_bytes(), digest_size=16).hexdigest()


class CheckpointWriter:
    """Writes beside the wanted place and puts the whole file there at the end; nothing is left of a failure."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name}.{os.getpid()}")
        fd = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._file: BinaryIO = os.fdopen(fd, "wb")
        self._hash = hashlib.blake2b(digest_size=32)
        self._length = 0
        self.add(CHECKPOINT_MAGIC)

    def add(self, data: bytes | bytearray | memoryview) -> Piece:
        """Append a piece; an OSError if the disk refuses."""
        view = memoryview(data)
        piece = [self._length, view.nbytes]
        self._file.write(view)
        self._hash.update(view)
        self._length += view.nbytes
        return piece

    def finish(self, contents: dict[str, Any]) -> int:
        """Put the file in its place; returns its size."""
        text = json.dumps({"format": FORMAT, **contents}).encode()
        self.add(text)
        self.add(len(text).to_bytes(8, "little"))
        self._file.write(self._hash.digest())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._draft.replace(self._path)
        return self._length + 32

    def drop(self) -> None:
        """Leave no trace of a file that will not be finished."""
        with contextlib.suppress(OSError):  # a full disk refuses what is still to be written once more
            self._file.close()
        with contextlib.suppress(OSError):
            self._draft.unlink()


class CheckpointFile:
    """An open checkpoint whose hash was verified."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.digest = ""
        self.end = 0  # where the contents begin: pieces lie before it
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise RefusedError(f"the checkpoint {path} cannot be read: {error.strerror}") from error
        try:
            self.contents = self._verify()
        except BaseException:
            self._file.close()
            raise

    def _verify(self) -> dict[str, Any]:
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(0)
        if size < len(CHECKPOINT_MAGIC) + TAIL_BYTES or self._file.read(len(CHECKPOINT_MAGIC)) != CHECKPOINT_MAGIC:
            raise RefusedError(f"{self.path} is no checkpoint of carpool")
        digest, left = hashlib.blake2b(CHECKPOINT_MAGIC, digest_size=32), size - 32 - len(CHECKPOINT_MAGIC)
        while left:
            chunk = self._file.read(min(left, CHUNK_BYTES))
            if not chunk:
                break
            digest.update(chunk)
            left -= len(chunk)
        self.digest = digest.hexdigest()
        if self._file.read(32) != digest.digest():
            raise RefusedError(f"the checkpoint {self.path} is damaged: its {size} bytes do not match its hash")
        self._file.seek(size - TAIL_BYTES)
        length = int.from_bytes(self._file.read(8), "little")
        self.end = size - TAIL_BYTES - length
        if self.end < len(CHECKPOINT_MAGIC):
            raise RefusedError(f"the checkpoint {self.path} is damaged: contents of {length} bytes in {size} bytes")
        self._file.seek(self.end)
        try:
            contents = json.loads(self._file.read(length))
        except (ValueError, RecursionError) as error:
            raise RefusedError(f"the checkpoint {self.path} is damaged: its contents are not JSON") from error
        if not isinstance(contents, dict):
            raise RefusedError(f"the checkpoint {self.path} is damaged: its contents are no JSON object")
        if contents.get("format") != FORMAT:
            found = contents.get("format")
            raise RefusedError(f"the checkpoint {self.path} has format {found}, this carpool reads {FORMAT}")
        return contents

    def check(self) -> None:
        """Refuse contents that no carpool writes, with a sentence."""
        check_contents(self.path, self.contents, end=self.end)

    def read(self, piece: Piece) -> bytearray:
        self._file.seek(piece[0])
        data = bytearray(self._file.read(piece[1]))
        if len(data) != piece[1]:
            raise RefusedError(f"the checkpoint {self.path} was cut while it was read")
        return data

    def __enter__(self) -> CheckpointFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._file.close()
