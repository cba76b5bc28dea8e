"""Moves a program's tensors to the host and back, byte for byte, at the level of their storages.

A storage's bytes are copied out and the storage is resized to nothing; later it gets its size and its bytes back. The
object stays, so every tensor that is a window on it stays valid (docs/parking.md says what is
exact, what best effort).

Parking moves everything (`make_storages`). To move one model of several, choose it:

    model = Storages.of(module, cache, torch=torch, kind="cuda", buffer=cuda.PinnedBuffer(torch))
    model.move_out(limit_bytes)  # its tensors must not be touched from here
    model.move_in()              # until here

Exactly the storages behind these tensors and modules move (parameters, buffers, and the gradients of either), also
small ones. A tensor that was not chosen but shares a storage with one that was is away with it. A storage that is
away is found by no other move: parking the process meanwhile leaves it where it is, and of two chosen sets that share
one the first to move it brings it back.
"""

from __future__ import annotations

from typing import Any

from carpool.agent.backends import backend_named
from carpool.agent.parking.exports import exports
from carpool.agent.parking.host_buffers import HostBuffer, Moved
from carpool.agent.parking.storage_search import StorageSearch
from carpool.agent.unseen import unseen
from carpool.errors import UsageError

ALIGNMENT = 64


class Storages:
    """Storages of this process on one kind of device that move together: all of them, or those of a chosen few."""

    def __init__(self, torch: Any, kind: str, buffer: HostBuffer) -> None:
        self._torch = torch
        self._backend = backend_named(kind)
        self._buffer = buffer
        self._search = StorageSearch(torch, self._backend)
        self._holders: tuple[Any, ...] = ()  # the chosen tensors and modules; without any, all of the process
        self._away: list[Moved] = []

    @classmethod
    def of(cls, *holders: Any, torch: Any, kind: str, buffer: HostBuffer) -> Storages:
        """Those behind these tensors and modules, looked up anew at each move; the buffer is theirs alone."""
        if not holders:
            raise UsageError("name the tensors or modules whose storages are meant")
        chosen = cls(torch, kind, buffer)
        chosen._holders = holders
        chosen.find()  # a holder of another kind is an error here, not at the first move
        return chosen

    @property
    def away_bytes(self) -> int:
        return sum(moved.count for moved in self._away)

    def obstacle(self) -> str:
        """Why the tensors of this program must not be moved; empty if they may."""
        return self._backend.obstacle(self._torch)

    def find(self) -> list[Any]:
        """The storages that would leave now: those of the chosen tensors and modules, or all that are worth it."""
        return self._search.find_in(*self._holders) if self._holders else self._search.find_all()

    def kept_words(self) -> str:
        """What stays because the program gave its memory away; empty if nothing does."""
        return exports.words(self._search.find_exported())

    def staying_bytes(self) -> int:
        """Of the chosen tensors and modules, the bytes that cannot leave the device."""
        return self._search.staying_bytes(*self._holders)

    def move_out(self, limit_bytes: int) -> int:
        """Copy out and free; returns how many bytes left. On an error nothing has left."""
        if self._away:
            raise UsageError(f"{self.away_bytes} bytes of these storages are away already; move them in first")
        storages = self.find()
        offset, plan = 0, []
        for storage in storages:
            plan.append(Moved(storage, storage.nbytes(), offset))
            offset += -(-storage.nbytes() // ALIGNMENT) * ALIGNMENT
        total = sum(moved.count for moved in plan)
        if total > limit_bytes:
            raise MemoryError(f"it holds {total} bytes in tensors, and {limit_bytes} were reserved on the host")
        with unseen(self._torch):
            self._buffer.reserve(offset)
        try:
            with unseen(self._torch):
                self._buffer.write(plan)
        except BaseException:
            self._buffer.clear()
            raise
        for moved in plan:
            moved.storage.resize_(0)
        self._away = plan
        self._backend.give_back(self._torch)
        return total

    def move_in(self) -> None:
        """Bring everything back. On an error the bytes are still in the buffer, and it can be tried again."""
        for moved in self._away:
            if moved.storage.nbytes() != moved.count:
                moved.storage.resize_(moved.count)
        with unseen(self._torch):
            self._buffer.read(self._away)
        self._away = []
        self._buffer.clear()

    def undo_move_in(self) -> None:
        """A return failed for want of memory: give back what it had got so far."""
        for moved in self._away:
            moved.storage.resize_(0)
        self._backend.give_back(self._torch)


def make_storages(torch: Any, kind: str, directory: str | None) -> Storages | None:
    """All of this process on this kind of device; None where there is no place to park to."""
    buffer = backend_named(kind).make_buffer(torch, directory)
    return Storages(torch, kind, buffer) if buffer is not None else None
