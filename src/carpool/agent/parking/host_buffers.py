"""Host buffers: where a program's bytes are while they are away, and how they get there fast.

A copy is cut into pieces that several threads share out, since one thread does not fill the memory's bandwidth. The
threads copy bytes and run none of the program's code.

DiskBuffer    files without a name, written and read, not mapped: a disk in trouble is an error and not a signal. They
              are dropped as soon as the bytes are back, so what was not yet written to the disk never is.
TmpfsBuffer   one file without a name in memory, mapped while a copy lasts, which saves the kernel's own, slower copy.
              Its pages are kept for the next time where there is plenty of room, since new ones are what costs.
PinnedBuffer  for GPUs, in cuda.py.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from carpool.agent.descriptors import Descriptor
from carpool.agent.memory import name_turn_taker
from carpool.agent.parking.find_and_copy import copy
from carpool.agent.parking.memory_pages import (
    HUGE_BYTES,
    MADV_COLLAPSE,
    MADV_POPULATE_READ,
    MADV_POPULATE_WRITE,
    advise,
    mapped,
    populate,
    prefer_large_pages,
    system,
)
from carpool.agent.threads import start_aside

T = TypeVar("T")

WORKERS_MAX = 4  # more do not make memory faster
PIECE_BYTES = 4 << 20  # large enough for a copy at full speed, small enough to be shared out evenly
TMPFS = 0x01021994  # as statfs names its type
KEPT_PART = 4  # pages are kept while at least four times as much memory is free beside them


@dataclass(frozen=True, slots=True)
class Moved:
    """A storage on its way, and its place in the buffer."""

    storage: Any
    count: int
    offset: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of the program and their place in the buffer."""

    address: int
    count: int
    offset: int


class HostBuffer(Protocol):
    """Memory of the host, or of its disk, that a program's bytes are copied to."""

    def reserve(self, count: int) -> None:
        """Have room for this many bytes, or raise OSError or MemoryError; then nothing has changed."""

    def write(self, moves: Sequence[Moved]) -> None: ...

    def read(self, moves: Sequence[Moved]) -> None: ...

    def clear(self) -> None:
        """What is in it is not needed any more."""


class DiskBuffer:
    """On a disk, one file a thread: two writes to one file wait for each other.

    Fully allocated before a byte is copied, so that a full disk refuses the reservation.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: list[Descriptor] = []
        self._part_bytes = 1

    def reserve(self, count: int) -> None:
        self.clear()
        workers = worker_count()
        self._part_bytes = -(-max(1, count) // (workers * PIECE_BYTES)) * PIECE_BYTES
        try:
            for begin in range(0, max(1, count), self._part_bytes):
                self._files.append(_open_nameless(self._directory))
                os.posix_fallocate(self._files[-1].number, 0, min(self._part_bytes, max(1, count - begin)))
        except OSError:
            self.clear()
            raise

    def write(self, moves: Sequence[Moved]) -> None:
        self._check()
        share_out(self._spread(moves), self._put)

    def read(self, moves: Sequence[Moved]) -> None:
        self._check()
        _prefer_large_pages(moves)
        share_out(self._spread(moves), self._get)

    def _spread(self, moves: Sequence[Moved]) -> list[Piece]:
        """In an order in which threads that go along it write to different files."""
        rows: list[list[Piece]] = [[] for _ in self._files]
        for piece in cut(moves, self._part_bytes):
            rows[piece.offset // self._part_bytes].append(piece)
        longest = max(map(len, rows), default=0)
        return [row[number] for number in range(longest) for row in rows if number < len(row)]

    def _put(self, piece: Piece) -> None:
        left, fd, offset = _memory(piece), *self._place(piece)
        while left:
            written = os.pwrite(fd, left, offset)
            left, offset = left[written:], offset + written

    def _get(self, piece: Piece) -> None:
        left, fd, offset = _memory(piece), *self._place(piece)
        while left:
            count = os.preadv(fd, [left], offset)
            if not count:
                raise OSError(f"the store ends at byte {offset}")
            left, offset = left[count:], offset + count

    def _place(self, piece: Piece) -> tuple[int, int]:
        number, offset = divmod(piece.offset, self._part_bytes)
        return self._files[number].number, offset

    def _check(self) -> None:
        for file in self._files:
            _check_ours(file)

    def clear(self) -> None:
        for file in self._files:
            file.close()
        self._files = []


class TmpfsBuffer:
    """In memory that is not this program's: a file on a tmpfs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: Descriptor | None = None  # kept between moves, so the program may have closed it
        self._room = 0
        self._huge_bytes = 0  # from its beginning on, in large pages
        self._effort: object = None  # what puts pages together goes on while this is the one it knows
        os.register_at_fork(after_in_child=self._drop)  # or a data worker would keep the pages

    def reserve(self, count: int) -> None:
        file = self._file
        if file is not None and file.is_ours() and self._room >= count and self._directory.is_dir():
            return
        self._drop()
        room = max(1, -(-count // HUGE_BYTES)) * HUGE_BYTES
        self._file = _open_nameless(self._directory)
        try:
            os.posix_fallocate(self._file.number, 0, room)
        except OSError:
            self._drop()
            raise
        self._room = room

    def write(self, moves: Sequence[Moved]) -> None:
        with mapped(self._number(), self._room) as base:

            def put(piece: Piece) -> None:
                populate(base + piece.offset, piece.count, MADV_POPULATE_WRITE)
                copy(base + piece.offset, piece.address, piece.count)

            share_out(cut(moves), put)
        self._effort = effort = object()
        start_aside(self._put_together, effort)

    def read(self, moves: Sequence[Moved]) -> None:
        self._effort = None
        _prefer_large_pages(moves)
        with mapped(self._number(), self._room) as base:

            def get(block: Sequence[Piece]) -> None:
                for piece in block:
                    populate(piece.address, piece.count, MADV_POPULATE_WRITE)
                    populate(base + piece.offset, piece.count, MADV_POPULATE_READ)
                    copy(piece.address, base + piece.offset, piece.count)

            share_out(blocks(moves), get)

    def clear(self) -> None:
        if self._file is not None:
            disk = os.statvfs(self._directory) if self._directory.is_dir() else None
            if disk is None or disk.f_bavail * disk.f_frsize < KEPT_PART * self._room:
                self._drop()

    def _number(self) -> int:
        return _check_ours(self._file)

    def _put_together(self, effort: object) -> None:
        """Have the kernel make large pages of the small ones: from then on they are mapped five hundred at a time.

        It takes as long as several moves. So it is done aside while the program is away, stops when that comes back,
        and goes on the next time. An older kernel refuses.
        """
        with contextlib.suppress(OSError):
            while self._effort is effort and self._huge_bytes < self._room:
                count = min(PIECE_BYTES, self._room - self._huge_bytes)
                with mapped(self._number(), count, self._huge_bytes) as base:
                    populate(base, count, MADV_POPULATE_READ)
                    advise(base, count, MADV_COLLAPSE)
                self._huge_bytes += count

    def _drop(self) -> None:
        self._effort = None
        if self._file is not None:
            self._file.close()
        self._file, self._room, self._huge_bytes = None, 0, 0


def host_buffer_in(directory: Path) -> HostBuffer:
    """For the CPU device: as the directory is on a disk or in memory."""
    facts = ctypes.create_string_buffer(256)  # more than any struct statfs; its first word is the type
    is_known = system().statfs(os.fsencode(directory), facts) == 0
    if is_known and ctypes.c_long.from_buffer(facts).value == TMPFS:
        return TmpfsBuffer(directory)
    return DiskBuffer(directory)


# --- pieces and threads -------------------------------------------------------------------------------------


def cut(moves: Sequence[Moved], part_bytes: int = PIECE_BYTES) -> list[Piece]:
    """Pieces that lie within one part of the buffer each."""
    size = min(PIECE_BYTES, part_bytes)
    pieces = []
    for moved in moves:
        address, done = moved.storage.data_ptr(), 0
        while done < moved.count:
            offset = moved.offset + done
            count = min(moved.count - done, size - offset % size)
            pieces.append(Piece(address + done, count, offset))
            done += count
    return pieces


def blocks(moves: Sequence[Moved]) -> list[list[Piece]]:
    """Pieces by the block of the program's memory they lie in: a block is one thread's work.

    Two threads that touch the same new page at once would both clear one.
    """
    found: dict[int, list[Piece]] = {}
    for moved in moves:
        address, done = moved.storage.data_ptr(), 0
        while done < moved.count:
            block, within = divmod(address + done, PIECE_BYTES)
            count = min(moved.count - done, PIECE_BYTES - within)
            found.setdefault(block, []).append(Piece(address + done, count, moved.offset + done))
            done += count
    return list(found.values())


def _prefer_large_pages(moves: Sequence[Moved]) -> None:
    prefer_large_pages([(moved.storage.data_ptr(), moved.count) for moved in moves])


def worker_count() -> int:
    return min(WORKERS_MAX, len(os.sched_getaffinity(0)))


def share_out(items: Sequence[T], work: Callable[[T], None]) -> None:
    """Do the work on all items, in as many threads as there are cores; raises the first error after all ended."""
    left = iter(items)  # one step of it is never interrupted by another thread
    errors: list[Exception] = []

    def labour() -> None:
        try:
            for item in left:
                if errors:
                    return
                work(item)
        except Exception as error:  # noqa: BLE001 - raised below, in the thread that asked for the work
            errors.append(error)

    def labour_aside(over: _thread.LockType) -> None:
        name_turn_taker()  # it works for that thread, and is refused no more than it
        labour()
        over.release()

    waited = []
    for _ in range(min(worker_count(), len(items)) - 1):
        over = _thread.allocate_lock()
        over.acquire()
        if start_aside(labour_aside, over):
            waited.append(over)
    try:
        labour()
    finally:
        for over in waited:
            over.acquire()
    if errors:
        raise errors[0]


# --- places ------------------------------------------------------------------------------------------------


def _memory(piece: Piece) -> memoryview:
    """The program's memory as it is, without a copy."""
    return memoryview((ctypes.c_char * piece.count).from_address(piece.address)).cast("B")


def _check_ours(file: Descriptor | None) -> int:
    """The number of a file that still is carpool's: what the program opened instead is neither read nor written."""
    if file is None or not file.is_ours():
        raise OSError(errno.EBADF, "the program closed the store")
    return file.number


def _open_nameless(directory: Path) -> Descriptor:
    """Owner-only, and gone with this process however it ends."""
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return Descriptor(os.open(directory, flags | os.O_TMPFILE, 0o600))
    except OSError:  # not every filesystem can
        path = directory / f".{os.getpid()}"
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        path.unlink()
        return Descriptor(fd)
