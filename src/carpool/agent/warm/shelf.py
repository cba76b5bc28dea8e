"""The modules that a warm parent imported, put away until the program imports them itself.

A program finds `sys.modules` as it is at the start of any Python. Its own `import torch` takes the ready module from
the shelf, with all that it imports, and only then are carpool's hooks installed, as in a cold start. Who imports whom
is noted while the parent imports.

Rules
  V11 A module is taken from the shelf only if the program's own search would find the same file. Where it would not,
      torch would have the other one, too: the program is started again, cold, if it has done nothing yet; else it is
      told, and has its own module beside a torch that has the parent's.
  V12 What was read while the modules were imported is still what the program has when it imports them: a program that
      sets OMP_NUM_THREADS before `import torch` means it. It is started again as well, or told.
  V17 The bytes of an import count from when the program imports the same, as in a cold start. So does the refusal of
      an import for which its cap leaves no room.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from types import ModuleType
from typing import Any

from carpool.agent import boot

HEAD_BYTES, DICT_BYTES = 16, 48  # of objects in CPython 3.11 to 3.13
NOT_SHELVED = {"carpool", "__main__", "sitecustomize"}


@dataclass(slots=True)
class Root:
    """A module that the parent was told to import, with what its import left behind elsewhere."""

    counted_bytes: int  # by the meter
    filters: list[Any]  # of warnings


class Shelf:
    """A finder that hands out what was imported before."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}
        self._imports: dict[str, set[str]] = {}  # a module to those that it imports
        self._roots: dict[str, Root] = {}
        self._ready: dict[str, dict[str, ModuleType]] = {}  # by root: it and all that it imports beside its package
        self._before: frozenset[str] = frozenset()  # names in sys.modules at the start of a program
        self._with_torch: dict[str, ModuleType] = {}  # sys.modules of a program that imports torch and nothing else
        self._taken: set[str] = set()  # roots that the program has imported
        self._seen: set[str] = set()  # what is there at the start of every Python
        self._filters: list[Any] = []
        self._path: list[str] = []
        self._is_asking = False
        self._is_open = False  # the program has begun
        self._is_untouched = True
        self.on_other: Callable[[str, str], None] = lambda *_: None  # the program has another module than the parent
        self.before_first: Callable[[], None] = lambda: None  # the program takes the first of what others wrote

    # --- in the parent ----------------------------------------------------------------------------------

    def fill(self, names: Sequence[str]) -> None:
        """Import these; those that are not installed are left out, but for torch."""
        self._seen = set(sys.modules)
        self._filters = list(warnings.filters)
        real = builtins.__import__
        builtins.__import__ = self._noting(real)
        try:
            for name in names:
                self._fill(name)
        finally:
            builtins.__import__ = real
        self._shelve()

    def _shelve(self) -> None:
        new = {name: module for name, module in sys.modules.items() if name not in self._seen}
        self._modules = {name: new[name] for name in new if name.partition(".")[0] not in NOT_SHELVED}

    def _fill(self, name: str) -> None:
        before, filters, counted = set(sys.modules), list(warnings.filters), _meter("carpool_counted")
        try:
            importlib.import_module(name)
        except ImportError:
            if name == "torch":
                raise
            return
        added = [each for each in warnings.filters if each not in filters]
        self._roots[name] = Root(max(0, _meter("carpool_counted") - counted), added)
        # What nobody was seen to import came by importlib, for whoever was imported then.
        self._imports.setdefault(name, set()).update(set(sys.modules) - before - self._reach([name]))

    def _noting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def note(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
            module = real(name, globals, locals, fromlist, level)
            importer = (globals or {}).get("__name__")
            if isinstance(importer, str):
                full = resolve_name("." * level + name, globals.get("__package__") or importer) if level else name
                parts = (f"{full}.{part}" for part in fromlist or ())
                self._imports.setdefault(importer, set()).update(
                    {full, *(each for each in parts if each in sys.modules)}
                )
            return module

        return note

    def _reach(self, names: Iterable[str]) -> set[str]:
        """These modules with the packages they are in and all that they import."""
        found: set[str] = set()
        rest = list(names)
        while rest:
            name = rest.pop()
            if name and name not in found:
                found.add(name)
                rest += [name.rpartition(".")[0], *self._imports.get(name, ())]
        return found

    def module(self, name: str) -> Any:
        """One of them, whether or not it was put away; None if it is not among them."""
        return self._modules.get(name)

    def top_names(self) -> set[str]:
        return {name.partition(".")[0] for name in self._modules}

    def put_away(self) -> None:
        """From now on nothing was imported, as far as programs can see. In the parent, once: a program that touched
        every module to put it away would have a page of its own for each."""
        self._shelve()  # some came since, with what was rehearsed
        for root in self._roots:
            brought = self._ready.get(root.rpartition(".")[0], {})  # by the package, which is imported before
            names = (name for name in self._reach([root]) if name in self._modules and name not in brought)
            self._ready[root] = {name: self._modules[name] for name in names}
        for name in self._modules:
            sys.modules.pop(name, None)
        self._before = frozenset(sys.modules)
        self._with_torch = sys.modules | self._ready.get("torch", {})
        self._set_filters(self._filters)
        sys.meta_path.insert(0, self)

    # --- in the program -----------------------------------------------------------------------------------

    def open(self) -> None:
        """The program begins, and its path is known."""
        for name in sys.modules.keys() & self._modules.keys():  # what handlers of forks asked for
            del sys.modules[name]
        self._path = list(sys.path)
        self._is_open = True

    def _set_filters(self, filters: Sequence[Any]) -> None:
        warnings.filters[:] = filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        module = self._modules.get(name)
        if module is None or self._is_asking or name in sys.modules:
            return None
        if not self._is_open:
            return _spec_of(module, lambda: None)
        other = self._other(name, module, path)
        if other is not None:
            self.on_other(name, other)
            self._modules.pop(name, None)
            return None
        return _spec_of(module, lambda: self._take(name))

    def _other(self, name: str, module: ModuleType, path: Sequence[str] | None) -> str | None:
        """Where the program finds another module of this name (V11). Nobody looks while its path is as it was."""
        if sys.path == self._path or path is not None:
            return None
        self._is_asking = True
        try:
            found = PathFinder.find_spec(name)
        finally:
            self._is_asking = False
        if found is None or found.origin == getattr(module.__spec__, "origin", None):
            return None
        return str(found.origin)

    def _take(self, name: str) -> None:
        """Put this module and all that it imports into sys.modules; what the program imported meanwhile stays."""
        wanted = self._ready.get(name)
        if wanted is None:
            wanted = {each: self._modules[each] for each in self._reach([name]) if each in self._modules}
        roots = [root for root in self._roots if root in wanted and root not in self._taken]
        if self._is_untouched and (roots or any(_is_others(each) for each in wanted)):
            self.before_first()
            self._is_untouched = False
        if "torch" in roots and (trouble := boot.lacks_room()):
            raise MemoryError(trouble)
        self._deliver(wanted, has_torch="torch" in roots)
        self._taken.update(roots)
        for root in roots:
            _meter("carpool_took", self._roots[root].counted_bytes)
            self._set_filters([*self._roots[root].filters, *warnings.filters])
        if "torch" in roots:
            boot.install_hooks(sys.modules["torch"])

    def _deliver(self, wanted: Mapping[str, ModuleType], *, has_torch: bool) -> None:
        """Into sys.modules; each module that is touched for that is a page of the program's own."""
        if has_torch:
            own = dict(sys.modules)
            exchange(sys.modules, self._with_torch)
            for name in self._before - own.keys():
                del sys.modules[name]
            sys.modules.update(own)
            if wanted is self._ready["torch"]:
                return
        for name, module in wanted.items():
            sys.modules.setdefault(name, module)


def exchange(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Let two dictionaries have each other's contents. Python would count a reference to each of them, and a program
    would copy as many pages: modules lie far apart. A dictionary is a head of two words and four of contents."""
    if dict.__basicsize__ != DICT_BYTES or object.__basicsize__ != HEAD_BYTES:  # another Python than these words know
        mine = dict(one)
        one.clear()
        one.update(other)
        other.clear()
        other.update(mine)
        return
    places, size = (id(one) + HEAD_BYTES, id(other) + HEAD_BYTES), DICT_BYTES - HEAD_BYTES
    contents = [ctypes.string_at(place, size) for place in places]
    ctypes.memmove(places[0], contents[1], size)
    ctypes.memmove(places[1], contents[0], size)


def _is_others(name: str) -> bool:
    return name.partition(".")[0] not in sys.stdlib_module_names


def _meter(function: str, counted_bytes: int = 0) -> int:
    """Call the byte meter; 0 where there is none."""
    call = getattr(ctypes.CDLL(None), function, None)
    if call is None:
        return 0
    call.restype, call.argtypes = ctypes.c_uint64, [ctypes.c_uint64]
    return int(call(counted_bytes))


def _spec_of(module: ModuleType, take: Callable[[], None]) -> ModuleSpec:
    real = module.__spec__
    loader: Any = _Ready(module, real, take)
    if real is None:
        return ModuleSpec(module.__name__, loader)
    spec = ModuleSpec(real.name, loader, origin=real.origin)
    spec.submodule_search_locations = real.submodule_search_locations
    spec.has_location = real.has_location
    spec.cached = real.cached
    return spec


class _Ready:
    """Loads a module that is ready."""

    def __init__(self, module: ModuleType, spec: ModuleSpec | None, take: Callable[[], None]) -> None:
        self._module = module
        self._spec = spec
        self._take = take

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        self._take()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spec.loader if self._spec is not None else None, name)


def has_shadow(directory: str, names: set[str]) -> str:
    """A file in the program's directory that its imports would find before what the parent has; empty if none."""
    try:
        entries = os.listdir(directory)
    except OSError:
        return ""
    for entry in entries:
        stem, _, ending = entry.partition(".")
        if stem not in names:
            continue
        is_module = ending == "py" or ending.endswith(("so", "pyc"))
        if is_module or os.path.exists(os.path.join(directory, entry, "__init__.py")):
            return os.path.join(directory, entry)
    return ""
