"""PyTorch's CUDA build on the stand-in GPU: whether it is here, and how programs are started on it.

Tests that run on a real GPU too (test_cards.py) have the marker `gpu` there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.node import Node, Started
from tests.native.gpu import SHARED, Built, environment
from tests.native.probe import compile_c
from tests.torch_cuda.libraries import MARK

PROGRAMS = Path(__file__).parent / "programs"
TRAIN = str(PROGRAMS / "train.py")
KERNEL_TIME = "200us"  # of every kernel of torch's


def reason_to_skip() -> str:
    site = Path(sysconfig.get_path("platlib"))
    version = site / "torch" / "version.py"
    if not version.exists() or not re.search(r"^cuda\b.*= '", version.read_text(), re.MULTILINE):
        return (
            "this torch is no CUDA build: the agent's CUDA code is NOT run with a real one; make test-torch-cuda does"
        )
    if not (site / MARK).exists():
        return "torch has NVIDIA's own libraries here, which need a GPU; make test-torch-cuda runs without them"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = reason_to_skip()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("gpu") is not None:
                continue
            item.add_marker(pytest.mark.torch_cuda)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bodies of the kernels that programs/train.py needs."""
    return compile_c(
        tmp_path_factory.mktemp("kernels") / "kernels.so", *SHARED[:2], Path(__file__).parent / "kernels.c"
    )


@pytest.fixture
def settings(built: Built, kernels: Path) -> dict[str, str]:
    return {"CARPOOL_STUB_KERNELS": str(kernels), "CARPOOL_STUB_KERNEL": KERNEL_TIME}


@pytest.fixture
def run_bare(built: Built, settings: dict[str, str], tmp_path: Path) -> Callable[..., list[str]]:
    """Run one of programs/ on a card of its own, without carpool; returns its lines."""

    def run(program: str, *words: str, card: str = "1x4GiB") -> list[str]:
        env = environment(built, tmp_path / "books", cards=card) | settings
        del env["LD_PRELOAD"]
        command = [sys.executable, str(PROGRAMS / program), *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


@pytest.fixture
def node(built: Built, settings: dict[str, str]) -> Iterator[Node]:
    node = Node()
    node.use_whole_torch()
    node.environment |= settings | {
        "CARPOOL_NATIVE": str(built.place),
        "CARPOOL_STUB_FILE": str(node.directory / "books"),
        "TMPDIR": str(node.directory),
    }
    yield node
    node.close()


def answer_of(lines: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def start(node: Node, name: str, *program: str, memory: str = "1GiB") -> Started:
    return node.run(*program, options=["--name", name, "--memory", memory])


def lines_of(started: Started) -> list[str]:
    """What the program printed, when it has come to its good end."""
    done = started.wait(seconds=200)
    assert done.code == 0, done.err
    return done.lines
