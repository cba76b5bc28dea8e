"""Gives every tensor of a program a name: the way by which the program's own variables lead to it.

Two runs of one program that did the same have the same variables, so their tensors have the same names. That is how a
tensor of a checkpoint finds its place in another process. The search begins at the locals of every function that is
being called, the globals of the program's modules, its generators and its data loaders. From there it follows
attributes, containers and closures.

On the way it notes plain values. Those of modules and optimizers are put back, because skipped computation would have
changed them. Whole numbers of the program's own variables must be the same on arrival.
"""

from __future__ import annotations

import functools
import gc
import os
import site
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CellType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

PLAIN = (int, float, bool, str, type(None))
COMPARED = (int, bool, type(None))
IGNORE, COMPARE, PUT_BACK = range(3)
REFERENCES = 3  # to a frame's dict of variables that nobody else has: the frame's, ours, and that of the count
# Of a data loader with workers: what they sent before it was wanted, which depends on how fast they are. The workers
# of a replay send the same again.
SENT_AHEAD = ("_task_info", "_data_queue", "_worker_result_queue", "_index_queues", "_workers")
PACKAGES = ("/site-packages/", "/dist-packages/")  # also of another environment, which a .pth file leads to
LIBRARY = "library "  # the name of a function that is not the program's own begins with this

_OURS = str(Path(__file__).parents[2]) + os.sep
_LIBRARIES = (
    *(
        path + os.sep
        for path in {
            *(sysconfig.get_paths().get(name, "") for name in ("stdlib", "platstdlib", "purelib", "platlib")),
            *site.getsitepackages(),
            site.getusersitepackages(),
        }
        if path
    ),
    "<frozen",
)


def is_program_file(file: str | None) -> bool:
    """Whether a source file is the program's own, not a library's."""
    if file is None or file.startswith((*_LIBRARIES, _OURS)):
        return False
    return not any(place in file for place in PACKAGES)


@dataclass(slots=True)
class Named:
    tensors: dict[str, Any] = field(default_factory=dict)
    generators: dict[str, Any] = field(default_factory=dict)  # of random numbers
    compared: dict[str, int | bool | None] = field(default_factory=dict)
    put_back: dict[str, tuple[Any, Any, Any]] = field(default_factory=dict)  # where, under which key, what
    numpy_bases: list[Any] = field(default_factory=list)  # tensors whose memory an array of numpy's shares
    nameless: list[Any] = field(default_factory=list)  # tensors that nothing led to


class Namer:
    def __init__(self, torch: Any, before: set[int]) -> None:
        self._torch = torch
        numpy = sys.modules.get("numpy")
        self._arrays: tuple[type, ...] = (numpy.ndarray,) if numpy is not None else ()
        self._before = before  # ids of tensors that are older than the program
        self._found = Named()
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []  # so that no id is used twice
        self._todo: deque[tuple[str, Any, int, Any, Any]] = deque()

    def name_all(self, frame: FrameType | None) -> Named:
        for root, value in self._roots(frame):
            self._see(root, value, IGNORE if root.startswith(LIBRARY) else COMPARE, None, None)
            while self._todo:
                self._see(*self._todo.popleft())
        self._note_nameless()
        return self._found

    # --- where to begin -----------------------------------------------------------------------------------

    def _roots(self, frame: FrameType | None) -> list[tuple[str, Any]]:
        roots: list[tuple[str, Any]] = []
        modules = [each for each in sorted(sys.modules.items()) if type(each[1]) is ModuleType]
        for name, module in modules:
            if name == "__main__" or is_program_file(getattr(module, "__file__", None)):
                roots.append((name, _public(vars(module))))
            elif constants := self._constants(vars(module)):
                roots.append((LIBRARY + name, constants))
        frames = []
        while frame is not None:
            code = frame.f_code
            if not code.co_filename.startswith(_OURS) and frame.f_locals is not frame.f_globals:
                frames.append(
                    (code.co_qualname if is_program_file(code.co_filename) else LIBRARY + code.co_qualname, frame)
                )
            frame = frame.f_back
        roots += [(f"{name}()", _locals_of(each)) for name, each in reversed(frames)]
        return _unlike(roots + sorted(self._suspended(), key=lambda root: root[0]))

    def _constants(self, names: dict[str, Any]) -> dict[str, Any]:
        """The tensors that a library made when it was imported."""
        tensor = self._torch.Tensor
        return {
            name: each
            for name, each in list(names.items())
            if issubclass(type(each), tensor) and id(each) not in self._before
        }

    def _suspended(self) -> Iterator[tuple[str, Any]]:
        """Generators and data loaders, in the collector's order: that of several of one name stays as it is, all else
        depends on when it last looked."""
        loader = self._torch.utils.data.dataloader._BaseDataLoaderIter
        for each in gc.get_objects():
            if type(each) is GeneratorType and each.gi_frame is not None:
                file = each.gi_code.co_filename
                if not file.startswith(_OURS):
                    yield f"{'' if is_program_file(file) else LIBRARY}generator {each.gi_code.co_qualname}", each
            elif issubclass(type(each), loader):
                yield "data loader", each

    # --- one thing after another --------------------------------------------------------------------------

    def _see(self, path: str, value: Any, how: int, owner: Any, key: Any) -> None:
        kind = type(value)
        if kind in PLAIN:
            self._plain(path, value, how, owner, key)
            return
        if id(value) in self._names:
            return
        self._names[id(value)] = path
        self._kept.append(value)
        if issubclass(kind, self._torch.Tensor):
            self._tensor(path, value)
        elif kind is self._torch.Generator:
            self._found.generators[path] = value
        elif issubclass(kind, dict):
            self._mapping(path, value, how)
        elif issubclass(kind, (list, tuple, deque)):
            self._sequence(path, value, how)
        elif issubclass(kind, (set, frozenset)):
            self._count(path, value, how)
        else:
            self._other(path, value)

    def _plain(self, path: str, value: Any, how: int, owner: Any, key: Any) -> None:
        if how == PUT_BACK and owner is not None:
            self._found.put_back[path] = (owner, key, value)
        elif how == COMPARE and type(value) in COMPARED:
            self._found.compared[path] = value

    def _count(self, path: str, value: Any, how: int) -> None:
        if how == COMPARE:
            self._found.compared[f"len({path})"] = len(value)

    def _tensor(self, path: str, tensor: Any) -> None:
        self._found.tensors[path] = tensor
        if (tensor.is_leaf or tensor.retains_grad) and tensor.grad is not None:
            self._push(f"{path}.grad", tensor.grad, IGNORE)
        for name, value in getattr(tensor, "__dict__", {}).items():
            self._push(f"{path}.{name}", value, IGNORE)

    def _push(self, path: str, value: Any, how: int, owner: Any = None, key: Any = None) -> None:
        self._todo.append((path, value, how, owner, key))

    def _mapping(self, path: str, value: Any, how: int) -> None:
        self._count(path, value, how)
        for index, (key, each) in enumerate(list(value.items())):
            if type(key) in PLAIN:
                name = f"[{key!r}]"
            else:  # a parameter of an optimizer's state has a name already; anything else goes by its place
                name = f"[{self._names.get(id(key), f'#{index}')}]"
                self._push(f"{path}.key{index}", key, IGNORE)
            self._push(path + name, each, how, value, key)

    def _sequence(self, path: str, value: Any, how: int) -> None:
        self._count(path, value, how)
        is_list = type(value) is list
        if len(value) > 64 and how != PUT_BACK and all(type(each) in PLAIN for each in value):
            return
        for index, each in enumerate(value):
            self._push(f"{path}[{index}]", each, how, value if is_list else None, index)

    def _other(self, path: str, value: Any) -> None:
        kind = type(value)
        if kind is GeneratorType:
            if value.gi_frame is not None:
                how = COMPARE if is_program_file(value.gi_code.co_filename) else IGNORE
                self._attributes(path, _locals_of(value.gi_frame), how, owner=None)
        elif kind is FunctionType and not value.__code__.co_filename.startswith(_OURS):
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
            how = COMPARE if is_program_file(value.__code__.co_filename) else IGNORE
            for name, cell in cells:
                self._push(f"{path}.{name}", cell, how)
            self._push(f"{path}.defaults", [value.__defaults__, value.__kwdefaults__], IGNORE)
        elif kind is CellType:
            self._cell(path, value)
        elif kind is MethodType:
            self._push(path, value.__self__, IGNORE)
            self._push(f"{path}.function", value.__func__, IGNORE)
        elif issubclass(kind, self._arrays):
            self._array(path, value)
        elif kind is functools.partial:
            self._push(path, [value.func, value.args, value.keywords], IGNORE)
        elif isinstance(value, type):
            if is_program_file(getattr(sys.modules.get(value.__module__), "__file__", None)):
                self._attributes(path, dict(vars(value)), COMPARE, owner=None)
        elif kind not in (ModuleType, FunctionType) and not kind.__module__.startswith("carpool."):
            self._instance(path, value, kind)

    def _array(self, path: str, array: Any) -> None:
        """One of numpy's: it may be a window on a tensor, or hold tensors."""
        self._push(f"{path}.base", array.base, IGNORE)
        if issubclass(type(array.base), self._torch.Tensor):
            self._found.numpy_bases.append(array.base)
        if array.dtype.hasobject and array.dtype.names is None:
            for index, each in enumerate(array.flat):
                self._push(f"{path}.flat[{index}]", each, IGNORE)

    def _cell(self, path: str, cell: Any) -> None:
        try:
            contents = cell.cell_contents
        except ValueError:
            return  # an empty one
        if type(contents) in PLAIN:
            self._plain(path, contents, COMPARE, None, None)
        else:
            self._push(path, contents, COMPARE)

    def _instance(self, path: str, value: Any, kind: type) -> None:
        torch = self._torch
        if issubclass(kind, (torch.nn.Module, torch.optim.Optimizer)):
            how = PUT_BACK
        else:
            how = COMPARE if is_program_file(getattr(sys.modules.get(kind.__module__), "__file__", None)) else IGNORE
        attributes = getattr(value, "__dict__", None)
        if issubclass(kind, torch.utils.data.dataloader._MultiProcessingDataLoaderIter):
            self._leave_out([sent[1:] for sent in list(value._task_info.values())])
            attributes = {name: each for name, each in value.__dict__.items() if name not in SENT_AHEAD}
        if isinstance(attributes, dict):
            self._attributes(path, attributes, how, owner=attributes)
        for base in kind.__mro__:
            for name in getattr(base, "__slots__", ()) if isinstance(getattr(base, "__slots__", ()), tuple) else ():
                if isinstance(name, str) and hasattr(value, name):
                    self._push(f"{path}.{name}", getattr(value, name), IGNORE)

    def _leave_out(self, value: Any) -> None:
        """Tensors that get no name and need none."""
        if issubclass(type(value), self._torch.Tensor):
            self._names.setdefault(id(value), "sent ahead")
            self._kept.append(value)
        elif isinstance(value, dict | list | tuple):
            for each in value.values() if isinstance(value, dict) else value:
                self._leave_out(each)

    def _attributes(self, path: str, attributes: dict[str, Any], how: int, owner: Any) -> None:
        for name, each in list(attributes.items()):
            self._push(f"{path}.{name}", each, how, owner, name)

    # --- what is left -------------------------------------------------------------------------------------

    def _note_nameless(self) -> None:
        torch = self._torch
        known = {storage_of(tensor) for tensor in self._found.tensors.values()}
        for each in gc.get_objects():
            if not issubclass(type(each), torch.Tensor) or id(each) in self._names or id(each) in self._before:
                continue
            if storage_of(each) not in known and each.numel():
                self._found.nameless.append(each)


def storage_of(tensor: Any) -> int:
    """The identity of a tensor's storage; its own where it has none (sparse, say)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError, AttributeError):
        return id(tensor)


def _locals_of(frame: FrameType) -> dict[str, Any]:
    """A copy of a function's variables that leaves nothing behind.

    Up to Python 3.12 the frame keeps the dict it was asked for, and so would keep this step's tensors alive for as
    long as the function runs. It is emptied, unless the program has it too (it called `locals()`): Python
    fills it anew when it is asked for, and the variables themselves are elsewhere.
    """
    kept = frame.f_locals
    found = dict(kept)
    is_function = frame.f_code.co_flags & CO_OPTIMIZED  # in a class body the dict is the variables themselves
    if is_function and type(kept) is dict and sys.getrefcount(kept) <= REFERENCES:
        kept.clear()
    return found


def _public(names: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in names.items() if not name.startswith("__")}


def _unlike(roots: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Number the roots of one name, in their order."""
    counts: dict[str, int] = {}
    named = []
    for name, value in roots:
        counts[name] = counts.get(name, 0) + 1
        named.append((name if counts[name] == 1 else f"{name}#{counts[name]}", value))
    return named
