"""Finds the storages that can leave a device: all of the process, or those behind given tensors and modules.

Every tensor, view, tied weight, gradient and optimizer state is a window on a storage, so storages are what is moved.
A storage stays where it is if another process may look at it, if torch forbids its resizing (numpy has it, say), or
if its memory was given away (exports.py).
The search reads no tensor's values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Set
from typing import Any

from carpool.agent.backends import Backend
from carpool.agent.parking.exports import exports
from carpool.agent.parking.find_and_copy import find_objects, with_subclasses
from carpool.agent.unseen import unseen
from carpool.errors import UsageError

LEAST_BYTES = 4096  # of all the storages of a process, smaller ones are not worth a copy


class StorageSearch:
    """Looks for storages on one kind of device."""

    def __init__(self, torch: Any, backend: Backend) -> None:
        self._torch = torch
        self._backend = backend
        self._sent: Set[int] = frozenset()  # storages that another process may look at, when last looked

    def find_all(self) -> list[Any]:
        """Every storage that can leave and is worth it, once: those behind tensors that Python knows."""
        return [storage for storage in self._all() if self._may_leave(storage)]

    def find_exported(self) -> list[Any]:
        """Every storage of the process that would be worth it and stays because its memory was given away."""
        return [storage for storage in self._all() if exports.has(storage)] if exports.is_used else []

    def _all(self) -> list[Any]:
        return self._behind(find_objects(with_subclasses(self._torch.Tensor)), least_bytes=LEAST_BYTES)

    def find_in(self, *holders: Any) -> list[Any]:
        """Every storage of these tensors and modules that can leave, once, however small."""
        return [storage for storage in self._behind(self._tensors_of(holders)) if self._may_leave(storage)]

    def staying_bytes(self, *holders: Any) -> int:
        """The bytes of these tensors and modules that cannot leave the device."""
        found = self._behind(self._tensors_of(holders))
        return sum(storage.nbytes() for storage in found if not self._may_leave(storage))

    def _tensors_of(self, holders: tuple[Any, ...]) -> Iterator[Any]:
        for holder in holders:
            if isinstance(holder, self._torch.nn.Module):
                yield from holder.parameters()
                yield from holder.buffers()
            elif isinstance(holder, self._torch.Tensor):
                yield holder
            else:
                raise UsageError(f"storages are those of tensors and modules, not of a {type(holder).__name__}")

    def _behind(self, tensors: Any, *, least_bytes: int = 1) -> list[Any]:
        """The storages of these tensors and of their gradients on this kind of device."""
        found: dict[int, Any] = {}
        self._sent = self._backend.sent_to_others(self._torch)
        with unseen(self._torch):
            for each in tensors:
                self._note(each, found, least_bytes)
                with contextlib.suppress(Exception):
                    if (each.is_leaf or each.retains_grad) and each.grad is not None:
                        self._note(each.grad, found, least_bytes)
        return list(found.values())

    def _note(self, tensor: Any, found: dict[int, Any], least_bytes: int) -> None:
        try:
            storage = tensor.untyped_storage()
            is_known = storage._cdata in found
            if not is_known and storage.device.type == self._backend.name and storage.nbytes() >= least_bytes:
                found[storage._cdata] = storage
        except (RuntimeError, NotImplementedError, AttributeError):
            return  # sparse, meta or wrapped: it has no storage of its own

    def _may_leave(self, storage: Any) -> bool:
        try:
            is_own = bool(storage.resizable()) and not exports.has(storage)
            return is_own and not self._backend.is_shared(storage, self._sent)
        except (RuntimeError, NotImplementedError, AttributeError):
            return False
