"""Compilers of other people, and a monitor, unmodified, under `carpool run --memory` on the stand-in GPU: each
starts, computes, sees the cap where it asks and is refused above it. Contexts cost bytes, as users have it.

They are installed on demand (on_demand.py). Kernels are launched, but the stand-in does no arithmetic.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.e2e.node import PROGRAMS, Node, with_environment
from tests.e2e.on_demand import directory_of
from tests.native.gpu import Built

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
CAP, PIECE = 1024, 300  # MiB


@pytest.fixture(scope="module")
def node(module_node: Node, built: Built) -> Node:
    module_node.use_whole_torch()
    module_node.use_stand_in(built.place)
    del module_node.environment["CARPOOL_STUB_CONTEXT"]
    module_node.start(device="stub:4GiB")
    return module_node


def run(node: Node, client: str, mib: int, *, python: str = sys.executable, **more: str) -> dict[str, Any]:
    environment = {"PYTHONPATH": str(directory_of(client)), "HOME": str(node.directory)} | more  # caches of theirs
    with with_environment(node, environment):
        program = (python, str(PROGRAMS / f"client_{client}.py"), str(mib))
        done = node.run(*program, options=["--name", client, "--memory", f"{CAP}MiB"]).wait()
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.lines[-1])
    return found


def test_tinygrad_is_refused_beyond_the_cap(node: Node) -> None:
    found = run(node, "tinygrad", PIECE, DEV="CUDA:PTX")  # its own way to PTX: NVIDIA's compilers are not needed
    assert (found["device"], found["held"]) == ("CUDA", CAP // PIECE)
    assert "failed on CUDA" in found["refusal"]


def test_triton_without_torch_sees_the_cap_and_is_refused_beyond_it(node: Node) -> None:
    base = getattr(sys, "_base_executable", sys.executable)  # torch is in the virtual environment, not there
    found = run(node, "triton", 600, python=base)
    assert (found["backend"], found["total"], found["free"]) == ("cuda", CAP, CAP)
    assert found["cubin"] > 0
    assert not found["torch"]
    assert found["results"] == [0, 2]


def test_dr_jit_is_refused_beyond_the_cap(node: Node) -> None:
    found = run(node, "drjit", 200)  # which it rounds up to 256
    assert "CUDA" in found["backend"]
    assert 2 <= found["held"] <= CAP // 256
    assert "out of memory" in found["refusal"]


def test_taichi_runs_but_is_not_seen(node: Node) -> None:
    """It loads its own library deep-bound, whose lookups do not pass ours: a class that is promised to nobody."""
    found = run(node, "taichi", PIECE)
    assert found == {"arch": "Arch.cuda", "refusal": "", "held": 6}


def test_gpustat_shows_a_card_of_the_caps_size_and_the_jobs_process(node: Node) -> None:
    found = run(node, "gpustat", PIECE)
    assert (found["total"], found["used"], found["own"]) == (CAP, PIECE, [PIECE])
    assert f"{PIECE} / {CAP} MB" in " ".join(found["shown"].split())
    assert found["errors"] == ""
