"""Indirect reads: values leave a tensor as the shape of a result, as copied bytes, or as an address.

A shape goes into the log like a read, and in a replay the result gets the recorded shape. Bytes and addresses cannot
be answered from the log: the steps of a program that takes them cannot be skipped, only computed again.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from carpool.agent.checkpoint.tensor_names import is_program_file
from carpool.errors import DivergedError

if TYPE_CHECKING:
    from carpool.agent.checkpoint.read_recorder import ReadRecorder

SHAPED = ("nonzero", "masked_select", "unique", "argwhere", "bincount")
TAKEN = {
    "__reduce_ex__": "it copies tensors as bytes",
    "data_ptr": "it takes addresses",
    "__dlpack__": "it uses DLPack",
}
KIND = 200  # in the log: reads have low numbers


def install(torch: Any, recorder: ReadRecorder) -> None:
    tensor = torch.Tensor
    for number, name in enumerate(SHAPED):
        for owner in (tensor, torch):
            if hasattr(owner, name):
                recorder.replace(owner, name, _shaped(torch, recorder, KIND + number, name, getattr(owner, name)))
    recorder.replace(tensor, "__getitem__", _masked(torch, recorder, tensor.__getitem__))
    for name, why in TAKEN.items():
        recorder.replace(tensor, name, _taken(recorder, why, getattr(tensor, name)))


def _shaped(torch: Any, recorder: ReadRecorder, kind: int, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def shaped(*args: Any, **kwargs: Any) -> Any:
        if recorder.depth or get_ident() != recorder.main:
            return real(*args, **kwargs)
        recorder.depth = 1
        try:
            result = real(*args, **kwargs)
        finally:
            recorder.depth = 0
        return as_recorded(torch, recorder, kind, name, result)

    return shaped


def _masked(torch: Any, recorder: ReadRecorder, real: Callable[..., Any]) -> Callable[..., Any]:
    masks = (torch.bool, torch.uint8)

    @functools.wraps(real)
    def __getitem__(tensor: Any, index: Any) -> Any:  # noqa: N807 - it stands in for this method
        if recorder.depth or type(index) is int or type(index) is slice or get_ident() != recorder.main:
            return real(tensor, index)
        result = real(tensor, index)
        parts = index if type(index) is tuple else (index,)
        if any(issubclass(type(part), torch.Tensor) and part.dtype in masks for part in parts):
            return as_recorded(torch, recorder, KIND + len(SHAPED), "a choice by mask", result)
        return result

    return __getitem__


def as_recorded(torch: Any, recorder: ReadRecorder, kind: int, name: str, result: Any) -> Any:
    """Note the shape of a result, or give it the recorded one."""
    if not issubclass(type(result), torch.Tensor):
        recorder.cannot_skip(f"it calls {name} with several results")
        return result
    if recorder.is_recording:
        recorder.log.note(kind, list(result.shape))
        return result
    with recorder.own_work():
        shape = recorder.log.next(kind, name)
        if shape == list(result.shape):
            return result
        if not recorder.is_skipped:
            raise DivergedError(f"{name} gives a tensor of shape {tuple(result.shape)}, and gave {tuple(shape)}")
        return torch.zeros(shape, dtype=result.dtype, device=result.device)


def _taken(recorder: ReadRecorder, why: str, real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def taken(*args: Any, **kwargs: Any) -> Any:
        if not recorder.depth and (why.endswith("bytes") or is_program_file(sys._getframe(1).f_code.co_filename)):
            recorder.cannot_skip(why)
        return real(*args, **kwargs)

    return taken
