"""The CUDA guest on 64-bit ARM (Grace, Jetson): cross-compiled, and run in an emulator on the stand-in driver."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from carpool.wire import page as wire
from carpool.wire.page import Page
from tests.native import gpu
from tests.native.gpu import MIB, OUT_OF_MEMORY, Built, Probe, environment, live_bytes

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
ROOT = Path("/usr/aarch64-linux-gnu")  # where Debian's cross compilers keep the other machine's libraries

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Built:
    if not (shutil.which(COMPILER) and shutil.which(EMULATOR) and ROOT.exists()):
        pytest.skip(
            f"no {COMPILER} or no {EMULATOR}: the CUDA guest is NOT tested on ARM;"
            " apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
        )
    place = tmp_path_factory.mktemp("arm")
    gpu.compile_all(place, COMPILER)
    return gpu.built_in(place)


@pytest.mark.parametrize("door", ["link", "dlsym", "path", "proc", "thread"])
def test_the_cap_holds_through_every_door(arm: Built, page: Page, tmp_path: Path, door: str) -> None:
    page.words[wire.H_CAP] = 64 * MIB
    env = environment(arm, tmp_path / "books", page=page.path)
    inside = ",".join(f"{name}={env.pop(name)}" for name in ("LD_PRELOAD", "LD_LIBRARY_PATH"))
    env |= {"QEMU_LD_PREFIX": str(ROOT), "QEMU_SET_ENV": inside}
    emulated = replace(arm, probe=Path(shutil.which(EMULATOR) or EMULATOR))
    more = [str(arm.place / "libcuda.so.1")] if door == "path" else []
    with Probe(emulated, env, tmp_path / "log", str(arm.probe), door, *more) as probe:
        assert probe.info() == (64 * MIB, 64 * MIB)
        for slot, how in enumerate(["plain", "async", "vmm", "array", "graph"]):
            assert probe.alloc(how, slot, 4 * MIB) == 0
        assert probe.alloc("plain", 9, 60 * MIB) == OUT_OF_MEMORY
        assert probe.ask("launch plain 0 busy_1us")[0] == probe.ask("sync")[0] == 0
        assert live_bytes(page, probe.pid) >= 16 * MIB
        for slot in range(4):
            assert probe.free(slot) == 0
        assert probe.said() == ""
