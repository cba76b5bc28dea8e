"""Runs at the start of the programs of a test whose PYTHONPATH names this directory: their torch has no compiler.

An optimizer imports torch's compiler at its first use, only to keep it out of its own steps, and that takes as long
as importing torch itself: every second processor second of most tests. A program that compiles nothing is the same
without it, to the last bit, and no hook of carpool's touches it. tests/e2e/test_shapes.py runs programs of every
shape with all of torch. Nor does anybody look for garbage from `import torch` to the first optimizer: a sixth more.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class NoCompiler:
    """Finds `torch._dynamo`, with no more in it than what an optimizer calls in every step."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torch":
            gc.disable()
        return ModuleSpec(name, cls) if name == "torch._dynamo" else None  # type: ignore[arg-type]  # a class will do

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        return None

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        def disable(function: Callable[..., object], *_: object, **__: object) -> Callable[..., object]:
            return function

        vars(module).update(disable=disable, graph_break=lambda: None)
        gc.enable()


sys.meta_path.insert(0, NoCompiler)
