"""Moves a program's tensors to the host and back, byte for byte, at the level of their storages.

Every tensor, view, tied weight, gradient and optimizer state is a window on a storage. A storage's bytes are copied
out and the storage is resized to nothing; later it gets its size and its bytes back. The object stays, so everything
that refers to it stays valid, whoever holds it (docs/parking.md says what is exact, what best effort).

Found are the storages behind tensors that Python knows, and their gradients. What is not found, is shared with
another process, is too small to matter, or was handed to numpy (torch then forbids its resizing) just stays.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

LEAST_BYTES = 4096  # smaller storages are not worth a copy
ALIGNMENT = 64
MADV_HUGEPAGE = 14
HUGE_BYTES = 2 << 20
PIECE_BYTES = 1 << 30  # the kernel takes no more than 2 GiB at once
LOCKED_BYTES = 64 << 20  # torch rounds page-locked memory up to a power of two: one piece of 5 GiB would take 8


class Store(Protocol):
    """Where the bytes are while they are away."""

    def reserve(self, count: int) -> None:
        """Have room for so many bytes; an OSError or MemoryError if there is none, and then nothing has changed."""

    def put(self, storage: Any, offset: int) -> None: ...

    def get(self, storage: Any, offset: int) -> None: ...

    def finish(self) -> None:
        """All copies of a move are made: wait for them, and keep nothing mapped that need not be."""

    def clear(self) -> None:
        """Give the room back."""


@dataclass(frozen=True, slots=True)
class Moved:
    storage: Any
    count: int
    offset: int


class Storages:
    """The storages of this process on one kind of device."""

    def __init__(self, torch: Any, kind: str, store: Store) -> None:
        self._torch = torch
        self._kind = kind
        self._store = store
        self._away: list[Moved] = []
        self._sent: set[int] = set()  # storages that another process may look at, when last looked

    @property
    def away_bytes(self) -> int:
        return sum(moved.count for moved in self._away)

    def obstacle(self) -> str:
        """Why the tensors of this program must not be moved; empty if they may."""
        if self._kind == "cuda" and _has_graphs(self._torch):
            return "it captured CUDA graphs, which remember addresses of its memory"
        return ""

    def find(self) -> list[Any]:
        """Every storage worth moving, once; reads no tensor's values."""
        tensor_class = self._torch.Tensor
        found: dict[int, Any] = {}
        self._sent = _sent_to_others(self._torch) if self._kind == "cuda" else set()
        with self._torch._C.DisableTorchFunctionSubclass():
            for each in gc.get_objects():
                # Not isinstance: it asks a lazy proxy for its class, which may run the program's code.
                if issubclass(type(each), tensor_class):
                    self._note(each, found)
                    with contextlib.suppress(Exception):
                        if (each.is_leaf or each.retains_grad) and each.grad is not None:
                            self._note(each.grad, found)
        return list(found.values())

    def _note(self, tensor: Any, found: dict[int, Any]) -> None:
        try:
            storage = tensor.untyped_storage()
            if storage._cdata in found or storage.device.type != self._kind or storage.nbytes() < LEAST_BYTES:
                return
            if storage.resizable() and not self._is_shared(storage):
                found[storage._cdata] = storage
        except (RuntimeError, NotImplementedError, AttributeError):
            return  # sparse, meta or wrapped: it has no storage of its own

    def _is_shared(self, storage: Any) -> bool:
        """With another process. Torch calls every CUDA storage shared; what came from others is not resizable."""
        return storage._cdata in self._sent if self._kind == "cuda" else bool(storage.is_shared())

    def move_out(self, limit_bytes: int) -> int:
        """Copy out and free; returns how many bytes left. On an error nothing has left."""
        storages = self.find()
        offset, plan = 0, []
        for storage in storages:
            plan.append(Moved(storage, storage.nbytes(), offset))
            offset += -(-storage.nbytes() // ALIGNMENT) * ALIGNMENT
        total = sum(moved.count for moved in plan)
        if total > limit_bytes:
            raise MemoryError(f"it holds {total} bytes in tensors, and {limit_bytes} were reserved on the host")
        self._store.reserve(offset)
        try:
            for moved in plan:
                self._store.put(moved.storage, moved.offset)
            self._store.finish()
        except BaseException:
            self._store.clear()
            raise
        for moved in plan:
            moved.storage.resize_(0)
        self._away = plan
        self._give_back()
        return total

    def move_in(self) -> None:
        """Bring everything back. On an error the bytes are still in the store, and it can be tried again."""
        for moved in self._away:
            if moved.storage.nbytes() != moved.count:
                moved.storage.resize_(moved.count)
        for moved in self._away:
            self._store.get(moved.storage, moved.offset)
        self._store.finish()
        self._away = []
        self._store.clear()

    def undo_move_in(self) -> None:
        """A return failed for want of memory: give back what it had got so far."""
        for moved in self._away:
            moved.storage.resize_(0)
        self._give_back()

    def _give_back(self) -> None:
        """Freed blocks stay in the allocator's hands otherwise."""
        if self._kind == "cuda":
            self._torch._C._cuda_clearCublasWorkspaces()  # scratch memory that torch makes anew when it is needed
            self._torch.cuda.empty_cache()
        else:
            with contextlib.suppress(AttributeError, OSError):
                _libc().malloc_trim(0)


class FileStore:
    """A file without a name, private to this process, on a disk; for the CPU device.

    It is fully allocated before a byte is copied, so that a full disk refuses the reservation. It is written and
    read, not mapped: a mapped page costs a fault of its own, and would count as this program's memory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd = -1

    def reserve(self, count: int) -> None:
        self.clear()
        self._fd = _open_nameless(self._directory)
        try:
            os.posix_fallocate(self._fd, 0, max(1, count))
        except OSError:
            self.clear()
            raise

    def put(self, storage: Any, offset: int) -> None:
        bytes_left = _bytes_of(storage)
        while bytes_left:
            written = os.pwrite(self._fd, bytes_left[:PIECE_BYTES], offset)
            bytes_left, offset = bytes_left[written:], offset + written

    def get(self, storage: Any, offset: int) -> None:
        _ask_for_huge_pages(storage.data_ptr(), storage.nbytes())
        bytes_left = _bytes_of(storage)
        while bytes_left:
            count = os.preadv(self._fd, [bytes_left[:PIECE_BYTES]], offset)
            if not count:
                raise OSError(f"the store ends at byte {offset}")
            bytes_left, offset = bytes_left[count:], offset + count

    def finish(self) -> None:
        return

    def clear(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class PinnedStore:
    """Page-locked host memory in pieces, kept from one move to the next because locking it is slow; for GPUs."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pieces: list[Any] = []  # all of LOCKED_BYTES but the last, which may be smaller

    def reserve(self, count: int) -> None:
        before = list(self._pieces)
        if count <= sum(piece.numel() for piece in before):
            return
        self._pieces = [piece for piece in before if piece.numel() == LOCKED_BYTES]
        try:
            while (left := count - len(self._pieces) * LOCKED_BYTES) > 0:
                size = min(left, LOCKED_BYTES)
                self._pieces.append(self._torch.empty(size, dtype=self._torch.uint8, pin_memory=True))
        except RuntimeError as error:
            self._pieces = before
            self._torch._C._host_emptyCache()  # the others stay locked otherwise
            raise MemoryError(f"the host has no {count} bytes to lock: {error}") from error

    def put(self, storage: Any, offset: int) -> None:
        for piece, part in self._parts(storage, offset):
            piece.copy_(part, non_blocking=True)

    def get(self, storage: Any, offset: int) -> None:
        for piece, part in self._parts(storage, offset):
            part.copy_(piece, non_blocking=True)

    def _parts(self, storage: Any, offset: int) -> Iterator[tuple[Any, Any]]:
        """A storage's bytes where they are locked and where they are used, as far as each piece reaches."""
        view = self._torch.empty(0, dtype=self._torch.uint8, device=storage.device).set_(storage)
        done = 0
        while done < storage.nbytes():
            index, start = divmod(offset + done, LOCKED_BYTES)
            count = min(LOCKED_BYTES - start, storage.nbytes() - done)
            yield self._pieces[index][start : start + count], view[done : done + count]
            done += count

    def finish(self) -> None:
        self._torch.cuda.synchronize()

    def clear(self) -> None:
        return


def _open_nameless(directory: Path) -> int:
    """Owner-only, and gone with this process however it ends."""
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(directory, flags | os.O_TMPFILE, 0o600)
    except OSError:  # not every filesystem can
        path = directory / f".{os.getpid()}"
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        path.unlink()
        return fd


def _bytes_of(storage: Any) -> memoryview:
    """The storage's memory as it is, without a copy."""
    return memoryview((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())).cast("B")


def _ask_for_huge_pages(address: int, count: int) -> None:
    """Let the kernel back fresh memory in large pieces; one that cannot only takes longer."""
    begin = -(-address // HUGE_BYTES) * HUGE_BYTES
    length = (address + count - begin) // HUGE_BYTES * HUGE_BYTES
    if length > 0:
        _libc().madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), MADV_HUGEPAGE)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _sent_to_others(torch: Any) -> set[int]:
    """CUDA storages that were handed to another process: torch keeps a list of them."""
    return {reference.cdata for reference in torch.multiprocessing.reductions.shared_cache.values()}


def _has_graphs(torch: Any) -> bool:
    graph_class = getattr(torch.cuda, "CUDAGraph", None)
    return graph_class is not None and any(issubclass(type(each), graph_class) for each in gc.get_objects())


def make_storages(torch: Any, kind: str, directory: str | None) -> Storages | None:
    """For the device kind of this job; None where there is no place to park to."""
    if kind == "cuda":
        return Storages(torch, kind, PinnedStore(torch))
    return Storages(torch, "cpu", FileStore(Path(directory))) if directory else None
