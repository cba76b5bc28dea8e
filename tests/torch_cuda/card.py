"""The two cards of test_cards.py: the stand-in, and this machine's own GPU. Both are found as any GPU is, by NVML and
the driver's library, and jobs have them as `--device cuda:0`; only what the environment leads to differs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from carpool.devices import nvml, stub
from tests.e2e.node import Node
from tests.native.gpu import Built, environment
from tests.torch_cuda.libraries import MARK

ALONE_SECONDS = 150
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # without it torch refuses to be deterministic on a GPU
LOOK = "from pynvml import *; nvmlInit(); print(nvmlDeviceGetMemoryInfo(nvmlDeviceGetHandleByUUID('{}')).used)"


@dataclass(frozen=True, kw_only=True)
class Card:
    device: str  # as `carpool daemon start --device` has it
    uuid: str
    attacked: str  # as `carpool verify --device` has it
    environment: dict[str, str]  # where programs find it
    has_arithmetic: bool  # kernels compute; else only those of tests/torch_cuda/kernels.c do
    aside_bytes_max: int  # what NVIDIA's libraries may take of the driver, past torch's allocator

    def alone(self, *program: str) -> list[str]:
        """What a Python program prints on this card without carpool, and with nobody beside it."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("CARPOOL")}
        env = kept | self.environment | {"CUDA_VISIBLE_DEVICES": self.uuid}
        done = subprocess.run(
            [sys.executable, *program], env=env, capture_output=True, text=True, timeout=ALONE_SECONDS
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def used_bytes(self, node: Node) -> int:
        """Of the whole card, as NVML says to a program outside carpool."""
        command = [sys.executable, "-c", LOOK.format(self.uuid)]
        done = subprocess.run(command, env=node.environment, capture_output=True, text=True, timeout=ALONE_SECONDS)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)


def stand_in(built: Built, kernels: dict[str, str], place: Path) -> Card:
    found = environment(built, place / "books", cards="1x16GiB")
    names = ("LD_LIBRARY_PATH", "CARPOOL_STUB", "CARPOOL_STUB_FILE")
    own = {name: found[name] for name in names} | {"CARPOOL_NATIVE": str(built.place)}
    return Card(
        device="cuda:0",
        uuid=stub.uuid_of(0),
        attacked="stub:4GiB",
        environment=own | kernels | DETERMINISTIC,
        has_arithmetic=False,
        aside_bytes_max=0,
    )


def own_gpu() -> Card:
    first = nvml.cards()[0]
    name = f"cuda:{first.index}"
    return Card(
        device=name,
        uuid=first.uuid,
        attacked=name,
        environment=dict(DETERMINISTIC),
        has_arithmetic=True,
        aside_bytes_max=64 << 20,
    )


@cache
def reason_without_gpu() -> str:
    """Why there is no GPU to test on; empty if there is one."""
    if (Path(sysconfig.get_path("platlib")) / MARK).exists():
        return "stand-ins are in the places of NVIDIA's libraries here: nothing is shown on a GPU; use another .venv"
    if not nvml.count():
        return f"no NVIDIA GPU here ({nvml.trouble()}): what only a GPU can show is NOT tested"
    look = [sys.executable, "-c", "import torch; print(torch.cuda.is_available())"]
    found = subprocess.run(look, capture_output=True, text=True, timeout=ALONE_SECONDS)
    return "" if found.stdout.strip() == "True" else "there is a GPU, but this torch has no usable CUDA: NOT tested"
