"""The CUDA guest under gcc's sanitizers: compiled into the probe, over a checked stand-in driver."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from carpool.wire import page as wire
from carpool.wire.page import Page
from tests.native.gpu import GUEST, MIB, SHARED, Built, Probe, environment
from tests.native.probe import NATIVE, compile_c

pytestmark = pytest.mark.slow
KINDS = ["plain", "pitch", "managed", "async", "pool", "vmm", "mapped", "array", "mipmap", "external", "graph"]


def build_checked(place: Path, sanitizer: str) -> Built:
    checked = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-g", "-O1"]
    nothing = place / "nothing.c"
    nothing.write_text("int main(void) { return 0; }\n")
    tried = subprocess.run(["cc", *checked, nothing, "-o", place / "nothing"], capture_output=True, timeout=60)
    if tried.returncode or subprocess.run([place / "nothing"], capture_output=True, timeout=60).returncode:
        pytest.skip(f"this toolchain has no working -fsanitize={sanitizer}: the guest is NOT checked with it")
    driver = place / "libcuda.so.1"
    link = "-Wl,-Bsymbolic,-soname,libcuda.so.1"
    compile_c(driver, *SHARED, *checked, NATIVE / "fake" / "cuda.c", link)
    probe = NATIVE / "tests" / "gpu_probe.c"
    program = compile_c(place / "checked", *checked, "-DWITHOUT_DLSYM", "-rdynamic", probe, *GUEST, driver)
    return Built(place=place, guest=place / "none", probe=program)


@pytest.mark.parametrize("sanitizer", ["undefined", "address,undefined", "thread"])
def test_all_kinds_threads_forks_and_refusals_are_clean(tmp_path: Path, sanitizer: str) -> None:
    built = build_checked(tmp_path, sanitizer)
    page = Page.create(tmp_path / "page")
    page.words[wire.H_CAP] = 300 * MIB
    env = environment(built, tmp_path / "books", page=page.path) | {"ASAN_OPTIONS": "detect_leaks=0"}
    del env["LD_PRELOAD"]
    try:
        with Probe(built, env, tmp_path / "log") as probe:
            for slot, how in enumerate(KINDS):
                assert probe.alloc(how, slot, 10 * 2 * MIB) == 0, how
                assert probe.alloc(how, 100, 400 * MIB) == 2, how
            for slot in range(len(KINDS)):
                assert probe.free(slot) == 0
            for line in (
                "churn 7 3000",
                "threads",
                "fork 1",
                "launch plain busy_1us",
                "capture 2 2 busy_1us",
                "sync",
            ):
                probe.ask(line)
            assert probe.info()[1] == 300 * MIB
            assert probe.ask("reset")[0] == 0
        said = (tmp_path / "log").read_text()
        if "unexpected memory mapping" in said:
            pytest.skip("this kernel's address layout is too random for ThreadSanitizer")
        assert (probe.process.returncode, said) == (0, "")
    finally:
        page.close()
