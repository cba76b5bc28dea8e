"""What tests of several parts share, and the order of their files."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.alone import Alone
from tests.native.gpu import Built, build

# Programs inherit it: a shell ignores Ctrl-C and Ctrl-\ for what it starts in the background.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# Programs inherit this too. Some virtual machines say that they have AMX and do not: oneDNN's products of bfloat16
# die there of an illegal instruction, with carpool and without.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The CUDA guest, the stand-in driver and the probe, compiled once a run."""
    return build(directory_of_the_run(tmp_path_factory) / "gpu")


def directory_of_the_run(factory: pytest.TempPathFactory) -> Path:
    """A directory that all processes which run tests have in common."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def alone() -> Iterator[Alone]:
    """Programs as they run without carpool, by one process that imported torch once a run."""
    made = Alone()
    yield made
    made.close()


@pytest.fixture(scope="module", autouse=True)
def no_thread_of_ours_is_left() -> Iterator[None]:
    """A thread that a file of tests leaves behind is a thread of the next file's program: that one is not parked."""
    before = set(threading.enumerate())
    yield
    until = time.monotonic() + 10
    while (
        left := [each.name for each in set(threading.enumerate()) - before if _is_ours(each)]
    ) and time.monotonic() < until:
        time.sleep(0.01)
    assert not left, f"these threads of carpool still run: {left}"


def _is_ours(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    return getattr(target, "__module__", type(thread).__module__).startswith("carpool")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that may take longest come first: else the last one runs while the other cores have nothing to do."""
    limits: dict[str, float] = {}
    for item in items:
        file = item.nodeid.partition("::")[0]
        limits[file] = max(limits.get(file, 0), _seconds_allowed(item))
    items.sort(key=lambda item: -limits[item.nodeid.partition("::")[0]])


def _seconds_allowed(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return float(marker.args[0])
    return 1.0 if item.get_closest_marker("slow") is not None else 0.0
