"""Calls that come before the guest's own constructor: a library of the program allocates while it is being loaded."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from carpool.wire import page as wire
from carpool.wire.page import Page
from tests.native.gpu import MIB, OUT_OF_MEMORY, Built, environment
from tests.native.probe import NATIVE, compile_c

EARLY = """
#include "driver.h"
CUresult cuInit(unsigned), cuDevicePrimaryCtxRetain(CUcontext *, CUdevice), cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
int early_results[3];
__attribute__((constructor)) static void begin(void) {
    CUcontext context;
    CUdeviceptr at;
    early_results[0] = cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context);
    early_results[1] = cuMemAlloc_v2(&at, 60u << 20);
    early_results[2] = cuMemAlloc_v2(&at, 60u << 20);
}
"""
MAIN = """
#include <stdio.h>
#include "driver.h"
extern int early_results[3];
CUresult cuMemGetInfo_v2(size_t *, size_t *);
int main(void) {
    size_t left = 0, total = 0;
    int result = cuMemGetInfo_v2(&left, &total);
    printf("%d %d %d ", early_results[0], early_results[1], early_results[2]);
    printf("%d %zu %zu\\n", result, left >> 20, total >> 20);
}
"""


@pytest.fixture
def program(built: Built, tmp_path: Path) -> Path:
    for name, text in (("early.c", EARLY), ("main.c", MAIN)):
        (tmp_path / name).write_text(text)
    driver, more = built.place / "libcuda.so.1", (f"-I{NATIVE}", "-Wl,--no-as-needed")
    early = compile_c(tmp_path / "libearly.so", "-shared", "-fPIC", *more, tmp_path / "early.c", driver)
    return compile_c(tmp_path / "program", *more, tmp_path / "main.c", early, driver)


def test_what_a_library_allocates_while_it_is_loaded_is_capped_and_counted(
    program: Path, built: Built, page: Page, books: Path, tmp_path: Path
) -> None:
    page.words[wire.H_CAP] = 100 * MIB
    env = environment(built, books, page=page.path) | {
        "LD_DEBUG": "files",
        "LD_DEBUG_OUTPUT": str(tmp_path / "order"),
    }
    done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == (f"0 0 {OUT_OF_MEMORY} 0 40 100\n", "")
    order = next(tmp_path.glob("order.*")).read_text()
    begins = [order.index(f"calling init: {library}") for library in (tmp_path / "libearly.so", built.guest)]
    assert begins == sorted(begins)  # its constructor does run before ours


def test_a_job_without_a_page_is_left_alone_before_its_constructor_too(
    program: Path, built: Built, books: Path
) -> None:
    done = subprocess.run([program], env=environment(built, books), capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("0 0 0 0 3976 4096\n", "")
