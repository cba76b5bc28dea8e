"""Exports: memory of tensors that something outside torch looks at too, so it must stay where it is.

Torch itself marks a storage that numpy has, that another process may map, or that it did not allocate: it is shared
or not resizable. Two ways out leave no mark, and are noted here: DLPack, and a plain address (`data_ptr()`). A noted
storage stays on the device for as long as it lives, because nobody says when an address is used no more.

Some packages only compare addresses, or use them while a call lasts (`ONLY_COMPARE`): what they ask is not noted.
Code of torch that calls a function it was handed (`tree_map`, `no_grad`) asks for somebody else. An address that C++
code takes from a tensor by itself is not seen; a program that keeps such a one between two iterations needs
`carpool run --no-park` (docs/parking.md).
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from carpool.agent.packages import is_installed
from carpool.agent.unseen import unseen
from carpool.units import format_bytes

ONLY_COMPARE = frozenset(
    {"torch", "triton", "carpool", "safetensors", "transformers", "accelerate", "huggingface_hub"}
)
LAUNCHES = (
    "torch._inductor"  # its C code asks for addresses and hands them to the device, and names nothing in Python
)
DESCRIPTION = "__cuda_array_interface__"  # of a tensor's memory, with its address
SWEEP_MIN = 64  # so many are noted before the dead are looked for


class Exports:
    """The storages of this process whose memory was given away, and where that was first seen."""

    def __init__(self) -> None:
        self._noted: dict[int, tuple[Any, str]] = {}  # by storage: what tells that it is gone, and who gave it away
        self._sweep_at = SWEEP_MIN

    def note(self, tensor: Any, how: str, torch: Any) -> None:
        """This tensor's memory, or this storage, is known outside from now on."""
        with contextlib.suppress(Exception), unseen(torch):  # one without a storage
            storage = tensor if isinstance(tensor, torch.UntypedStorage) else tensor.untyped_storage()
            if storage._cdata in self._noted:
                return
            # The reference is weak. It keeps the number of the storage, but not its bytes, from being used again.
            weak = torch.multiprocessing.reductions.StorageWeakRef(storage)
            self._noted[storage._cdata] = weak, f"{how} in {_place()}"
            if len(self._noted) >= self._sweep_at:
                self._sweep()

    @property
    def is_used(self) -> bool:
        return bool(self._noted)

    def has(self, storage: Any) -> bool:
        return storage._cdata in self._noted

    def words(self, storages: Sequence[Any]) -> str:
        """Why these stay on the device, of which the first is named; empty if there is none."""
        if not storages:
            return ""
        count = sum(storage.nbytes() for storage in storages)
        where = self._noted[storages[0]._cdata][1]
        return f"{format_bytes(count)} of its tensors stays there because the program gave it away ({where})"

    def _sweep(self) -> None:
        self._noted = {key: row for key, row in self._noted.items() if not row[0].expired()}
        self._sweep_at = max(SWEEP_MIN, 2 * len(self._noted))


exports = Exports()


def install(torch: Any) -> None:
    """Note every export from now on; called once, right after the program's own import of torch."""
    for owner in (torch._C, torch, torch.utils.dlpack):
        for name in ("_to_dlpack", "_to_dlpack_versioned", "to_dlpack"):
            if hasattr(owner, name):
                setattr(owner, name, _given(torch, "DLPack", getattr(owner, name)))
    # Through this table of C functions tensors would go out unseen. Whoever looks for it takes __dlpack__ without it.
    for name in ("__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__"):
        if name in vars(torch.Tensor):
            delattr(torch.Tensor, name)
    for owner in (torch.Tensor, torch.UntypedStorage, torch.TypedStorage):
        for name in ("data_ptr", "const_data_ptr", "mutable_data_ptr"):
            if hasattr(owner, name):
                setattr(owner, name, _address(torch, getattr(owner, name)))
    described = vars(torch.Tensor)[DESCRIPTION].fget
    setattr(torch.Tensor, DESCRIPTION, property(_given(torch, DESCRIPTION, described)))


def _given(torch: Any, how: str, real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def give(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        result = real(tensor, *args, **kwargs)
        exports.note(tensor, how, torch)
        return result

    return give


def _address(torch: Any, real: Callable[..., Any]) -> Callable[..., Any]:
    name = f"{real.__name__}()"

    @functools.wraps(real)
    def address(holder: Any) -> Any:
        found = real(holder)
        if not _only_compares(_who_asks(sys._getframe(1), real.__name__)):
            exports.note(getattr(holder, "_untyped_storage", holder), name, torch)
        return found

    return address


def _package(names: dict[str, Any]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]


def _who_asks(frame: FrameType | None, name: str) -> FrameType | None:
    """The frame whose code asks for an address: code of torch that does not name what it calls was handed it."""
    while frame is not None and _package(frame.f_globals) == "torch" and name not in frame.f_code.co_names:
        if str(frame.f_globals["__name__"]).startswith(LAUNCHES + "."):
            break
        frame = frame.f_back
    return frame


def _only_compares(frame: FrameType | None) -> bool:
    package = "" if frame is None else _package(frame.f_globals)
    return package in ONLY_COMPARE and is_installed(package)


def _place() -> str:
    """The line that gave the memory away: the innermost that is none of torch's or carpool's."""
    frame = sys._getframe(2)
    while _package(frame.f_globals) in ONLY_COMPARE and frame.f_back is not None:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
