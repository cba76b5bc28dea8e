"""The CUDA guest, the stand-in driver and the probe: how tests build them, start them and look at their books."""

from __future__ import annotations

import fcntl
import os
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import socket

import pytest

from carpool.bench.shares import read_books, read_busy_ns
from carpool.wire import page as wire
from carpool.wire.page import Page, slot_base
from tests.native import probe
from tests.native.probe import NATIVE, compile_c

SHARED = ["-shared", "-fPIC", "-fvisibility=hidden"]
GUEST = [NATIVE / name for name in ("hooks.c", "resolve.c", "budget.c", "link.c", "share.c")]
MIB = 1 << 20
OUT_OF_MEMORY = 2
CHUNK = 2 * MIB


@dataclass(frozen=True)
class Built:
    place: Path  # holds libcuda.so.1 and libnvidia-ml.so.1
    guest: Path
    probe: Path


def link_options(library: str) -> list[str]:
    """How a library of ours is linked when carpool is installed."""
    settings = tomllib.loads((NATIVE.parent / "pyproject.toml").read_text())["tool"]["setuptools"]
    modules = {module["name"]: module for module in settings["ext-modules"]}
    return list(modules[f"carpool._native.{library}"].get("extra-link-args", []))


def build(place: Path) -> Built:
    """Everything compiled into this directory, by whoever comes first; skips loudly where there is no compiler."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler 'cc': the CUDA guest is NOT tested; install gcc")
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            draft = place.with_suffix(".draft")
            shutil.rmtree(draft, ignore_errors=True)  # of somebody who failed
            draft.mkdir()
            compile_all(draft)
            draft.rename(place)
    return built_in(place)


def built_in(place: Path) -> Built:
    return Built(place=place, guest=place / "gpu.so", probe=place / "gpu_probe")


def compile_all(place: Path, compiler: str = "cc") -> None:
    for name, soname in (("cuda", "libcuda.so.1"), ("nvml", "libnvidia-ml.so.1")):
        link = f"-Wl,-Bsymbolic,-soname,{soname}"
        compile_c(place / f"stub_{name}.so", *SHARED, NATIVE / "fake" / f"{name}.c", link, compiler=compiler)
        for link in (soname, soname.removesuffix(".1")):
            (place / link).symlink_to(f"stub_{name}.so")
    compile_c(place / "gpu.so", *SHARED, *GUEST, *link_options("gpu"), compiler=compiler)
    compile_c(place / "gpu_probe", NATIVE / "tests" / "gpu_probe.c", place / "libcuda.so.1", compiler=compiler)


def environment(built: Built, books: Path, *, cards: str = "1x4GiB", page: Path | None = None) -> dict[str, str]:
    """What a process needs to find the stand-in, and the guest if there is a page."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CARPOOL", "LD_", "CUDA"))}
    env = kept | {
        "LD_LIBRARY_PATH": str(built.place),
        "LD_PRELOAD": str(built.guest),
        "CARPOOL_STUB": cards,
        "CARPOOL_STUB_FILE": str(books),
        "CARPOOL_STUB_CONTEXT": "0",  # what these tests count is what programs ask for
    }
    if page is not None:
        env |= {"CARPOOL_PAGE": str(page), "CARPOOL_IS_CAPPED": "1"}
    return env


class Probe(probe.Probe):
    """One running probe; answers are (the driver's code, a number)."""

    def __init__(
        self,
        built: Built,
        env: dict[str, str],
        log: Path,
        door: str = "link",
        *more: str,
        sockets: Sequence[socket] = (),
    ) -> None:
        """`sockets`: where it exports memory to, and imports from."""
        fds = [each.fileno() for each in sockets]
        super().__init__([built.probe, door, *more], env | {"PROBE_SOCKETS": " ".join(map(str, fds))}, log, keeps=fds)
        self.result, self.pid = self.first

    def alloc(self, how: str, slot: int, size: int) -> int:
        return self.ask(f"alloc {how} {slot} {size}")[0]

    def free(self, slot: int, *, is_async: bool = False) -> int:
        return self.ask(f"free {slot} {int(is_async)}")[0]

    def info(self) -> tuple[int, int]:
        """Free and total bytes as the program sees them."""
        return self.ask("info 0")[1], self.ask("info 1")[1]


def true_bytes(books: Path, card: int = 0) -> dict[int, int]:
    """Bytes each process holds on a card, by the stand-in's own books."""
    return {pid: held for pid, (held, *_) in read_books(books, card).items()}


def busy_ns(books: Path, pid: int, card: int = 0) -> int:
    """Device time a process has used, by the stand-in's own books; what is launched counts at once."""
    return read_busy_ns(books, card).get(pid, 0)


def live_bytes(page: Page, pid: int) -> int:
    """Bytes the guest counts for a process; -1 if it has no slot."""
    slot = page.slot_of(pid)
    return -1 if slot is None else page.words[slot_base(slot) + wire.S_LIVE]
