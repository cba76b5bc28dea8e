"""The CUDA guest under gcc's sanitizers: compiled into the probe, over a checked stand-in driver."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carpool.wire import messages as m
from carpool.wire import page as wire
from carpool.wire.page import PRICE_ONE, Page
from tests.agent.fake_daemon import FakeDaemon
from tests.native.gpu import GUEST, MIB, SHARED, Built, Probe, environment
from tests.native.probe import NATIVE, compile_c
from tests.native.test_gpu_turns import attach, job

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


SANITIZERS = ["undefined", "address,undefined", "thread"]


@pytest.fixture(scope="module", params=SANITIZERS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_checked(tmp_path_factory.mktemp("checked"), request.param)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    page = Page.create(tmp_path / "page")
    page.words[wire.H_CAP] = 300 * MIB
    yield page
    page.close()


@contextmanager
def clean(built: Built, env: dict[str, str], log: Path) -> Iterator[Probe]:
    """A probe whose end must be clean and whose sanitizer must have said nothing."""
    del env["LD_PRELOAD"]
    with Probe(built, env | {"ASAN_OPTIONS": "detect_leaks=0"}, log) as probe:
        yield probe
    said = log.read_text()
    if "unexpected memory mapping" in said:
        pytest.skip("this kernel's address layout is too random for ThreadSanitizer")
    assert (probe.process.returncode, said) == (0, "")


@pytest.fixture
def probe(built: Built, page: Page, tmp_path: Path) -> Iterator[Probe]:
    with clean(built, environment(built, tmp_path / "books", page=page.path), tmp_path / "log") as probe:
        yield probe


def test_all_kinds_threads_forks_and_refusals_are_clean(probe: Probe) -> None:
    for slot, how in enumerate(KINDS):
        assert probe.alloc(how, slot, 10 * 2 * MIB) == 0, how
        assert probe.alloc(how, 100, 400 * MIB) == 2, how
    for slot in range(len(KINDS)):
        assert probe.free(slot) == 0
    for line in ("churn 7 3000", "threads", "fork 1", "launch plain busy_1us", "capture 2 2 busy_1us", "sync"):
        probe.ask(line)
    assert probe.info()[1] == 300 * MIB
    assert probe.ask("reset")[0] == 0


def test_a_compute_limit_that_comes_changes_and_goes_is_clean(probe: Probe, page: Page) -> None:
    page.words[wire.H_PRICE] = 2 * PRICE_ONE
    for line in (
        "loop 50 1 busy_100us",
        "graphs 50 1 busy_100us",
        "capture 2 2 busy_1us",
        "beside 60",
        "context 4096",
    ):
        assert probe.ask(line)[0] == 0, line
    assert page.words[wire.H_DEVICE_NS] > 0
    probe.tell("launchers 600")
    for price in (4 * PRICE_ONE, 0, PRICE_ONE, 3 * PRICE_ONE):
        time.sleep(0.1)
        page.words[wire.H_PRICE] = price
    assert probe.answer()[0] == 0
    assert probe.ask("fork 1")[0] == 3  # the driver's own answer to a forked child
    assert probe.ask("reset")[0] == 0


@pytest.mark.parametrize("price", [0, 2 * PRICE_ONE])
def test_turns_of_four_threads_that_launch_are_clean(
    built: Built, daemon: FakeDaemon, tmp_path: Path, price: int
) -> None:
    daemon.words[wire.H_PRICE] = price
    with clean(built, job(built, daemon), tmp_path / "log") as probe:
        probe.tell("launchers 800")
        attach(daemon, probe)
        daemon.answer(m.Ask)
        for _ in range(8):
            time.sleep(0.05)
            daemon.recall()
            daemon.answer_return()
        assert probe.answer()[0] == 0
