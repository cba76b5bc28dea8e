"""constraints.txt pins everything that `make setup` installs, so that two set-ups are the same."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
EXTRAS = re.search(r"-e '\.\[(.+?)\]'", (ROOT / "Makefile").read_text())

OF_CUDA = ("nvidia-", "triton", "cuda-toolkit")  # what only a CUDA build of torch brings; it pins these itself


def groups() -> list[list[str]]:
    """The pinned names of the file's two parts."""
    parts = (ROOT / "constraints.txt").read_text().split("\n\n")
    return [[line.split("==")[0] for line in part.splitlines() if not line.startswith("#")] for part in parts]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonicalize_name(name): pin for name, _, pin in (line.partition("==") for line in lines) if pin}


def required() -> set[str]:
    """Everything that carpool with the extras of `make setup` brings along, here and now."""
    assert EXTRAS is not None
    found: set[tuple[str, str]] = set()
    to_see = [("carpool", extra) for extra in EXTRAS[1].split(",")]
    while to_see:
        name, extra = to_see.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for line in distribution(name).requires or ():
            wanted = Requirement(line)
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                below = canonicalize_name(wanted.name)
                to_see += [(below, each) for each in {"", *wanted.extras}]
    return {name for name, _ in found} - {"carpool"}


def test_everything_that_is_installed_is_pinned_to_the_version_it_has() -> None:
    pinned = pins()
    names = {name for name in required() if name in pinned or not name.startswith(OF_CUDA)}
    assert {name: Version(distribution(name).version).public for name in names}.items() <= pinned.items()


def test_nothing_is_pinned_that_nothing_needs() -> None:
    missing = set(pins()) - required()
    assert all(not is_installed(name) for name in missing), missing


def is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def test_the_pins_are_sorted_and_ours_come_first() -> None:
    ours, brought = groups()
    for names in (ours, brought):
        assert names == sorted(names, key=canonicalize_name)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    assert {canonicalize_name(name) for name in ours} == {
        canonicalize_name(Requirement(line).name) for lines in lists for line in lines
    }
    assert "torch==2.13.0\n" in (ROOT / "constraints.txt").read_text(), "without a local version: any build of it"
