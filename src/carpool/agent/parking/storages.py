"""Moves a program's tensors to the host and back, byte for byte, at the level of their storages.

Every tensor, view, tied weight, gradient and optimizer state is a window on a storage. A storage's bytes are copied
out and the storage is resized to nothing; later it gets its size and its bytes back. The object stays, so everything
that refers to it stays valid, whoever holds it (docs/parking.md says what is exact, what best effort).

Found are the storages behind tensors that Python knows, and their gradients. What is not found, is shared with
another process, is too small to matter, or was handed to numpy (torch then forbids its resizing) just stays.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from carpool.agent import cuda
from carpool.agent.memory import give_back_heap
from carpool.agent.parking.find_and_copy import find_objects, with_subclasses
from carpool.agent.parking.host_buffers import HostBuffer, Moved, host_buffer_in

LEAST_BYTES = 4096  # smaller storages are not worth a copy
ALIGNMENT = 64


class Storages:
    """The storages of this process on one kind of device."""

    def __init__(self, torch: Any, kind: str, buffer: HostBuffer) -> None:
        self._torch = torch
        self._kind = kind
        self._buffer = buffer
        self._away: list[Moved] = []
        self._sent: set[int] = set()  # storages that another process may look at, when last looked

    @property
    def away_bytes(self) -> int:
        return sum(moved.count for moved in self._away)

    def obstacle(self) -> str:
        """Why the tensors of this program must not be moved; empty if they may."""
        if self._kind == "cuda" and cuda.has_graphs(self._torch):
            return "it captured CUDA graphs, which remember addresses of its memory"
        return ""

    def find(self) -> list[Any]:
        """Every storage worth moving, once; reads no tensor's values."""
        found: dict[int, Any] = {}
        self._sent = cuda.sent_to_others(self._torch) if self._kind == "cuda" else set()
        with self._torch._C.DisableTorchFunctionSubclass():
            for each in find_objects(with_subclasses(self._torch.Tensor)):
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
        self._buffer.reserve(offset)
        try:
            self._buffer.write(plan)
        except BaseException:
            self._buffer.clear()
            raise
        for moved in plan:
            moved.storage.resize_(0)
        self._away = plan
        self._give_back()
        return total

    def move_in(self) -> None:
        """Bring everything back. On an error the bytes are still in the buffer, and it can be tried again."""
        for moved in self._away:
            if moved.storage.nbytes() != moved.count:
                moved.storage.resize_(moved.count)
        self._buffer.read(self._away)
        self._away = []
        self._buffer.clear()

    def undo_move_in(self) -> None:
        """A return failed for want of memory: give back what it had got so far."""
        for moved in self._away:
            moved.storage.resize_(0)
        self._give_back()

    def _give_back(self) -> None:
        """Freed blocks stay in the allocator's hands otherwise."""
        if self._kind == "cuda":
            cuda.give_back_cache(self._torch)
        else:
            give_back_heap()


def make_storages(torch: Any, kind: str, directory: str | None) -> Storages | None:
    """For the device kind of this job; None where there is no place to park to."""
    if kind == "cuda":
        return Storages(torch, kind, cuda.PinnedBuffer(torch))
    return Storages(torch, "cpu", host_buffer_in(Path(directory))) if directory else None
