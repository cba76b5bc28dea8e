"""What must be the same where a checkpoint goes on: versions, command line, sources, and the first random states."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from carpool import __version__
from carpool.agent.checkpoint.tensor_names import is_program_file
from carpool.errors import RefusedError
from carpool.wire.checkpoint import digest_of


def facts(torch: Any) -> dict[str, Any]:
    """What must be the same where the checkpoint goes on."""
    return {
        "carpool": __version__,
        "torch": str(torch.__version__),
        "python": ".".join(map(str, sys.version_info[:2])),
        "argv": sys.orig_argv[1:],
        "kind": os.environ.get("CARPOOL_DEVICE_KIND", "cpu"),
        "hash_seed": os.environ.get("PYTHONHASHSEED", ""),
        "sources": _sources(),
    }


def _sources() -> dict[str, str]:
    """A hash of each of the program's own files."""
    found = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if type(module) is ModuleType and isinstance(file, str) and is_program_file(file):
            with contextlib.suppress(OSError):
                found[name] = digest_of(Path(file))
    return found


def compare_sources(there: dict[str, str]) -> None:
    here = _sources()
    for name in [*there, *here]:
        if here.get(name) != there.get(name):
            raise RefusedError(f"its file of module {name} is another than when it was recorded")


def first_random_states(torch: Any) -> dict[str, Any]:
    """The random states the program starts with: nobody has to seed them."""
    version, words, gauss = random.getstate()
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else None
    return {
        "torch": torch.get_rng_state().tolist(),
        "python": [version, list(words), gauss],
        "numpy": [state[0], state[1].tolist(), *state[2:]] if state is not None else None,
    }


def set_first_random_states(torch: Any, begun: dict[str, Any]) -> None:
    torch.set_rng_state(torch.tensor(begun["torch"], dtype=torch.uint8))
    version, words, gauss = begun["python"]
    random.setstate((version, tuple(words), gauss))
    numpy = sys.modules.get("numpy")
    if numpy is not None and begun["numpy"] is not None:
        kind, numbers, *rest = begun["numpy"]
        numpy.random.set_state((kind, numpy.array(numbers, dtype=numpy.uint32), *rest))


def refusal_of(torch: Any, contents: dict[str, Any], how: str) -> str:
    """Why this process cannot go on from the checkpoint; empty if it may try."""
    here = facts(torch)
    for name, words in (
        ("carpool", "carpool"),
        ("torch", "torch"),
        ("python", "Python"),
        ("argv", "command line"),
        ("kind", "kind of device"),
        ("hash_seed", "PYTHONHASHSEED"),
    ):
        if here[name] != contents[name]:
            return f"it was made with {words} {contents[name]}, this is {here[name]}"
    if contents["unskippable"] and how != "recompute":
        return f"the steps of this program cannot be skipped ({contents['unskippable']}); use --recompute"
    return ""
