"""Kill -9 at every instruction of the CUDA guest: whatever a process was doing, the books of the others are right."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from carpool.wire import page as wire
from carpool.wire.page import Page
from tests.native.gpu import MIB, OUT_OF_MEMORY, Built, environment
from tests.native.probe import NATIVE, compile_c

NOT_ALLOWED = 77
SECONDS = 70  # the killer gives up by itself after 60; it takes one to five
# What is called, how many instructions of the guest that is at least, and what the driver or the guest answers.
CALLS = {
    "first": (500, 0),  # the first allocation of a process: it claims its slot
    "alloc": (150, 0),
    "refused": (300, OUT_OF_MEMORY),
    "bury": (300, 0),  # room is only found where a dead process's bytes are taken back
    "free": (80, 0),
    "async": (150, 0),
    "free_async": (80, 0),
    "create": (200, 0),
    "release": (150, 0),
    "launch": (400, 0),  # under a compute limit, and never measured
    "exit": (100, 0),
}


@pytest.fixture(scope="module")
def killer(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if platform.machine() != "x86_64":  # where an atomic is a loop of two instructions, stepping never gets out of it
        pytest.skip("single steps are only known to work on x86-64: kills at every instruction are NOT tried")
    place = tmp_path_factory.mktemp("kills")
    return compile_c(place / "gpu_kills", NATIVE / "tests" / "gpu_kills.c", built.place / "libcuda.so.1")


@pytest.mark.slow
@pytest.mark.timeout(90)
@pytest.mark.parametrize("call", CALLS)
def test_a_kill_at_any_instruction_of_the_guest_leaves_right_books(
    built: Built, killer: Path, page: Page, books: Path, call: str
) -> None:
    page.words[wire.H_CAP] = 100 * MIB  # CAP of gpu_kills.c
    page.words[wire.H_PRICE] = wire.PRICE_ONE if call == "launch" else 0
    env = environment(built, books, page=page.path) | {"LD_BIND_NOW": "1"}
    done = subprocess.run([killer, call], env=env, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode == NOT_ALLOWED:
        pytest.skip("this machine lets nobody trace a process: kills at every instruction are NOT tried")
    assert (done.returncode, done.stderr) == (0, "")
    kills, hits, result = map(int, done.stdout.split())
    least, expected = CALLS[call]
    assert kills == hits >= least, "every one was killed where it was meant to be"
    assert result == expected
