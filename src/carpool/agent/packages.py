"""Whether a module belongs to a package that people install, told by whole names and by where the package lies.

Carpool knows of some packages what they do with tensors. A program may have a module of its own with a name that
begins like one of theirs (`tensorboard_hist`), or even with the same name. Nothing is known of such a module.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

HOOKED = ("torch", "carpool")  # the hooks are on this torch, wherever it lies


def is_part_of(module: str, packages: Iterable[str]) -> bool:
    """Whether this is one of these modules, or lies in one, and is the one that was installed."""
    is_named = any(module == each or module.startswith(each + ".") for each in packages)
    return is_named and is_installed(module.partition(".")[0])


@functools.cache
def is_installed(package: str) -> bool:
    """Whether the loaded package of this name came with Python or with an installer, which left its metadata."""
    if package in HOOKED:
        return True
    spec = getattr(sys.modules.get(package), "__spec__", None)
    if spec is None or not spec.origin:
        return False
    directory = Path(spec.origin).resolve().parent
    if spec.submodule_search_locations:
        directory = directory.parent
    if package in sys.stdlib_module_names:
        return directory == Path(os.__file__).resolve().parent
    return any(directory.is_relative_to(place) for place in _installed_to(package, directory))


def _installed_to(package: str, directory: Path) -> list[Path]:
    """Where installers say that they put it: beside its metadata, or where its source is, if it can be edited."""
    from importlib.metadata import DistributionFinder, MetadataPathFinder

    path = [str(directory), *(each for each in sys.path if isinstance(each, str))]
    found = []
    for each in MetadataPathFinder.find_distributions(DistributionFinder.Context(name=package, path=path)):
        metadata = Path(str(each.locate_file(""))).resolve()
        if metadata == directory:
            found.append(directory)
        source = urlsplit(json.loads(each.read_text("direct_url.json") or "{}").get("url", ""))
        if source.scheme == "file":
            found.append(Path(unquote(source.path)).resolve())
    return found
