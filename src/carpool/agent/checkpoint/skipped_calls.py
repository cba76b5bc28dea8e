"""What a skipped call of a module gives: tensors like those that it gave when it was last computed.

Like them also in what they hold. A program goes on with them outside of its modules: it draws from probabilities,
takes roots and looks things up, and some of that is an error for arbitrary numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PLAIN = (int, float, bool, str, type(None))
# Kept together; what goes beyond is all zeros. These bytes are on the job's device, and count under its cap until the
# state is put back.
EXAMPLES_BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True)
class Like:
    """A tensor to be made."""

    shape: tuple[int, ...]
    dtype: Any
    device: Any
    needs_grad: bool
    example: Any  # or None


class SkippedCalls:
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._results: dict[Any, Any] = {}
        self._bytes = 0

    def key(self, module: Any, arguments: Any) -> Any:
        """Calls with the same key give results of the same shape."""
        return (id(module), module.training, self._torch.is_grad_enabled(), self._sign(arguments))

    def learn(self, key: Any, result: Any) -> None:
        """Remember what a call gives; one that gives what cannot be made here is always computed."""
        if key not in self._results and self._can_be_made(result):
            self._results[key] = self._each(result, self._like)

    def knows(self, key: Any) -> bool:
        return key in self._results

    def result(self, key: Any) -> Any:
        return self._each(self._results[key], self._make)

    def are_tensors(self, value: Any) -> bool:
        """Whether a result is made of tensors only: a number in it would have come out of one unseen."""
        if value is None or issubclass(type(value), self._torch.Tensor):
            return True
        if isinstance(value, dict):  # also one of a library's own kind, with attributes: it is always computed
            return all(map(self.are_tensors, value.values()))
        return type(value) in (tuple, list) and all(map(self.are_tensors, value))

    def _can_be_made(self, value: Any) -> bool:
        if type(value) in (tuple, list):
            return all(map(self._can_be_made, value))
        if type(value) is dict:
            return all(map(self._can_be_made, value.values()))
        return type(value) in PLAIN or issubclass(type(value), self._torch.Tensor)

    def _each(self, value: Any, act: Callable[[Any], Any]) -> Any:
        """A copy in which every tensor, or what stands for it, is replaced."""
        if type(value) in (tuple, list):
            return type(value)(self._each(each, act) for each in value)
        if type(value) is dict:
            return {key: self._each(each, act) for key, each in value.items()}
        return value if type(value) in PLAIN else act(value)

    def _sign(self, value: Any) -> Any:
        """What distinguishes one call's tensors from another's."""
        if issubclass(type(value), self._torch.Tensor):
            return ("tensor", tuple(value.shape), value.dtype, value.device)
        if type(value) in (tuple, list):
            return (type(value), *map(self._sign, value))
        if type(value) is dict:
            return (dict, *((key, self._sign(each)) for key, each in value.items()))
        return ("plain", value) if type(value) in PLAIN else ("other", id(value))

    def _like(self, tensor: Any) -> Like:
        size = tensor.numel() * tensor.element_size()
        is_kept = tensor.layout is self._torch.strided and self._bytes + size <= EXAMPLES_BYTES_MAX
        self._bytes += size if is_kept else 0
        example = tensor.detach().clone() if is_kept else None
        return Like(tuple(tensor.shape), tensor.dtype, tensor.device, tensor.requires_grad, example)

    def _make(self, like: Like) -> Any:
        example = like.example
        if example is None:
            example = self._torch.zeros(like.shape, dtype=like.dtype, device=like.device)
        # With a gradient it is no leaf, as the real result is none: the program may change it in place.
        return example.detach().requires_grad_(like.needs_grad).clone()
