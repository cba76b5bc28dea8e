"""How many iterations a program's loops still have before them, read from the program as it runs.

A program says how long it is by its loops: `for epoch in range(10): for batch in loader:`. While such a loop runs,
its iterator lies on the stack of its frame, and most iterators know how much is left of them. Nothing of the program
is changed, and none of its code is called but the length of its sampler (T2). Python does not show a frame's stack.
So it is read where CPython keeps it, once it is sure that it lies there (docs/design/0024-lengths.md).

The number is left open if one of the loops around the boundary is a `while`, has an iterator of unknown length, or
cannot be seen: a part of a product says nothing.
"""

from __future__ import annotations

import ctypes
import dis
import operator
import sys
from itertools import pairwise
from types import CodeType, FrameType, GeneratorType
from typing import Any, NamedTuple

PASSES_MAX = 10_000_000  # a loop with more passes before it ends by a `break`
FRAMES_MAX = 100  # a program that is deeper in calls is not looked at
GENERATORS_MAX = 4  # one inside the other
OURS = ("carpool.", "torch.")  # modules between the program's call and this one

# Where CPython keeps a frame's stack: of the frame its inner structure; of that its code, how far variables and stack
# reach, and the variables, then the stack. From 3.14 on the reach is an address, and of what lies there the two
# lowest bits of what lies there are marks.
_CODE_AT = {(3, 11): 32, (3, 12): 0, (3, 13): 0, (3, 14): 0}.get(sys.version_info[:2])
if sys.implementation.name != "cpython" or object.__basicsize__ != 16:
    _CODE_AT = None  # other builds (without the lock, for debugging, of 32 bits) have larger or smaller objects
_HAS_MARKS = sys.version_info[:2] >= (3, 14)
_INNER_AT, _DEPTH_AT, _SLOTS_AT = (24, 64, 80) if _HAS_MARKS else (24, 64, 72)
_MARKS, _IS_NUMBER = 3, 3  # the marks; the one of a plain number
_WORD = ctypes.sizeof(ctypes.c_void_p)


class Loop(NamedTuple):
    """One loop: passes still to come after the present one, and in all."""

    left: int
    total: int


class Lengths:
    """Looks at the loops at each of the first boundaries, and says how many more boundaries there will be."""

    def __init__(self) -> None:
        self._totals: list[int] = []  # of the loops at the first look
        self._left: list[int] = []  # iterations left at each look

    def look(self) -> None:
        """A boundary was reached; the loops are those of whoever called carpool or torch."""
        try:
            loops = loops_around(sys._getframe(1))
        except Exception:  # noqa: BLE001 - a sampler without a length, an iterator of an unusual kind
            loops = None
        if not loops or len(loops) != len(self._totals or loops):
            self._left = []
            return
        self._totals = self._totals or [loop.total for loop in loops]
        left = 0
        for loop, total in zip(loops, self._totals, strict=True):
            left = left * total + loop.left
        self._left.append(left)

    def steps_left(self) -> int | None:
        """How many boundaries are still to come after the newest; with accumulation one takes several passes."""
        spent = [before - after for before, after in pairwise(self._left[-3:])]
        if not spent or min(spent) <= 0:
            return None
        return self._left[-1] * len(spent) // sum(spent)


def loops_around(frame: FrameType | None) -> list[Loop] | None:
    """The `for` loops around a call of carpool, from the outermost to the innermost; None if that cannot be said."""
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(OURS):
        frame = frame.f_back
    loops: list[Loop] = []
    for _ in range(FRAMES_MAX):
        if frame is None:
            return loops
        found = loops_of(frame, GENERATORS_MAX)
        if found is None:
            return None
        loops[:0] = found
        frame = frame.f_back
    return None


def loops_of(frame: FrameType, generators: int) -> list[Loop] | None:
    """Those of one frame that are at work; `generators` is how deep to look into them."""
    count = _count_loops(frame.f_code, frame.f_lasti)
    if not count:
        return None if count is None else []
    iterators = [each for each in _stack_of(frame) if hasattr(type(each), "__next__")]
    if len(iterators) != count:
        return None
    loops = [_measure(each, generators) for each in iterators]
    return None if None in loops else [loop for loop in loops if loop is not None]


def _count_loops(code: CodeType, at: int) -> int | None:
    """How many `for` loops are around an instruction; None if a `while` is."""
    instructions = {each.offset: each for each in dis.get_instructions(code)}
    jumps = [each for each in instructions.values() if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs]
    for each in jumps:
        if each.argval <= at <= each.offset:  # back to the beginning of a loop
            begin = each.argval
            while instructions[begin].opname == "EXTENDED_ARG":
                begin += 2
            is_handled = each.opname == "JUMP_BACKWARD_NO_INTERRUPT"  # from 3.12 on: the way back from an error
            if instructions[begin].opname != "FOR_ITER" and not (is_handled and instructions[begin].opname != "SEND"):
                return None
    return len([each for each in jumps if each.opname == "FOR_ITER" and each.offset < at < each.argval])


def _stack_of(frame: FrameType) -> list[Any]:
    """What lies on a frame's stack while it waits for a call, or a generator for its next turn. Empty if it is not
    seen: CPython writes the depth only where one Python function calls another."""
    if _CODE_AT is None:
        return []
    inner = ctypes.c_void_p.from_address(id(frame) + _INNER_AT).value
    if not inner or _object_at(inner + _CODE_AT) != id(frame.f_code):
        return []
    code = frame.f_code
    first = code.co_nlocals + len(code.co_freevars) + sum(name not in code.co_varnames for name in code.co_cellvars)
    depth = _depth(inner)
    if not first <= depth <= first + code.co_stacksize:
        return []
    found = [_object_at(inner + _SLOTS_AT + place * _WORD) for place in range(first, depth)]
    return [ctypes.cast(each, ctypes.py_object).value for each in found if each]


def _depth(inner: int) -> int:
    """How many words of variables and stack a frame has."""
    if not _HAS_MARKS:
        return ctypes.c_int.from_address(inner + _DEPTH_AT).value
    return ((ctypes.c_void_p.from_address(inner + _DEPTH_AT).value or 0) - inner - _SLOTS_AT) // _WORD


def _object_at(address: int) -> int:
    """The object that a word names, without its marks; 0 for none, and for a plain number."""
    word = ctypes.c_void_p.from_address(address).value or 0
    if not _HAS_MARKS:
        return word
    return 0 if word & _MARKS == _IS_NUMBER else word & ~_MARKS


def _measure(iterator: Any, generators: int) -> Loop | None:
    """How much is left of an iterator; None if it does not say."""
    kind = type(iterator)
    if kind is enumerate:
        return _measure(iterator.__reduce__()[1][0], generators)
    if kind in (zip, map):
        parts = [each for each in iterator.__reduce__()[1] if hasattr(type(each), "__next__")]
        measured = [loop for each in parts if (loop := _measure(each, generators)) is not None]
        return min(measured, default=None)  # the shortest ends it; one that does not say is taken to be longer
    if kind is GeneratorType:
        return _measure_generator(iterator, generators)
    if kind.__module__ in ("builtins", "itertools"):
        return _bounded(operator.length_hint(iterator, PASSES_MAX))
    loader = sys.modules.get("torch.utils.data.dataloader")
    if loader is not None and isinstance(iterator, loader._BaseDataLoaderIter):
        total = len(iterator)
        return _bounded(total - iterator._num_yielded, total)
    return None


def _measure_generator(generator: Any, generators: int) -> Loop | None:
    """One that hands on what it takes from its own loops, as a progress bar does."""
    frame = generator.gi_frame
    loops = loops_of(frame, generators - 1) if frame is not None and generators else None
    if not loops:
        return None
    left, total = 0, 1
    for loop in loops:
        left, total = left * loop.total + loop.left, total * loop.total
    return _bounded(left, total)


def _bounded(left: int, total: int | None = None) -> Loop | None:
    return Loop(left, left + 1 if total is None else total) if 0 <= left < PASSES_MAX else None
