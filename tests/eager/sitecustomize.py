"""Runs at the start of the programs of a test whose PYTHONPATH names this directory: their torch has no compiler.

An optimizer imports torch's compiler at its first use, only to keep it out of its own steps, and that takes as long
as importing torch itself: every second processor second of most tests. Of what is left, a quarter are the Python
forms of torch's operations, which only a compiler, a symbolic trace and tensors without memory ask for, and a
twentieth are NVIDIA's Python packages, which torch looks for. A program that needs none of these is the same without
them, to the last bit, and no hook of carpool's touches them. Nor does anybody look for garbage from `import torch` to
the first optimizer (a sixth more) and at the program's end (a tenth: what is in a cycle is not told that it ends).
tests/e2e/test_shapes.py runs programs of every kind of boundary with all of torch, from their start to their end.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

COMPILER, FORMS = "torch._dynamo", "torch._meta_registrations"
NVIDIA = ("cuda", "pynvml")


class NoCompiler:
    """Finds the compiler and the forms, with no more in them than what others expect of them; torch finds no package
    of NVIDIA's."""

    is_torch_wanted = False

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torch":
            gc.disable()
            cls.is_torch_wanted = True
        if name in NVIDIA and cls.is_torch_wanted:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return ModuleSpec(name, cls) if name in (COMPILER, FORMS) else None  # type: ignore[arg-type]  # a class will do

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        return None

    @classmethod
    def exec_module(cls, module: ModuleType) -> None:
        if module.__name__ == FORMS:  # after it `import torch` looks for nothing of NVIDIA's
            cls.is_torch_wanted = False
            # As torch._prims does, which these forms would have imported: there is no torch.Generator without it.
            core = sys.modules["torch._C"]
            core._set_generator_metaclass(sys.modules["torch._opaque_base"].OpaqueBaseMeta)
            return
        vars(module).update(disable=_plain, graph_break=lambda: None)
        gc.enable()


def _plain(function: Callable[..., object], *_: object, **__: object) -> Callable[..., object]:
    return function


atexit.register(gc.freeze)
sys.meta_path.insert(0, NoCompiler)
