"""Runs a module or a script and notes which modules of carpool run when: `python -m carpool.testing.house.traced`.

    python -m carpool.testing.house.traced FOLDER ROLE MODULE-OR-SCRIPT [ARGUMENTS]

The notes go to FOLDER/ROLE.json when the process ends: [nanoseconds, module] for every change of module in the main
thread, by the clock that all processes of a machine share. A script marks a moment with `mark("asks")`.
"""

from __future__ import annotations

import atexit
import json
import runpy
import sys
import time
from pathlib import Path
from types import BuiltinFunctionType, FrameType

PACKAGE = Path(__file__).parents[2]
NOTES_MAX = 1_000_000
notes: list[tuple[int, str]] = []
_names: dict[str, str | None] = {}
_imports = 0  # how deep in imports the main thread is


def mark(what: str) -> None:
    """Note this moment."""
    notes.append((time.monotonic_ns(), f"mark {what}"))


def _name_of(file: str) -> str | None:
    if file not in _names:
        is_ours = file.startswith(f"{PACKAGE}/") and "/testing/house/" not in file
        _names[file] = ".".join(Path(file).relative_to(PACKAGE).with_suffix("").parts) if is_ours else None
    return _names[file]


def _note(frame: FrameType, what: str, argument: object) -> None:
    global _imports
    code = frame.f_code
    if code.co_name == "_find_and_load":  # what runs while a module is loaded is no part of the walk
        _imports += (what == "call") - (what == "return")
    if _imports:
        return
    name: str | None = None
    if what == "call":
        name = _name_of(code.co_filename)
    elif what == "c_call" and isinstance(argument, BuiltinFunctionType):
        module = argument.__module__ or type(argument.__self__).__module__
        name = "native.hot_path" if module.startswith("carpool._native") else None
    if name is not None and (not notes or notes[-1][1] != name) and len(notes) < NOTES_MAX:
        notes.append((time.monotonic_ns(), name))


def main() -> None:
    folder, role, target = sys.argv[1:4]
    atexit.register(lambda: (Path(folder) / f"{role}.json").write_text(json.dumps(notes)))
    sys.modules["carpool.testing.house.traced"] = sys.modules["__main__"]  # one list of notes for `mark` too
    sys.argv = [target, *sys.argv[4:]]
    sys.setprofile(_note)
    if target.endswith(".py"):
        runpy.run_path(target, run_name="__main__")
    else:
        runpy.run_module(target, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
