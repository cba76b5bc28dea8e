"""Other people's CUDA programs, unmodified, on the stand-in GPU: bare, and under `carpool run --memory`, where
every figure they can ask for must be the cap's. The programs are
tests/programs/client_*.py; each prints what it saw as JSON."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.node import PROGRAMS, Node
from tests.native.gpu import Built, Probe, environment

pytestmark = pytest.mark.slow
CARD, CAP = 4096, 1024  # MiB
NEEDED = {
    "nvml": "pynvml",
    "figures": "pynvml",
    "nvitop": "nvitop",
    "bindings": "cuda.bindings",
    "core": "cuda.core",
    "numba": "numba_cuda",
}
OUT_OF_MEMORY = 2


@pytest.fixture(scope="module")
def node(module_node: Node, built: Built) -> Node:
    module_node.use_whole_torch()  # numba's own start-up too
    module_node.use_stand_in(built.place)
    module_node.start(device="stub:4GiB")
    return module_node


def need(client: str) -> None:
    package = NEEDED[client]
    try:
        is_here = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package above it
        is_here = False
    if not is_here:
        pytest.skip(
            f"{package} is not installed: that client is NOT tested; pip install -c constraints.txt '.[clients]'"
        )


def run_bare(built: Built, books: Path, client: str, *arguments: str) -> dict[str, Any]:
    need(client)
    env = environment(built, books, cards="2x4GiB")
    del env["LD_PRELOAD"]
    command = [sys.executable, str(PROGRAMS / f"client_{client}.py"), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_capped(node: Node, client: str, *arguments: str) -> dict[str, Any]:
    need(client)
    done = node.run(f"client_{client}.py", *arguments, options=["--name", client, "--memory", f"{CAP}MiB"]).wait()
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.lines[-1])
    return found


# nvidia-ml-py


def test_nvidia_ml_py_on_the_stand_in(built: Built, tmp_path: Path) -> None:
    books = tmp_path / "books"
    with Probe(built, environment(built, books, cards="2x4GiB"), tmp_path / "log") as probe:
        assert probe.alloc("plain", 0, 300 << 20) == 0
        assert probe.ask("loop 200 1 busy_10ms")[0] == 0
        found = run_bare(built, books, "nvml", "busy")
        assert found["count"] == 2
        assert found["totals"] == [CARD] * 3
        assert (found["frees"], found["useds"]) == ([CARD - 300] * 2, [300] * 2)
        assert found["processes"] == [[probe.pid, 300]]
        ((pid, share),) = found["busy"]
        assert pid == probe.pid and 1 <= share <= 100
        assert found["fan"] == "not supported"


def test_nvidia_ml_py_sees_the_cap_in_every_query(node: Node) -> None:
    found = run_capped(node, "nvml")
    assert found["totals"] == [CAP] * 3
    assert (found["frees"], found["useds"]) == ([CAP] * 2, [0] * 2)


def test_nvidia_ml_py_finds_no_size_larger_than_the_cap(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(node.environment, "CARPOOL_STUB_RARE", "1")
    found = run_capped(node, "figures", "0")
    assert len(found) > 20
    assert {size for figures in found.values() for size in figures} == {0, CAP}


# nvitop


def test_nvitop_on_the_stand_in(built: Built, tmp_path: Path) -> None:
    books = tmp_path / "books"
    with Probe(built, environment(built, books, cards="2x4GiB"), tmp_path / "log") as probe:
        assert probe.alloc("plain", 0, 300 << 20) == 0
        found = run_bare(built, books, "nvitop")
        assert (found["total"], found["used"], found["free"]) == (CARD, 300, CARD - 300)
        assert found["processes"] == {str(probe.pid): 300}
    assert "300.0MiB / 4096MiB" in found["shown"]
    assert found["errors"] == ""


def test_nvitop_shows_a_card_of_the_caps_size(node: Node) -> None:
    found = run_capped(node, "nvitop")
    assert (found["total"], found["used"], found["free"]) == (CAP, 0, CAP)
    assert f"0B / {CAP}MiB" in found["shown"]


# cuda-bindings


def check_bindings(found: dict[str, Any], mib: int) -> None:
    assert found["totals"] == [mib] * 2
    assert found["free"] == mib
    assert len(found["seconds"]) == 7
    assert found["sum"] == 1000  # the kernel ran


def test_cuda_bindings_on_the_stand_in(built: Built, tmp_path: Path) -> None:
    found = run_bare(built, tmp_path / "books", "bindings", "3000")
    check_bindings(found, CARD)
    assert found["seconds"].pop("managed") == "CUDA_SUCCESS"  # what does not fit the card stays on the host
    assert set(found["seconds"].values()) == {"CUDA_ERROR_OUT_OF_MEMORY"}


def test_cuda_bindings_are_refused_beyond_the_cap_whatever_they_allocate(node: Node) -> None:
    found = run_capped(node, "bindings", "600")
    check_bindings(found, CAP)
    assert set(found["seconds"].values()) == {"CUDA_ERROR_OUT_OF_MEMORY"}


# cuda-core


def check_core(found: dict[str, Any], mib: int) -> None:
    assert found["total"] == mib
    assert found["used"] == {"default": 64, "managed": 64, "virtual": 64, "pinned": 0}
    assert "CUDA_ERROR_OUT_OF_MEMORY" in found["refusal"]
    assert 20 <= found["kernel_ms"] < 200
    assert 60 <= found["graph_ms"] < 400


def test_cuda_core_on_the_stand_in(built: Built, tmp_path: Path) -> None:
    check_core(run_bare(built, tmp_path / "books", "core", "3000"), CARD)


def test_cuda_core_is_refused_beyond_the_cap(node: Node) -> None:
    check_core(run_capped(node, "core", "600"), CAP)


# numba-cuda


def check_numba(found: dict[str, Any], mib: int, size: int) -> None:
    assert found["is_same"]
    assert (found["total"], found["free"]) == (mib, mib - 1)  # its array of 8,000 bytes
    assert found["left"] == mib - 1 - size
    assert found["refusal"] == OUT_OF_MEMORY
    assert found["compiled"] in ("launched", "no compilers")
    if found["compiled"] != "launched":
        print("NVIDIA's compilers are not installed: numba's own kernels are NOT tested here", file=sys.stderr)


def test_numba_cuda_on_the_stand_in(built: Built, tmp_path: Path) -> None:
    check_numba(run_bare(built, tmp_path / "books", "numba", "3000"), CARD, 3000)


def test_numba_cuda_is_refused_beyond_the_cap(node: Node) -> None:
    check_numba(run_capped(node, "numba", "600"), CAP, 600)
